"""A file that a person names is read up to a limit, and what is no file is told by what it is."""

from __future__ import annotations

import ast
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from import_graph import PACKAGE

from dflash_convert.errors import ConfigError, DflashError
from dflash_convert.head import ranking
from dflash_convert.release import contests, manifest, plan, validations, verifications
from dflash_convert.text import reason
from dflash_convert.validation import options, prompts, reference

READERS: dict[str, tuple[Callable[[Path], Any], Any, str]] = {
    "--validation": (validations.read_report, validations, "MAX_REPORT"),
    "--verification": (verifications._read, verifications, "MAX_REPORT"),
    "--contest": (contests.read_contest, contests, "MAX_JSON"),
    "release.toml": (plan.read_release, plan, "MAX_FILE"),
    "--thresholds": (options.read_thresholds, options, "MAX_FILE"),
    "--prompts": (prompts.read, prompts, "MAX_FILE"),
    "--reference": (reference.load, reference, "MAX_BYTES"),
    "--from-run": (lambda path: ranking.from_run(path, 8), reference, "MAX_BYTES"),
    "--ranking": (lambda path: ranking.from_file(path, 8), ranking, "MAX_TEXT"),
    "--text": (lambda path: ranking.from_text([path], lambda _: [], 8), ranking, "MAX_TEXT"),
}
# whole files that nobody names: our own records and caches, the package's own data, a checkpoint's card and tokenizer
OWN = {
    "hub.py": 1,
    "hub_cache.py": 1,
    "installed.py": 1,
    "metadata.py": 1,
    "release/batch.py": 1,
    "release/job.py": 2,
    "usercache.py": 2,
    "validation/prompts.py": 1,
    "vocab/files.py": 1,
    "vocab/pre.py": 1,
    "vocab/structure.py": 1,
}


@pytest.fixture(params=["a directory", "a pipe", "a socket", "a device"])
def no_file(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    path = tmp_path / "x"
    if request.param == "a directory":
        path.mkdir()
    elif request.param == "a pipe":
        os.mkfifo(path)
    elif request.param == "a device":
        path = Path("/dev/zero")
    with socket.socket(socket.AF_UNIX) as bound:
        if request.param == "a socket":
            bound.bind(str(path))
        yield path, request.param


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_what_is_no_file_is_told_by_what_it_is(no_file: tuple[Path, str]) -> None:
    path, kind = no_file
    for name, (read, _, _) in READERS.items():
        with pytest.raises(ConfigError) as caught:
            read(path)
        assert str(caught.value).startswith(f"{path}: {kind}, not a"), name
        assert kind != "a pipe" or "write it to a file" in str(caught.value.tip)


@pytest.mark.parametrize("name", READERS)
def test_a_named_file_is_read_up_to_its_limit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, module, limit = READERS[name]
    path = tmp_path / "x.toml"
    with pytest.raises(ConfigError, match=r"x\.toml: no such file"):
        read(path)
    with pytest.raises(ConfigError, match=r"cannot be read \(File name too long"):
        read(tmp_path / ("x" * 300))
    path.write_bytes(b"#" * 33)
    monkeypatch.setattr(module, limit, 32)
    with pytest.raises(ConfigError, match="larger than"):
        read(path)
    stated, real = os.stat_result((0o100600, 0, 0, 1, 0, 0, 0, 0, 0, 0)), os.fstat  # as of a file in /proc
    monkeypatch.setattr(os, "fstat", lambda fd: stated if real(fd).st_size == 33 else real(fd))
    with pytest.raises(ConfigError, match="larger than"):
        read(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_package_is_a_directory_with_a_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, pipe, empty = tmp_path / "a.gguf", tmp_path / "pipe", tmp_path / "empty"
    file.touch()
    os.mkfifo(pipe)
    empty.mkdir()
    told = {
        file: "it is a file",
        pipe: "it is a pipe",
        tmp_path / "gone": "there is no such directory",
        empty: "it has no manifest.json",
    }
    for path, words in told.items():
        with pytest.raises(ConfigError, match=f"{path} is not a package: {words}"):
            manifest.read_manifest(path)
    (empty / "manifest.json").mkdir()
    with pytest.raises(ConfigError, match=r"manifest.json: a directory, not a package's manifest"):
        manifest.read_manifest(empty)
    (empty / "manifest.json").rmdir()
    (empty / "manifest.json").write_bytes(b"#" * 33)
    monkeypatch.setattr(manifest, "MAX_MANIFEST", 32)
    with pytest.raises(ConfigError, match="larger than"):
        manifest.read_manifest(empty)


@pytest.mark.parametrize("name", ["x.json", "x.toml"])
@pytest.mark.parametrize(("text", "why"), [(b"a=" + 9000 * b"[", "nested too deeply"), (b"\xff", "not UTF-8 text")])
def test_thresholds_that_cannot_be_parsed(name: str, text: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(text if name == "x.toml" else text.removeprefix(b"a="))
    with pytest.raises(DflashError, match=f"is not .*: it is {why}"):
        options.read_thresholds(path)


def parsed() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text("utf-8"))


def test_nothing_else_is_read_whole() -> None:
    """A size that is looked at before a file is read says nothing of a pipe, of /proc and of a file that grows."""
    found: dict[str, int] = {}
    for name, module in parsed():
        for node in ast.walk(module):
            if isinstance(node, ast.Attribute) and node.attr in ("read_bytes", "read_text"):
                found[name] = found.get(name, 0) + 1
    assert not {name: count for name, count in found.items() if count > OWN.get(name, 0)}


def shows_raw(handler: ast.ExceptHandler) -> bool:
    """Whether the text of a caught OSError is shown as it is, number and path and all."""
    caught = ast.walk(handler.type) if handler.type else ()
    if not any(isinstance(node, ast.Name) and node.id == "OSError" for node in caught):
        return False
    shown = (node.value for node in ast.walk(handler) if isinstance(node, ast.FormattedValue))
    return any(isinstance(value, ast.Name) and value.id == handler.name for value in shown)


def test_no_error_of_the_system_is_shown_with_its_number() -> None:
    raw = [
        f"{name}:{node.lineno}"
        for name, module in parsed()
        for node in ast.walk(module)
        if isinstance(node, ast.ExceptHandler) and shows_raw(node)
    ]
    assert not raw, f"{raw}: dflash_convert.text.reason gives the words alone"
    with pytest.raises(OSError, match="Errno") as caught:
        Path("nowhere/at all").read_bytes()
    assert reason(caught.value) == "No such file or directory"
