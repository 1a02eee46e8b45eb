"""The vocabulary tried beside the tensors: once for all that it depends on, and nothing left of it."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from verify_files import Keys, Tensors, rewrite

from dflash_convert import usercache
from dflash_convert.container.types import ValueType as V
from dflash_convert.container.types import array
from dflash_convert.engine import embedded
from dflash_convert.engine.failures import LOAD, EngineRunError
from dflash_convert.engine.trace import EngineInfo, to_split
from dflash_convert.errors import ContainerError
from dflash_convert.target import Target
from dflash_convert.verification import trial
from dflash_convert.verification.tensors import verify
from dflash_convert.verification.trial import Trial, Tried, tried, tried_from_json
from dflash_convert.verification.vocabulary import Difference

Convert = Callable[[str], Path]
ENGINE = EngineInfo("embedded", None, "xllamacpp 1", ())


class Runs:
    """In the place of the engine: how often it was asked, and what it finds."""

    def __init__(self) -> None:
        self.count = 0
        self.found: list[Difference] = []
        self.error: Exception | None = None

    def __call__(self, *_: object) -> list[Difference]:
        self.count += 1
        if self.error:
            raise self.error
        return self.found


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runs:
    """An empty cache, used for vocabularies of any size, and no engine."""
    runs = Runs()
    monkeypatch.setattr(trial, "LARGE", 0)
    monkeypatch.setattr(trial, "round_trip", runs)
    monkeypatch.setattr(trial, "_binary", list)
    monkeypatch.setattr(embedded, "info", lambda: ENGINE)
    monkeypatch.setenv(usercache.ENVIRONMENT, str(tmp_path / "cache"))
    return runs


@pytest.fixture
def target(fixtures: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(fixtures / "tiny-js" / "target", tmp_path / "target"))


def test_what_passed_is_not_tried_again(runs: Runs, converted: Convert, target: Path, tmp_path: Path) -> None:
    first, again = tried(converted("Q8_0"), target), tried(converted("Q8_0"), target)
    assert runs.count == 1
    assert first.differences == again.differences == ()
    assert again.notes[0].text == first.notes[0].text + trial.BEFORE
    tried(converted("BF16"), target)
    assert runs.count == 1, "other weights with the same vocabulary"
    assert len([*(tmp_path / "cache").iterdir()]) == 1


@pytest.mark.parametrize("part", ["vocabulary", "tokenizer", "engine", "binary", "texts", "code", "library"])
def test_another_part_is_another_trial(
    part: str, runs: Runs, converted: Convert, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf = converted("Q8_0")
    tried(gguf, target)
    if part == "vocabulary":

        def change(keys: Keys, tensors: Tensors) -> None:
            name = "tokenizer.ggml.merges"
            keys[name] = array(name, V.STRING, [*keys[name].value][:-1])

        gguf = rewrite(gguf, tmp_path / "other.gguf", change)
    elif part == "tokenizer":
        with (target / "tokenizer.json").open("a") as file:
            file.write(" ")
    elif part == "engine":
        monkeypatch.setattr(embedded, "info", lambda: dataclasses.replace(ENGINE, build="xllamacpp 2"))
    elif part == "binary":
        monkeypatch.setattr(trial, "_binary", lambda: [("x.so", 1, 2)])
    elif part == "texts":
        monkeypatch.setattr(trial, "PROBES", trial.PROBES + "x\n")
    elif part == "code":
        monkeypatch.setattr(usercache, "code_of", lambda *_: "another")
    else:
        monkeypatch.setattr(trial, "version", lambda name: "0")
    tried(gguf, target)
    assert runs.count == 2
    tried(gguf, target)
    assert runs.count == 2


def test_what_changed_while_it_was_tried_is_not_remembered(
    runs: Runs, converted: Convert, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hash was taken before the library read it, and what passed may have been the other file."""
    file, gguf = target / "tokenizer.json", converted("Q8_0")
    before = file.read_bytes()

    def changing(*given: object) -> list[Difference]:
        file.write_bytes(before + b" ")
        return runs(*given)

    monkeypatch.setattr(trial, "round_trip", changing)
    tried(gguf, target)
    file.write_bytes(before)
    monkeypatch.setattr(trial, "round_trip", runs)
    tried(gguf, target)
    assert runs.count == 2


def test_a_difference_or_an_engine_that_fails_is_never_remembered(
    runs: Runs, converted: Convert, target: Path, tmp_path: Path
) -> None:
    explained = Difference("x", (1,), (2,), limit="it breaks words")
    runs.found = [explained, Difference("y", (1,), (2,))]
    found = [tried(converted("Q8_0"), target) for _ in range(2)]
    assert runs.count == 2
    assert found[0].differences == found[1].differences == (f"llama.cpp splits {runs.found[1]}",)
    runs.error = EngineRunError(LOAD, "it does not load")
    assert "was not tried in llama.cpp: it does not load" in tried(converted("Q8_0"), target).notes[0].text
    assert runs.count == 3
    assert not (tmp_path / "cache").exists()
    runs.error, runs.found = None, [explained]
    texts = [tried(converted("Q8_0"), target).notes[0].text for _ in range(2)]
    assert runs.count == 4
    assert texts == [
        f"llama.cpp splits some probe texts differently: it breaks words{how}" for how in ("", trial.BEFORE)
    ]


@pytest.mark.parametrize("damage", ["bit", "empty", "other key", "no list", "another's", "directory", "off", "small"])
def test_what_is_no_entry_counts_for_nothing(
    damage: str, runs: Runs, converted: Convert, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried(converted("Q8_0"), target)
    (entry,) = (tmp_path / "cache").iterdir()
    if damage in ("bit", "empty"):
        entry.write_bytes(entry.read_bytes().replace(b"key", b"kez") if damage == "bit" else b"")
    elif damage in ("other key", "no list"):
        key = entry.stem.rpartition("-")[0]
        data = json.dumps({"key": "x", "limits": []} if damage == "other key" else {"key": key, "limits": 1}).encode()
        entry.unlink()
        entry.with_name(f"{key}-{sha256(data).hexdigest()}{trial.SUFFIX}").write_bytes(data)
    elif damage == "another's":
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    elif damage == "directory":
        entry.unlink()
        entry.mkdir()
    elif damage == "off":
        monkeypatch.setenv(usercache.ENVIRONMENT, "off")
    else:
        monkeypatch.setattr(trial, "LARGE", 513)
    tried(converted("Q8_0"), target)
    assert runs.count == 2


def test_without_an_engine_nothing_is_said_to_be_tried(
    runs: Runs, converted: Convert, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "info", lambda: None)
    with Trial(converted("Q8_0"), target) as one:
        assert one.result().notes[0].text.endswith("no embedded engine is installed")
    assert runs.count == 0


def test_it_comes_back_from_its_process_as_it_was() -> None:
    one = Tried(("a",), trial._notes(["b"], 3))
    assert tried_from_json(json.loads(json.dumps(one.json()))) == one


def test_its_error_is_raised_where_the_result_is_asked_for(target: Path, tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    with Trial(tmp_path / "no.gguf", target) as one, pytest.raises(ContainerError, match="no such file"):
        one.result()


def test_what_no_library_reads_is_said(runs: Runs, converted: Convert, target: Path, tmp_path: Path) -> None:
    (target / "tokenizer.json").unlink()
    (note,) = tried(converted("Q8_0"), target).notes
    assert note.level == "warning"
    assert "not tried in llama.cpp" in note.text
    assert "neither tokenizer.json nor" in note.text

    def without(keys: Keys, tensors: Tensors) -> None:
        for name in [name for name in keys if name.startswith("tokenizer.")]:
            del keys[name]

    bare = rewrite(converted("Q8_0"), tmp_path / "bare.gguf", without)
    assert "no vocabulary in this file" in tried(bare, target).notes[0].text
    assert runs.count == 0


def test_nothing_is_left_when_the_rest_fails(fixtures: Path, converted: Convert, tmp_path: Path) -> None:
    """Neither a process nor a file: the tokenizer cannot be read while tensors are compared and the engine loads."""
    pytest.importorskip("xllamacpp")
    target = Path(shutil.copytree(fixtures / "tiny-js" / "target", tmp_path / "target"))
    (target / "tokenizer.json").write_text("{")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    code = (
        "import sys; from pathlib import Path; from dflash_convert.target import Target\n"
        "from dflash_convert.verification.tensors import verify\n"
        "try: verify(Path(sys.argv[1]), Path(sys.argv[2]), Target.read(Path(sys.argv[3])), threads=2, engine=True)\n"
        "except Exception as error: print(type(error).__name__)\n"
        "import subprocess; print(subprocess.run(['ps', '-o', 'args=', '--ppid', str(__import__('os').getpid())],"
        " capture_output=True, text=True).stdout.count('dflash'))"
    )
    arguments = (converted("Q8_0"), fixtures / "tiny-js" / "drafter", target)
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["TokenizerError", "0"]
    assert [*scratch.iterdir()] == []


@pytest.mark.engine
def test_one_vocabulary_differs_beside_right_tensors(fixtures: Path, converted: Convert, target: Path) -> None:
    found = verify(converted("Q8_0"), fixtures / "tiny-js" / "drafter", Target.read(target), threads=2, engine=True)
    alone = verify(converted("Q8_0"), fixtures / "tiny-js" / "drafter", Target.read(target), threads=1)
    assert found == dataclasses.replace(alone, notes=(*alone.notes, *tried(converted("Q8_0"), target).notes))


def test_an_engine_that_only_splits_does_not_warm_up() -> None:
    _, environment = embedded.command(ENGINE, to_split(Path("x.gguf")), 1, "key")
    assert '"splits_only": true' in environment["DFLASH_ENGINE_CONFIG"]
