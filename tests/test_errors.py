"""Messages that teach: each mistake ends in one sentence, a cure, the right exit code, and no traceback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_hub import FakeHub

from dflash_convert import errors
from dflash_convert.cli import main

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """The command line in this process: (exit code, stdout, stderr)."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def run(*args: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in args])
        code = ended.value.code
        captured = capsys.readouterr()
        return code if isinstance(code, int) else 1, captured.out, captured.err

    return run


@pytest.fixture
def place(tmp_path: Path, fixtures: Path) -> dict[str, Path]:
    """The bundled pair, and directories with one thing wrong each."""
    tiny = fixtures / "tiny-js"
    config = json.loads((tiny / "drafter" / "config.json").read_text("utf-8"))

    def directory(name: str, files: dict[str, Any], weights: bool = True) -> Path:
        path = tmp_path / name
        path.mkdir()
        for file, content in files.items():
            (path / file).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        if weights:
            (path / "model.safetensors").symlink_to(tiny / "drafter" / "model.safetensors")
        return path

    gemma = {"architectures": ["Gemma4ForConditionalGeneration"], "text_config": {"hidden_size": 128}}
    return {
        "drafter": tiny / "drafter",
        "target": tiny / "target",
        "gguf": tiny / "target-bf16.gguf",
        "gemma": directory("gemma-4", {"config.json": gemma}),
        "no-tokenizer": directory("no-tokenizer", {"config.json": {"architectures": ["Qwen3ForCausalLM"]}}, False),
        "empty": directory("empty", {}, False),
        "typo": directory("typo", {"config.json": {**config, "architectures": ["DFlashDraftModle"]}}),
        "alien": directory("alien", {"config.json": {"architectures": ["WhisperEncoder"]}}),
        "bin": directory("bin", {"config.json": config, "pytorch_model.bin": b"\x80\x02"}, False),
        "bare": directory("bare", {"config.json": config}, False),
        "escape": directory(
            "escape", {"config.json": {**config, "architectures": ["\x1b]0;owned\x07\x1b[2J\nERROR x"]}}
        ),
        "half": directory("half", {"config.json": b'{"architectures": ["\\ud83d"]}'}),
    }


# name -> (arguments, exit code, words of the sentence, words of the cure)
MISTAKES: dict[str, tuple[list[str], int, str, str]] = {
    "target given as the drafter": (
        ["{gemma}", "--target-model-dir", "{drafter}"],
        3,
        "Gemma4ForConditionalGeneration is a Gemma 4 target model, not a DFlash drafter; did you swap the arguments?",
        "dflash-convert DRAFTER --target-model-dir TARGET",
    ),
    "a Qwen target given as the drafter": (
        ["{target}", "--target-model-dir", "{target}"],
        3,
        "Qwen3ForCausalLM is a Qwen 3 target model, not a DFlash drafter; did you swap the arguments?",
        "DRAFTER --target-model-dir TARGET",
    ),
    "no target": (["{drafter}"], 2, "--target-model-dir is missing", "for example Qwen/Qwen3-8B"),
    "target without tokenizer files": (
        ["{drafter}", "--target-model-dir", "{no-tokenizer}"],
        3,
        "no tokenizer files; found config.json, expected one of tokenizer.json, tokenizer.model",
        "Fetch the target's tokenizer files",
    ),
    "target without anything": (["{drafter}", "--target-model-dir", "{empty}"], 3, "no config.json", "checkpoint"),
    "unknown architecture": (
        ["{typo}", "--target-model-dir", "{target}"],
        3,
        "architecture DFlashDraftModle is not a known drafter, the nearest is DFlashDraftModel",
        "known: ",
    ),
    "an architecture that is no language model": (
        ["{alien}", "--target-model-dir", "{target}"],
        3,
        "architecture WhisperEncoder is not a known drafter",
        "known: ",
    ),
    "only .bin files": (
        ["{bin}", "--target-model-dir", "{target}"],
        3,
        "no .safetensors file, only pytorch_model.bin, which can run code when it is loaded",
        "safetensors",
    ),
    "no weights": (["{bare}", "--target-model-dir", "{target}"], 3, "has no weights", "finish the download"),
    "drafter does not exist": (
        ["/no/such/drafter", "--target-model-dir", "{target}"],
        2,
        "no such directory",
        "Name a",
    ),
    "a GGUF as the drafter": (["{gguf}", "--target-model-dir", "{target}"], 2, "not a checkpoint to convert", ""),
    "a type that does not exist": (
        ["{drafter}", "--target-model-dir", "{target}", "-t", "q9"],
        2,
        "type 'q9'",
        "q4_k_m",
    ),
    "an override that is none": (
        ["{drafter}", "--target-model-dir", "{target}", "--tensor-type", "x"],
        2,
        "'x' is not REGEX=TYPE",
        "--help",
    ),
    "an option that does not exist": (["{drafter}", "--outtpe", "q8_0"], 2, "No such option", "--help"),
    "no threads": (["{drafter}", "--target-model-dir", "{target}", "--threads", "0"], 2, "--threads", "--help"),
    "quantize a target": (
        ["quantize", "{gguf}", "{tmp}/x.gguf", "q4_0"],
        3,
        "'qwen3' is not a drafter's",
        "llama-quantize",
    ),
    "quantize what is no GGUF": (
        ["quantize", "{target}/config.json", "{tmp}/x.gguf", "q4_0"],
        3,
        "not a GGUF file",
        "",
    ),
    "quantize what does not exist": (["quantize", "{tmp}/no.gguf", "{tmp}/x.gguf", "q4_0"], 3, "no such file", ""),
    "inspect what is no GGUF": (["inspect", "{target}/tokenizer.json"], 3, "not a GGUF file", ""),
    "check what does not exist": (["check", "/no/such/a", "/no/such/b"], 2, "/no/such/a", ""),
    "verify what does not exist": (["verify", "/no/such/a", "{drafter}"], 3, "/no/such/a: no such file", ""),
    "diff what does not exist": (["diff", "/no/such/a", "{gguf}"], 3, "/no/such/a: no such file", ""),
    "no arguments for quantize": (["quantize"], 2, "Missing argument", "--help"),
    "terminal escapes in a config": (
        ["{escape}", "--target-model-dir", "{target}"],
        3,
        "\\x1b]0;owned\\x07\\x1b[2J",
        "known: ",
    ),
    "half a character in a config": (
        ["{half}", "--target-model-dir", "{target}"],
        3,
        "config.json: contains an unpaired surrogate",
        "",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake(mistake: str, call: Call, place: dict[str, Path], tmp_path: Path) -> None:
    args, code, words, cure = MISTAKES[mistake]
    before = sorted(tmp_path.rglob("*"))
    got, out, err = call(*(a.format(**{k: str(v) for k, v in place.items()}, tmp=tmp_path) for a in args))
    lines = [line for line in err.splitlines() if not line.startswith("TIP")]
    tips = [line for line in err.splitlines() if line.startswith("TIP")]
    assert (got, out) == (code, ""), err
    assert lines[0].startswith("ERROR ")
    assert words in lines[0]
    assert cure in " ".join(tips)
    assert len(lines) == 1
    assert not set(err) & {chr(c) for c in (*range(9), *range(11, 32), 127)}
    assert sorted(tmp_path.rglob("*")) == before


def test_no_arguments_show_an_example() -> None:
    done = subprocess.run([sys.executable, "-m", "dflash_convert"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Example: dflash-convert " in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def test_every_error_class_has_its_exit_code() -> None:
    """The table of the errors module is the table of the command line."""
    table = {"DflashError": 1, "UsageError": 2, "InputError": 3, "PairingError": 4, "VerificationError": 5}
    table |= {"ValidationError": 6, "EngineError": 7, "HubError": 8, "OutputError": 9}
    for name, code in table.items():
        assert getattr(errors, name).exit_code == code
    inputs = ("ConfigError", "CheckpointError", "TokenizerError", "ContainerError", "FamilyError")
    assert {getattr(errors, name).exit_code for name in inputs} == {3}


def test_tracebacks_only_with_vv(call: Call, place: dict[str, Path]) -> None:
    for option, shown in (("-v", False), ("-vv", True)):
        code, _, err = call(place["bin"], "--target-model-dir", place["target"], option)
        assert code == 3
        assert ("Traceback" in err) is shown
        assert err.splitlines()[-2].startswith("ERROR ")


def test_a_name_that_is_not_utf8_comes_out_as_its_bytes(fixtures: Path, tmp_path: Path) -> None:
    """A directory and an output whose names are no UTF-8: converted, and the path on stdout is the file's own."""
    where = os.fsencode(tmp_path) + b"/d\xff"
    try:
        Path(os.fsdecode(where)).mkdir()
    except OSError:
        pytest.skip("this file system allows only UTF-8 names")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(fixtures / "tiny-js" / "drafter" / name, where + b"/" + name.encode())
    output = where + b"/x.gguf"
    args = [sys.executable, "-m", "dflash_convert", where, "--target-model-dir", fixtures / "tiny-js" / "target"]
    done = subprocess.run([*args, "-o", output], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == output + b"\n"
    assert Path(os.fsdecode(output)).exists()


SECRET = "hf_" + "ThisIsNotARealToken0123456789abcd"


@pytest.mark.parametrize("verbosity", [[], ["-vv"]], ids=["plain", "vv"])
def test_the_token_is_never_shown(verbosity: list[str], fixtures: Path, tmp_path: Path) -> None:
    """A refusing Hub, with the token in the environment: not in messages, tracebacks, logs or files."""
    target = fixtures / "tiny-js" / "target"
    with FakeHub() as hub:
        hub.add("owner/gated", {"config.json": b"{}"}, gate=403)
        hub.add("owner/target", {p.name: p.read_bytes() for p in target.iterdir()}, private=True)
        env = {**os.environ, **hub.environment(tmp_path), "HF_TOKEN": SECRET}
        base = [sys.executable, "-m", "dflash_convert", str(fixtures / "tiny-js" / "drafter"), "--target-model-dir"]
        gated = subprocess.run([*base, "owner/gated", *verbosity], capture_output=True, text=True, env=env, check=False)
        output = tmp_path / "x.gguf"
        fine = subprocess.run(
            [*base, "owner/target", "-o", str(output), *verbosity], capture_output=True, text=True, env=env, check=False
        )
        assert any(request.token for request in hub.log)  # it was sent
    assert (gated.returncode, fine.returncode) == (8, 0), gated.stderr + fine.stderr
    for text in (gated.stdout, gated.stderr, fine.stdout, fine.stderr):
        assert SECRET not in text
        assert SECRET[3:] not in text
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
