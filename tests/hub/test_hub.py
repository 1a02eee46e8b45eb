"""Resolving repositories and paths, against a Hub on loopback."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_hub import FakeHub

from dflash_convert.errors import UsageError
from dflash_convert.hub import cache_origin, drafter_files, matching, parse_spec, resolve_drafter, resolve_target

CHILD = """
import json, sys
from dflash_convert import hub
from dflash_convert.errors import DflashError
try:
    got = getattr(hub, sys.argv[1])(sys.argv[2])
    files = sorted(str(p.relative_to(got.path)) for p in got.path.rglob("*") if p.is_file())
    print(json.dumps({"path": str(got.path), "repo": got.repo, "revision": got.revision, "sub": got.subfolder,
                      "name": got.name, "files": files, "hashes": dict(got.files),
                      "notes": [n.text for n in got.notes]}))
except DflashError as error:
    print(json.dumps({"error": type(error).__name__, "code": error.exit_code, "text": str(error), "tip": error.tip}))
"""
ROOT = Path(__file__).resolve().parents[2]
TOKEN = "hf_thisIsASecretOfTheTest"
DRAFTER = {
    "config.json": b"{}",
    "README.md": b"# d",
    "model.safetensors": b"w" * 200_000,
    "train.py": b"x",
    "model.bin": b"y",
}
TARGET = {
    "config.json": b"{}",
    "generation_config.json": b"{}",
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"t",
    "additional_chat_templates/tool_use.jinja": b"u",
    "model-00001-of-00002.safetensors": b"w" * 300_000,
    "model-00002-of-00002.safetensors": b"w" * 300_000,
    "model.safetensors.index.json": b"{}",
    "pytorch_model.bin": b"z",
    "original/tokenizer.model": b"o",
    "tokenization_kimi.py": b"p",
    "modeling_kimi.py": b"q",
}


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as fake:
        fake.add("owner/drafter", DRAFTER)
        fake.add("owner/target", TARGET)
        yield fake


def child(hub: FakeHub, home: Path, function: str, spec: str, **env: str) -> dict[str, Any]:
    """One resolution in its own process: huggingface_hub reads its environment when it is imported."""
    command = [sys.executable, "-c", CHILD, function, spec]
    done = subprocess.run(
        command, env=hub.environment(home, **env), cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_target_without_weights(hub: FakeHub, tmp_path: Path) -> None:
    got = child(hub, tmp_path, "resolve_target", "owner/target")
    assert got["files"] == sorted(
        name for name in TARGET if "model" not in name.split("/")[-1] and name != "pytorch_model.bin"
    )
    assert got["repo"] == "owner/target"
    assert got["revision"] == hub.repos["owner/target"].refs["main"]
    asked = {request.path for request in hub.log}
    assert not [path for path in asked if path.endswith((".safetensors", ".bin"))]
    assert any(path.endswith("tokenizer.json") for path in asked)


def test_drafter_with_weights_and_hashes(hub: FakeHub, tmp_path: Path) -> None:
    import hashlib

    got = child(hub, tmp_path, "resolve_drafter", "owner/drafter")
    assert got["files"] == ["README.md", "config.json", "model.safetensors"]
    assert got["hashes"] == {name: hashlib.sha256(DRAFTER[name]).hexdigest() for name in got["files"]}
    again = len(hub.log)
    assert child(hub, tmp_path, "resolve_drafter", "owner/drafter") == got
    assert not [r for r in hub.log[again:] if r.method == "GET" and "/resolve/" in r.path], "nothing is fetched twice"


def test_subfolder_and_revision(hub: FakeHub, tmp_path: Path) -> None:
    repo = hub.add("owner/both", {**TARGET, "dflash/config.json": b"{}", "dflash/model.safetensors": b"d"})
    old = repo.refs["main"]
    repo.files["dflash/model.safetensors"] = b"new"
    repo.commit()
    repo.refs["v1"] = old
    got = child(hub, tmp_path, "resolve_drafter", "owner/both/dflash@v1")
    assert (got["files"], got["sub"], got["revision"]) == (["config.json", "model.safetensors"], "dflash", old)
    assert got["name"] == "owner/both/dflash"
    assert (Path(got["path"]) / "model.safetensors").read_bytes() == b"d"
    assert not [r for r in hub.log if "00001-of" in r.path], "the target's weights stay where they are"


@pytest.mark.parametrize(
    ("spec", "options", "text"),
    [
        ("owner/gated", {"gate": 401}, "owner/gated is gated: the Hub asks who you are"),
        ("owner/gated", {"gate": 403}, "owner/gated is gated and your account has no access"),
        ("owner/missing", None, "owner/missing was not found on the Hub"),
        ("owner/target@v9", None, "owner/target has no revision v9"),
        ("owner/secret", {"private": True}, "owner/secret was not found on the Hub"),
    ],
)
def test_refusals(hub: FakeHub, tmp_path: Path, spec: str, options: dict[str, Any] | None, text: str) -> None:
    if options is not None:
        hub.add(spec, TARGET, **options)
    got = child(hub, tmp_path, "resolve_target", spec)
    assert (got["error"], got["code"], got["text"]) == ("HubError", 8, text)
    assert got["tip"]


def test_token_is_sent_and_never_shown(hub: FakeHub, tmp_path: Path) -> None:
    hub.add("owner/secret", TARGET, private=True)
    assert child(hub, tmp_path, "resolve_target", "owner/secret", HF_TOKEN=TOKEN)["repo"] == "owner/secret"
    assert all(request.token for request in hub.log)
    hub.add("owner/gated", TARGET, gate=403)
    assert child(hub, tmp_path, "resolve_target", "owner/gated", HF_TOKEN=TOKEN)["error"] == "HubError"


def test_offline(hub: FakeHub, tmp_path: Path) -> None:
    got = child(hub, tmp_path, "resolve_target", "owner/target", HF_HUB_OFFLINE="1")
    assert got["text"] == ("owner/target: HF_HUB_OFFLINE is set, and the cache does not hold its files (revision main)")
    assert hub.log == []
    first = child(hub, tmp_path, "resolve_target", "owner/target")
    seen = len(hub.log)
    got = child(hub, tmp_path, "resolve_target", "owner/target", HF_HUB_OFFLINE="1")
    assert (got["path"], got["revision"]) == (first["path"], first["revision"])
    assert "the copy in the cache is used" in got["notes"][0]
    got = child(hub, tmp_path, "resolve_drafter", "owner/target", HF_HUB_OFFLINE="1")
    assert "the cache does not hold its weights" in got["text"]
    assert len(hub.log) == seen


def test_unreachable(hub: FakeHub, tmp_path: Path) -> None:
    got = child(hub, tmp_path, "resolve_target", "owner/target", HF_ENDPOINT="http://127.0.0.1:9")
    assert got["text"].startswith("owner/target: the Hub cannot be reached, and the cache does not hold its files")
    child(hub, tmp_path, "resolve_target", "owner/target")
    got = child(hub, tmp_path, "resolve_target", "owner/target", HF_ENDPOINT="http://127.0.0.1:9")
    assert got["repo"] == "owner/target"


def test_server_error(hub: FakeHub, tmp_path: Path) -> None:
    hub.fail["/api/models/owner/target"] = 500
    got = child(hub, tmp_path, "resolve_target", "owner/target")
    assert got["text"] == "owner/target: the Hub answered with status 500"


def test_broken_download_resumes(hub: FakeHub, tmp_path: Path) -> None:
    weights = bytes(range(256)) * 90_000  # longer than two of the library's chunks of 10 MB
    hub.add("owner/large", {"config.json": b"{}", "model.safetensors": weights})
    hub.break_after = 21_000_000
    got = child(hub, tmp_path, "resolve_drafter", "owner/large")
    if "error" in got:
        got = child(hub, tmp_path, "resolve_drafter", "owner/large")
    assert (Path(got["path"]) / "model.safetensors").read_bytes() == weights
    assert 206 in {request.status for request in hub.log}, "the rest was asked for, not the whole file"


def test_not_a_model(hub: FakeHub, tmp_path: Path) -> None:
    hub.add("owner/sets", {"a/config.json": b"{}", "b/config.json": b"{}", "README.md": b""})
    got = child(hub, tmp_path, "resolve_drafter", "owner/sets")
    assert got["text"] == "owner/sets: no config.json there, so it is not a drafter"
    assert got["tip"] == "Folders of this repository that have one: a, b."


def test_local_never_touches_the_network(hub: FakeHub, tmp_path: Path) -> None:
    folder = tmp_path / "owner" / "target"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    command = [sys.executable, "-c", CHILD, "resolve_target", "owner/target"]
    env = hub.environment(tmp_path / "home", PYTHONPATH=str(ROOT))
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout)["repo"] is None
    assert hub.log == []


def test_cache_links_are_followed(tmp_path: Path) -> None:
    commit = "a" * 40
    root = tmp_path / "models--owner--name--x"
    snapshot, blobs = root / "snapshots" / commit, root / "blobs"
    (snapshot / "dflash").mkdir(parents=True)
    blobs.mkdir()
    (blobs / ("c" * 64)).write_bytes(b"weights")
    (blobs / "d").write_bytes(b"{}")
    (snapshot / "model.safetensors").symlink_to(f"../../blobs/{'c' * 64}")
    (snapshot / "config.json").symlink_to("../../blobs/d")
    got = resolve_drafter(str(snapshot))
    assert (got.repo, got.revision, got.subfolder, got.name) == ("owner/name--x", commit, None, "owner/name--x")
    assert got.files["model.safetensors"] == "c" * 64, "the cache's own name, not a second pass over the weights"
    assert resolve_drafter(str(root)).path == snapshot
    assert cache_origin(snapshot / "dflash") == ("owner/name--x", commit, "dflash")


def test_a_blob_in_the_shared_store_keeps_its_hash(tmp_path: Path) -> None:
    """The cache's blob may be a link into a store of another naming, whose 64 digits are no SHA-256."""
    digest, other = "c" * 64, "d" * 64
    root = tmp_path / "models--owner--name"
    snapshot, blobs, store = root / "snapshots" / ("a" * 40), root / "blobs", tmp_path / "blobs" / "dd"
    for folder in (snapshot, blobs, store):
        folder.mkdir(parents=True)
    (store / other).write_bytes(b"weights")
    (blobs / digest).symlink_to(f"../../blobs/dd/{other}")
    (snapshot / "model.safetensors").symlink_to(f"../../blobs/{digest}")
    (snapshot / "config.json").write_text("{}")
    assert resolve_drafter(str(snapshot)).files["model.safetensors"] == digest


def test_local_mistakes(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_bytes(b"{}")
    with pytest.raises(UsageError, match="a directory was expected, this is a file"):
        resolve_target(str(file))
    with pytest.raises(UsageError, match="no such directory, and not a Hub repository id"):
        resolve_target("./missing/here")
    with pytest.raises(UsageError, match="no such directory"):
        resolve_drafter("just-a-name")


def test_specs() -> None:
    spec = parse_spec("z-lab/Qwen3-8B-DFlash-b16@refs/pr/3")
    assert spec is not None
    assert (spec.repo, spec.subfolder, spec.revision) == ("z-lab/Qwen3-8B-DFlash-b16", "", "refs/pr/3")
    assert parse_spec("a/b/c/d") is not None
    assert parse_spec("a/../b") is None
    assert parse_spec("one") is None


def test_choices() -> None:
    names = ["consolidated.safetensors", "model.safetensors", "sub/model.safetensors", "config.json", "optimizer.pt"]
    assert drafter_files(names) == ["config.json", "model.safetensors"]
    assert drafter_files(names[:1]) == ["consolidated.safetensors"]
    assert matching(["original/tokenizer.model", "tokenizer.model"], ("tokenizer.model",)) == ["tokenizer.model"]


UPLOAD = """
import sys
from huggingface_hub import HfApi
api = HfApi()
api.create_repo("owner/new", exist_ok=True)
api.upload_folder(repo_id="owner/new", folder_path=sys.argv[1], commit_message="first")
api.upload_file(repo_id="owner/new", path_in_repo="README.md", path_or_fileobj=b"# card", commit_message="card")
"""


def test_the_fake_hub_takes_uploads(hub: FakeHub, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "dflash-x.gguf").write_bytes(b"GGUF" * 50_000)
    env = hub.environment(tmp_path / "home", HF_TOKEN=TOKEN)
    done = subprocess.run([sys.executable, "-c", UPLOAD, folder], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    repo = hub.repos["owner/new"]
    assert repo.files == {"dflash-x.gguf": b"GGUF" * 50_000, "README.md": b"# card"}
    assert repo.commits == ["first", "card"]
