"""Publishing to a Hub on loopback: the order, resuming, refusals, and no token in any message."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from release_tools import Done, tree
from upload_hub import TOKEN, UploadHub

from dflash_convert.release.manifest import sums_text

WEIGHTS = ["dflash-tiny-js-Q4_0.gguf", "dflash-tiny-js-Q8_0.gguf"]
ORDER = [*WEIGHTS, "llama-server/preset.ini", "manifest.json", "SHA256SUMS", "README.md"]


@pytest.fixture
def hub() -> Iterator[UploadHub]:
    with UploadHub() as hub:
        yield hub


@pytest.fixture
def publish(program: Callable[..., Done], hub: UploadHub, tmp_path: Path) -> Callable[..., Done]:
    def run(*arguments: object, token: str = TOKEN, **environment: str) -> Done:
        own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": token}
        own |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1"}
        done = program("publish", *arguments, **(own | environment))
        assert token not in done.out + done.err
        return done

    return run


def test_weights_first_card_last(publish: Any, hub: UploadHub, package: Path) -> None:
    done = publish(package, "a/b", "--private", "--json")
    assert done.code == 0, done.err
    assert hub.order == [[name] for name in ORDER]
    assert hub.private is True
    assert hub.files["main"] == tree(package)
    answer = json.loads(done.out)
    assert answer["uploaded"] == ORDER
    assert answer["commit"] == "c" * 40
    assert "preset.ini" not in hub.files["main"], "at the top llama.cpp would find nothing else"


def test_again_uploads_nothing(publish: Any, hub: UploadHub, package: Path) -> None:
    assert publish(package, "a/b").code == 0
    commits, puts = len(hub.order), hub.puts
    done = publish(package, "a/b", "--json")
    assert done.code == 0
    assert json.loads(done.out)["skipped"] == ORDER
    assert (len(hub.order), hub.puts) == (commits, puts)


def test_a_failure_leaves_no_card_and_the_next_run_resumes(publish: Any, hub: UploadHub, package: Path) -> None:
    hub.refuse = {WEIGHTS[1]: 403}
    done = publish(package, "a/b")
    assert done.code == 8
    assert "your account may not write there; 1 files are up, run it again to go on" in done.err
    assert list(hub.files["main"]) == WEIGHTS[:1]
    hub.refuse = {}
    done = publish(package, "a/b", "--json")
    assert json.loads(done.out)["skipped"] == WEIGHTS[:1]
    assert hub.order == [[name] for name in ORDER]
    assert hub.puts == 2  # no weights went over the wire twice


def test_changed_files_are_replaced(publish: Any, hub: UploadHub, package: Path) -> None:
    assert publish(package, "a/b").code == 0
    hub.files["main"]["README.md"] = b"somebody's edit"
    hub.files["main"][WEIGHTS[0]] = b"\0" * len(hub.files["main"][WEIGHTS[0]])
    done = publish(package, "a/b", "--json")
    assert json.loads(done.out)["uploaded"] == [WEIGHTS[0], "README.md"]
    assert hub.files["main"]["README.md"] == (package / "README.md").read_bytes()


def test_revision_goes_to_a_branch(publish: Any, hub: UploadHub, package: Path) -> None:
    assert publish(package, "a/b", "--revision", "v2").code == 0
    assert sorted(hub.files["v2"]) == sorted(ORDER)
    assert hub.files["main"] == {}


def test_dry_run_makes_no_connection(program: Callable[..., Done], package: Path) -> None:
    done = program("publish", package, "a/b", "--dry-run", HF_ENDPOINT="http://127.0.0.1:1")
    assert done.code == 0
    assert done.out.split() == ORDER


def test_a_name_that_is_no_repository(program: Callable[..., Done], package: Path) -> None:
    done = program("publish", package, "no such name!")
    assert done.code == 2
    assert "repositories are named like" in done.err


def test_refuses_a_damaged_package(publish: Any, hub: UploadHub, package: Path) -> None:
    with (package / WEIGHTS[0]).open("ab") as file:
        file.write(b"\0")
    done = publish(package, "a/b")
    assert done.code == 5
    assert "does not match its manifest: dflash-tiny-js-Q4_0.gguf: has " in done.err
    assert hub.files == {}
    assert publish(package, "a/b", "--force").code == 0


def test_refuses_a_broken_pair(publish: Any, hub: UploadHub, package: Path) -> None:
    document = json.loads((package / "manifest.json").read_text())
    document["validation"] = [{"file": WEIGHTS[0], "verdict": "broken"}]
    text = json.dumps(document)
    (package / "manifest.json").write_text(text)
    (package / "SHA256SUMS").write_text(sums_text(document, hashlib.sha256(text.encode()).hexdigest()))
    done = publish(package, "a/b")
    assert done.code == 6
    assert "was validated as broken: it is not published" in done.err
    assert hub.files == {}
    assert publish(package, "a/b", "--force").code == 0


def test_refusals_of_the_hub(publish: Any, package: Path) -> None:
    done = publish(package, "a/b", token="hf_anotherSecretThatIsWrong")
    assert done.code == 8
    assert "the Hub asks who you are" in done.err
    assert "hf auth login" in done.err
    done = publish(package, "a/b", HF_HUB_OFFLINE="1")
    assert (done.code, "HF_HUB_OFFLINE is set" in done.err) == (8, True)
    done = publish(package, "a/b", HF_ENDPOINT="http://127.0.0.1:1")
    assert (done.code, "the upload failed" in done.err) == (8, True)


@pytest.mark.parametrize("repository", ["nonsense", "a/b/c", "a/b@main", "../a"])
def test_repository_must_be_one(publish: Any, package: Path, repository: str) -> None:
    assert publish(package, repository).code == 2
