"""Vocabularies from the user's cache: the same as read anew, void when anything differs, never in the way."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from dflash_convert import usercache
from dflash_convert.container.types import string
from dflash_convert.container.writer import layout
from dflash_convert.errors import TokenizerError
from dflash_convert.vocab import Vocabulary, cache, load, load_vocabulary

Count = Callable[[], int]


@pytest.fixture
def target(fixtures: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(fixtures / "tiny-js" / "target", tmp_path / "target"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, used for vocabularies of any size."""
    monkeypatch.setattr(load, "LARGE", 0)
    monkeypatch.setenv(usercache.ENVIRONMENT, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Count:
    """How often files were really read since the last call."""
    calls: list[None] = []
    real = load._by_files
    monkeypatch.setattr(load, "_by_files", lambda request: (calls.append(None), real(request))[1])

    def count() -> int:
        number = len(calls)
        calls.clear()
        return number

    return count


def read(target: Path, size: int = 512, **options: Any) -> Vocabulary:
    return load_vocabulary(target, vocab_size=size, **options)


def as_bytes(vocabulary: Vocabulary) -> bytes:
    return layout(vocabulary.keys(3), []).header


def same(a: Vocabulary, b: Vocabulary) -> bool:
    parts = [dataclasses.replace(each, entries=()) for each in (a, b)]
    return parts[0] == parts[1] and as_bytes(a) == as_bytes(b)


def test_what_is_recalled_is_what_was_read(target: Path, place: Path, reads: Count) -> None:
    fresh = read(target, fresh=True)
    assert not place.exists()
    first, second = read(target), read(target)
    assert reads() == 2
    assert same(fresh, first)
    assert same(fresh, second)
    assert len([*place.iterdir()]) == 1
    assert place.stat().st_mode & 0o077 == 0
    read(target, fresh=True)
    assert reads() == 1


@pytest.mark.shared
@pytest.mark.parametrize(("name", "size"), [("qwen3", 151936), ("gemma4", 262144), ("llama3_1", 128256)])
def test_real_tokenizers(name: str, size: int, shared: Path, place: Path, reads: Count) -> None:
    where = shared / "tokenizers" / name
    pre = {"pre": "llama-bpe"} if name == "llama3_1" else {}
    fresh = read(where, size, fresh=True, **pre)
    read(where, size, **pre)
    reads()
    assert same(fresh, read(where, size, **pre))
    assert reads() == 0


def test_small_vocabularies_are_not_kept(target: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "LARGE", 513)
    read(target)
    assert not place.exists()


def edit_json(name: str, **fields: Any) -> Callable[[Path], object]:
    def edit(target: Path) -> None:
        data = json.loads((target / name).read_text("utf-8"))
        (target / name).write_text(json.dumps(data | fields), "utf-8")

    return edit


@pytest.mark.parametrize(
    "change",
    [
        edit_json("tokenizer_config.json", eos_token="<unk>"),
        edit_json("config.json", x=1),
        edit_json("generation_config.json", x=1),
        edit_json("tokenizer.json", truncation=1),
        lambda target: (target / "chat_template.jinja").write_text("{{ x }}"),
        lambda target: (target / "generation_config.json").unlink(),
    ],
    ids=["tokenizer_config", "config", "generation_config", "tokenizer", "a new file", "a file less"],
)
def test_another_answer_makes_an_entry_void(
    change: Callable[[Path], object], target: Path, place: Path, reads: Count
) -> None:
    read(target)
    change(target)
    reads()
    found = read(target)
    assert reads() == 1
    assert same(found, read(target, fresh=True))
    reads()
    assert same(found, read(target))
    assert reads() == 0
    assert len([*place.iterdir()]) == 1, "the void entry is gone"


def test_an_error_is_no_entry(target: Path, place: Path) -> None:
    read(target)
    (target / "tokenizer.json").write_text("{")
    for _ in range(2):
        with pytest.raises(TokenizerError, match="not valid JSON"):
            read(target)


def test_options_places_and_code_have_their_own_entries(
    target: Path, place: Path, reads: Count, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(target, tmp_path / "other"))
    calls: list[Callable[[], Vocabulary]] = [
        lambda: read(target),
        lambda: read(target, 520),
        lambda: read(target, plain=True),
        lambda: read(target, eagle3=True),
        lambda: read(target, pre="qwen2"),
        lambda: read(other),
    ]
    for call in calls:
        call()
        assert reads() == 1
    for call in calls:
        call()
        assert reads() == 0
    assert len([*place.iterdir()]) == len(calls)
    monkeypatch.setattr(cache, "_code", lambda: "another")
    read(target)
    assert reads() == 1


def test_the_codes_hash_covers_what_makes_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = Path(cache.__file__).parent
    for name in ("vocab", "container"):
        shutil.copytree(package.parent / name, tmp_path / name)
    for path in package.parent.glob("*.py"):
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "vocab" / "cache.py"))
    seen = []
    for name in ("", "vocab/load.py", "vocab/pre_hashes.json", "container/writer.py", "hparams.py"):
        if name:
            with (tmp_path / name).open("a") as file:
                file.write(" ")
        seen.append(cache._code.__wrapped__())
    assert len(set(seen)) == len(seen)
    assert seen[0] == cache._code()


def other_vocabulary(path: Path) -> None:
    """Well-formed and rightly named, but no entry of this program."""
    data = layout([string("general.name", "x")], []).header
    path.unlink()
    path.with_name(f"{path.stem.rpartition('-')[0]}-{sha256(data).hexdigest()}.gguf").write_bytes(data)


def no_facts(path: Path) -> None:
    data = layout([string(cache.FACTS, '{"vocabulary": {"notes": []}, "asked": []}')], []).header
    path.unlink()
    path.with_name(f"{path.stem.rpartition('-')[0]}-{sha256(data).hexdigest()}.gguf").write_bytes(data)


def deep_facts(path: Path) -> None:
    data = layout([string(cache.FACTS, "[" * 50_000)], []).header
    path.unlink()
    path.with_name(f"{path.stem.rpartition('-')[0]}-{sha256(data).hexdigest()}.gguf").write_bytes(data)


def link_to_itself(path: Path) -> None:
    """Whoever may write here may link what the user once fetched from somebody else."""
    path.rename(path.parent.parent / path.name)
    path.symlink_to(path.parent.parent / path.name)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-200] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        flip,
        other_vocabulary,
        no_facts,
        deep_facts,
        link_to_itself,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: (path.unlink(), path.symlink_to("nowhere")),
        lambda path: path.unlink(),
    ],
    ids=["bit", "other", "no facts", "deep facts", "link to one", "empty", "short", "directory", "link", "gone"],
)
def test_a_damaged_entry_is_no_entry(damage: Callable[[Path], object], target: Path, place: Path, reads: Count) -> None:
    fresh = read(target)
    (entry,) = place.iterdir()
    damage(entry)
    reads()
    assert same(fresh, read(target))
    assert reads() == 1


def test_an_entry_is_used_where_nothing_may_be_written(
    target: Path, place: Path, reads: Count, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(target)

    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", read_only)
    reads()
    read(target)
    assert reads() == 0


def test_anothers_entry_is_no_entry(target: Path, place: Path, reads: Count, monkeypatch: pytest.MonkeyPatch) -> None:
    read(target)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    reads()
    read(target)
    assert reads() == 1


def test_off_and_other_homes(
    target: Path, place: Path, reads: Count, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(usercache.ENVIRONMENT, "off")
    read(target)
    read(target)
    assert reads() == 2
    assert not place.exists()
    monkeypatch.delenv(usercache.ENVIRONMENT)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert usercache.directory() == tmp_path / "xdg" / "dflash-convert" / "tokenizers"
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert usercache.directory() == tmp_path / ".cache" / "dflash-convert" / "tokenizers"

    def nobody() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", nobody)
    assert usercache.directory() is None
    assert read(target).size == 512


@pytest.mark.parametrize("name", ["mkdir", "write_bytes", "replace", "glob", "stat", "unlink"])
def test_a_cache_that_fails_is_in_nobodys_way(
    name: str, target: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = read(target, fresh=True)
    real = getattr(Path, name)

    def fail(self: Path, *args: Any, **given: Any) -> Any:
        if place in (self, *self.parents):
            raise OSError(5, "Input/output error")
        return real(self, *args, **given)

    monkeypatch.setattr(Path, name, fail)
    for _ in range(2):
        assert same(fresh, read(target))
    monkeypatch.undo()
    left = [path.name for path in place.glob("*")] if place.exists() else []
    assert not [each for each in left if each.endswith(usercache.PARTIAL)]


def test_a_file_in_the_caches_place(target: Path, place: Path) -> None:
    place.write_text("x")
    assert read(target).size == 512
    assert place.read_text() == "x"


def test_what_was_not_used_for_longest_goes(
    target: Path, place: Path, reads: Count, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "KEEP", 3)
    for size in (512, 513, 514):
        read(target, size)
    for age, path in enumerate(sorted(place.iterdir(), key=lambda each: each.stat().st_mtime)):
        os.utime(path, (age, age))
    read(target, 512)  # used again: 513 is now the oldest
    reads()
    read(target, 515)
    assert len([*place.iterdir()]) == 3
    reads()
    read(target, 512)
    assert reads() == 0
    read(target, 513)
    assert reads() == 1


def test_what_a_killed_run_left_goes(target: Path, place: Path) -> None:
    place.mkdir()
    old, new = (place / f"{name}{usercache.PARTIAL}" for name in ("0" * 16, "1" * 16))
    for path in (old, new):
        path.write_bytes(b"GG")
    os.utime(old, (0, 0))
    read(target)
    assert not old.exists()
    assert new.exists(), "another run may be writing it"


def test_a_directory_of_somebody_elses_files_keeps_them(target: Path, place: Path) -> None:
    place.mkdir()
    theirs = [*(place / f"model{i}.gguf" for i in range(20)), place / "big.partial", place / "notes.trial"]
    for path in theirs:
        path.write_bytes(b"GGUF")
        os.utime(path, (0, 0))
    read(target)
    assert len(list(place.iterdir())) == len(theirs) + 1
    assert all(path.read_bytes() == b"GGUF" for path in theirs)


def test_what_is_no_regular_file_is_no_entry(target: Path, place: Path) -> None:
    read(target)
    (entry,) = place.iterdir()
    entry.unlink()
    os.mkfifo(entry)
    read(target)  # does not wait for a writer
