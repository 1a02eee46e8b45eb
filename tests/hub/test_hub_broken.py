"""Answers of the Hub that are not what was asked for: one sentence, no output, and nothing wrong stays in the cache."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import FakeHub

NAME = "model.safetensors"
PAGE = b"<html>please log in</html>"


@pytest.fixture
def hub(fixtures: Path) -> Iterator[FakeHub]:
    with FakeHub() as fake:
        fake.add_directory("owner/drafter", fixtures / "tiny-js" / "drafter")
        yield fake


def run(hub: FakeHub, fixtures: Path, tmp_path: Path, *more: str, **env: str) -> subprocess.CompletedProcess[str]:
    target = str(fixtures / "tiny-js" / "target")
    call = [sys.executable, "-m", "dflash_convert", "owner/drafter", "--target-model-dir", target, *more]
    env = hub.environment(tmp_path / "home", **env)
    return subprocess.run(call, env=env, capture_output=True, text=True, timeout=60, check=False)


def weights(hub: FakeHub) -> bytes:
    return hub.repos["owner/drafter"].files[NAME]


def test_wrong_bytes_of_the_right_size_leave_no_output_and_no_file(
    hub: FakeHub, fixtures: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out" / "x.gguf"
    out.parent.mkdir()
    data = weights(hub)
    hub.bodies[NAME] = data[:-1] + bytes([data[-1] ^ 255])
    done = run(hub, fixtures, tmp_path, "-o", str(out))
    assert done.returncode == 8, done.stderr
    assert f"owner/drafter: {NAME} came with other bytes than its SHA-256" in done.stderr
    assert "run the command again" in done.stderr
    assert [*out.parent.iterdir()] == []
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size == len(data)]
    hub.bodies.clear()
    again = run(hub, fixtures, tmp_path, "-o", str(out))
    assert again.returncode == 0, again.stderr
    offline = run(hub, fixtures, tmp_path, "--dry-run", HF_HUB_OFFLINE="1")
    assert offline.returncode == 0, "the cache knows which commit main is"


@pytest.mark.parametrize(
    ("part", "told"),
    [
        (PAGE, "8 bytes of it were asked for, the answer has 26"),
        (b"ab", "8 bytes of it were asked for, the answer has 2"),
        ((1 << 60).to_bytes(8, "little"), f"header length {1 << 60} in a file of"),
    ],
    ids=["page", "short", "huge header"],
)
def test_a_part_that_is_none(part: bytes, told: str, hub: FakeHub, fixtures: Path, tmp_path: Path) -> None:
    hub.parts[NAME] = part
    done = run(hub, fixtures, tmp_path, "--dry-run")
    assert done.returncode == 8, done.stderr
    assert f"ERROR owner/drafter: {NAME}: {told}" in done.stderr
    assert "login page" in done.stderr


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (50, "bytes by the Hub's listing"),
        (None, "files has no field 'size'"),
        (-(1 << 40), "gives its size as -"),
        (1 << 70, "gives its size as 11805916207"),
    ],
)
def test_a_size_that_cannot_be(more: int | None, told: str, hub: FakeHub, fixtures: Path, tmp_path: Path) -> None:
    hub.sizes[NAME] = None if more is None else len(weights(hub)) + more
    done = run(hub, fixtures, tmp_path, "--dry-run")
    assert done.returncode == 8, done.stderr
    assert "ERROR owner/drafter: " in done.stderr
    assert told in done.stderr


def test_a_page_in_place_of_a_file(hub: FakeHub, fixtures: Path, tmp_path: Path) -> None:
    hub.bodies[NAME] = PAGE
    done = run(hub, fixtures, tmp_path, "-o", str(tmp_path / "x.gguf"))
    assert done.returncode == 8, done.stderr
    assert f"owner/drafter: what came for {NAME} has not the length" in done.stderr
    assert "login page" in done.stderr
    assert not (tmp_path / "x.gguf").exists()


def test_only_files_of_the_same_repositorys_cache_are_discarded(tmp_path: Path) -> None:
    from dflash_convert.hub_cache import discard

    snapshot = tmp_path / "models--a--b" / "snapshots" / "c"
    blobs, elsewhere = tmp_path / "models--a--b" / "blobs", tmp_path / "elsewhere"
    for folder in (snapshot, blobs, elsewhere):
        folder.mkdir(parents=True)
        (folder / "x").write_bytes(b"x")
    (snapshot / "in").symlink_to(Path("../../blobs/x"))
    (snapshot / "out").symlink_to(elsewhere / "x")
    for name in ("in", "out", "x"):
        assert "removed from the cache" in discard(snapshot / name)
    assert [*snapshot.iterdir(), *blobs.iterdir()] == []
    assert (elsewhere / "x").exists()


def test_a_file_that_cannot_be_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dflash_convert.hub_cache import discard

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "unlink", refuse)
    assert discard(tmp_path / "x") == f"Delete {tmp_path / 'x'}, then run the command again."


class Moving(dict[str, str]):
    """Refs of which main moves as soon as it has been asked for."""

    def get(self, name: str, default: str = "") -> str:  # type: ignore[override]
        found = super().get(name, default)
        self["main"] = self["next"]
        return found


def test_every_file_is_of_the_commit_that_was_listed(hub: FakeHub, fixtures: Path, tmp_path: Path) -> None:
    repo = hub.repos["owner/drafter"]
    first = repo.refs["main"]
    repo.files["README.md"] = b"later"
    second = repo.commit()
    repo.refs = Moving(main=first, next=second)
    done = run(hub, fixtures, tmp_path, "-o", str(tmp_path / "x.gguf"))
    assert done.returncode == 0, done.stderr
    assert repo.refs["main"] == second
    assert [r.path for r in hub.log if "/resolve/" in r.path and first not in r.path] == []
    assert [path.name for path in tmp_path.glob("home/hub/models--owner--drafter/snapshots/*")] == [first]
    assert next(tmp_path.glob("home/hub/*/refs/main")).read_text() == first


@pytest.mark.parametrize("weight_map", ["[1]", "null", '{"a": 3}', '{"a": ["x"]}', '{"a": "../x"}'])
def test_a_bad_index_is_the_same_error_in_the_cache_as_elsewhere(weight_map: str, tmp_path: Path) -> None:
    from dflash_convert.checkpoint import open_checkpoint
    from dflash_convert.errors import CheckpointError
    from dflash_convert.hub import _missing

    (tmp_path / "config.json").write_text("{}", "utf-8")
    (tmp_path / "model.safetensors.index.json").write_text(f'{{"weight_map": {weight_map}}}', "utf-8")
    with pytest.raises(CheckpointError) as local:
        open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError) as cached:
        _missing(tmp_path, "drafter")
    assert str(cached.value) == str(local.value)


@pytest.mark.parametrize("more", [["--dry-run"], []])
def test_a_file_that_is_shorter_than_its_listing(more: list[str], hub: FakeHub, fixtures: Path, tmp_path: Path) -> None:
    hub.fail[f"/owner/drafter/resolve/{hub.repos['owner/drafter'].refs['main']}/{NAME}"] = 416
    done = run(hub, fixtures, tmp_path, *more)
    assert done.returncode == 8, done.stderr
    assert f"ERROR owner/drafter: {NAME} ends before the bytes that its listing states (status 416)" in done.stderr
    assert "unset HF_ENDPOINT and delete what is unfinished" in done.stderr
    assert "later" not in done.stderr
