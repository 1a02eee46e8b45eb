"""With --json stdout holds one JSON document, whatever happens: the result, or the error in one form."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from dflash_convert import errors
from dflash_convert.cli import COMMANDS, cli, main, terminal
from dflash_convert.cli.terminal import as_text

Run = Callable[[str], tuple[int, Any, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fixtures: Path) -> Run:
    """Exit code, the one document on stdout, and stderr of a line; {tiny} is the bundled pair."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("DFLASH_LLAMA_SERVER", raising=False)
    monkeypatch.chdir(tmp_path)
    tiny = fixtures / "tiny-js"
    Path("there.gguf").write_bytes(b"")
    Path("bad.gguf").write_bytes(b"no GGUF at all")
    Path("bad.toml").write_text("types = 7\n", "utf-8")

    def call(line: str) -> tuple[int, Any, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([word.replace("{tiny}", str(tiny)) for word in line.split()])
        done = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, json.loads(done.out), done.err

    return call


UNKNOWN = {name: f"{name} --json --no-such-option" for name in COMMANDS}
FAILING = {
    "convert": ("{tiny}/drafter --json", "UsageError", 2),
    "convert, no drafter": ("convert {tiny}/target --target-model-dir {tiny}/target --json", "FamilyError", 3),
    "convert, no directory": ("nowhere --json --target-model-dir nowhere", "UsageError", 2),
    "convert, output there": (
        "{tiny}/drafter --target-model-dir {tiny}/target -o there.gguf --json",
        "OutputError",
        9,
    ),
    "convert, Hub offline": ("owner/name --target-model-dir {tiny}/target --json", "HubError", 8),
    "quantize": ("quantize bad.gguf out.gguf q8_0 --json", "ContainerError", 3),
    "inspect": ("inspect bad.gguf --json", "ContainerError", 3),
    "check": ("check bad.gguf {tiny}/target --json", "ContainerError", 3),
    "verify": ("verify nowhere.gguf {tiny}/drafter --json", "ContainerError", 3),
    "validate": ("validate nowhere.gguf {tiny}/target-bf16.gguf --json", "ContainerError", 3),
    "validate, bad number": ("validate a.gguf b.gguf --min-acceptance 7 --json", "UsageError", 2),
    "compare": ("compare {tiny}/target-bf16.gguf --json", "UsageError", 2),
    "compare, no such file": ("compare nowhere.gguf ngram-mod --json", "ContainerError", 3),
    "tune": ("tune {tiny}/target-bf16.gguf --json", "UsageError", 2),
    "head": ("head {tiny}/target-bf16.gguf {tiny}/target out.gguf --json", "UsageError", 2),
    "diff": ("diff bad.gguf bad.gguf --json", "ContainerError", 3),
    "migrate": ("migrate {tiny}/target-bf16.gguf out.gguf --json", "UsageError", 2),
    "package": ("package bad.gguf --out made --json", "ContainerError", 3),
    "publish": ("publish nowhere owner/name --json", "ConfigError", 3),
    "batch": ("batch bad.toml --json", "ConfigError", 3),
    "doctor": ("doctor stray --json", "UsageError", 2),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_that_does_not_exist(name: str, run: Run) -> None:
    code, document, shown = run(UNKNOWN[name])
    assert code == 2
    assert document["error"].keys() == {"name", "message", "tip", "exit_code"}
    assert document["error"]["name"] == "UsageError"
    assert document["error"]["message"] in shown


def test_every_command_is_in_the_table() -> None:
    assert {name.partition(",")[0] for name in FAILING} == COMMANDS.keys()


@pytest.mark.parametrize("case", FAILING)
def test_an_error_is_a_document(case: str, run: Run) -> None:
    line, name, expected = FAILING[case]
    code, document, shown = run(line)
    assert (code, document["error"]["name"], document["error"]["exit_code"]) == (expected, name, expected)
    assert issubclass(getattr(errors, name), errors.DflashError)
    assert document["error"]["message"] in shown, "a person sees the same sentence"
    assert document["error"]["tip"] is None or document["error"]["tip"] in shown


def test_a_command_s_own_document_stays_alone(run: Run, fixtures: Path, tmp_path: Path) -> None:
    """check lists its findings and ends with 4: no second document follows."""
    target = shutil.copytree(fixtures / "tiny-js" / "target", tmp_path / "other")
    config = json.loads((target / "config.json").read_text("utf-8"))
    (target / "config.json").write_text(json.dumps(config | {"hidden_size": 4096}), "utf-8")
    code, document, shown = run("check {tiny}/drafter other --json")
    assert (code, list(document)) == (4, ["findings"])
    assert "ERROR" in shown


@pytest.mark.parametrize(
    ("raised", "name", "code"),
    [(ZeroDivisionError("x"), "DflashError", 1), (KeyboardInterrupt(), "Interrupted", 130)],
)
def test_what_nobody_foresaw(
    raised: BaseException, name: str, code: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: click.Group, ctx: click.Context) -> None:
        raise raised

    monkeypatch.setattr(type(cli), "invoke", fail)
    found, document, _ = run("doctor --json")
    assert (found, document["error"]["name"]) == (code, name)


def test_what_belongs_to_the_engine_is_no_option_of_ours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["validate", "nowhere.gguf", "nowhere.gguf", "--", "--json"])
    assert capsys.readouterr().out == ""


def test_a_document_drives_no_terminal() -> None:
    hostile = {"a": "\x9b31m\u202e\ud800", "b": "漢字\n"}
    assert as_text(hostile) == '{\n "a": "\\u009b31m\\u202e\\ud800",\n "b": "漢字\\n"\n}'
    assert json.loads(as_text(hostile)) == hostile


def test_documents_are_printed_in_one_place() -> None:
    """So that no command forgets to say that it has printed its own."""
    rooms = Path(terminal.__file__).parent
    assert [path.name for path in rooms.glob("*.py") if "json.dumps(" in path.read_text("utf-8")] == ["terminal.py"]


def test_without_memory_no_traceback_is_asked_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("dflash_convert.hub.resolve_drafter", none)
    code, found, _ = run("convert {tiny}/drafter --target-model-dir {tiny}/target --json --dry-run")
    assert code == 1
    assert found["error"]["message"] == "there is not enough memory for this"
    assert "ulimit" in found["error"]["tip"]
