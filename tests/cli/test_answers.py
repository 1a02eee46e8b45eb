"""Lines that mean another command, another program's option, or nothing at all get the right words."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import gguf_builder as gb
import pytest

from dflash_convert.cli import COMMANDS, main
from dflash_convert.cli.answers import OPTIONS
from dflash_convert.cli.quantize import TYPES
from dflash_convert.container.reader import open_gguf
from dflash_convert.gguf_kind import kind_of
from quant.recipe import FTYPES


class Ended(NamedTuple):
    code: object
    out: str
    err: str


Run = Callable[..., Ended]
Pair = tuple[Path, Path]


@pytest.fixture
def pair(fixtures: Path) -> Pair:
    return fixtures / "tiny-js/drafter", fixtures / "tiny-js/target"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)

    def call(*line: object) -> Ended:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in line])
        return Ended(ended.value.code, *capsys.readouterr())

    return call


TOKENIZER = gb.string("tokenizer.ggml.model", "gpt2")
FILES: dict[str, tuple[bytes, str]] = {
    "projector": (gb.gguf([gb.string("general.architecture", "clip")], [gb.ONE], bytes(32)), "a multimodal projector"),
    "lora": (
        gb.gguf(
            [
                gb.string("general.architecture", "qwen3"),
                gb.string("general.type", "adapter"),
                gb.string("adapter.type", "lora"),
            ],
            [gb.ONE],
            bytes(32),
        ),
        "a LoRA adapter",
    ),
    "imatrix": (gb.gguf([gb.string("general.type", "imatrix")], [gb.ONE], bytes(32)), "an importance matrix"),
    "control": (
        gb.gguf([gb.string("general.architecture", "controlvector")], [gb.ONE], bytes(32)),
        "a control vector",
    ),
    "vocabulary": (gb.gguf([gb.string("general.architecture", "llama"), TOKENIZER]), "a vocabulary without weights"),
    "fork": (
        gb.gguf([gb.string("general.architecture", "dflash-draft")], [gb.ONE], bytes(32)),
        "a drafter in a fork's dialect (dflash-draft)",
    ),
    "model": (gb.gguf([gb.string("general.architecture", "qwen3")], [gb.ONE], bytes(32)), "a model (qwen3)"),
    "drafter": (gb.gguf([gb.ARCH], [gb.ONE], bytes(32)), "a DFlash drafter for llama.cpp"),
    "nothing": (gb.gguf([], [gb.ONE], bytes(32)), "a GGUF that does not say what it is"),
}


@pytest.mark.parametrize("name", FILES)
def test_inspect_names_what_any_gguf_is(name: str, run: Run, tmp_path: Path) -> None:
    data, told = FILES[name]
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    assert kind_of(open_gguf(path)).text.startswith(told)
    shown = run("inspect", path)
    assert shown.code == 0, shown.err
    assert told in shown.out
    assert "None" not in shown.out + shown.err
    document = json.loads(run("inspect", path, "--json").out)
    assert document["what"].startswith(told)
    assert (document["kind"] == "drafter-gguf") is (name in ("fork", "drafter"))


@pytest.mark.parametrize("name", FILES)
def test_convert_of_a_gguf_names_what_takes_it(name: str, run: Run, tmp_path: Path, pair: Pair) -> None:
    data, told = FILES[name]
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    tip = {
        "drafter": "dflash-convert quantize",
        "fork": "dflash-convert migrate",
        "model": "behind --target-model-dir",
        "imatrix": "--imatrix FILE",
        "projector": "--mmproj FILE",
        "lora": "--lora FILE",
    }.get(name, "DRAFTER is the drafter's checkpoint")
    for line in ([path], [path, "--target-model-dir", pair[1]], ["convert", path]):
        ended = run(*line)
        assert ended.code == 2
        assert f"{path} is {told}" in ended.err
        assert tip in ended.err
    if name == "drafter":
        assert "dflash-convert validate" in ended.err


def test_no_output_of_inspect_says_none(run: Run, pair: Pair, fixtures: Path) -> None:
    for path in (*pair, fixtures / "tiny-js/target-bf16.gguf"):
        ended = run("inspect", path)
        assert ended.code == 0
        assert "None" not in ended.out


def test_a_directory_where_a_gguf_belongs_names_convert(run: Run, pair: Pair, tmp_path: Path) -> None:
    for line in (
        ["quantize", pair[0], "o.gguf", "q8_0"],
        ["migrate", pair[0], "o.gguf"],
        ["validate", pair[0], pair[0]],
        ["diff", pair[0], pair[0]],
        ["verify", pair[0], pair[0]],
        ["head", pair[0], pair[1], "o.gguf", "--full"],
    ):
        ended = run(*line)
        assert ended.code == 3, line
        assert f"{pair[0]}: a directory, not a GGUF" in ended.err
        assert f"dflash-convert {pair[0]} --target-model-dir TARGET" in ended.err
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.gguf").write_bytes(b"GGUF")
    assert "it holds a.gguf: name the file" in run("quantize", "d", "o.gguf", "q8_0").err
    assert "no config.json, only GGUFs (a.gguf)" in run("d", "--target-model-dir", pair[1]).err


MISSPELLED = [
    ("q4km", "did you mean q4_k_m?"),
    ("Q4-K-M", "did you mean q4_k_m?"),
    ("q8", "did you mean q8_0?"),
    ("int8", "for example q8_0 or q4_k_m"),
    ("fp16", "did you mean f16"),
    ("bfloat16", "did you mean bf16"),
    ("iq4nl", "did you mean iq4_nl?"),
    ("q4", "q4_0"),
    ("q5_k_l", "q5_k_m"),
]


@pytest.mark.parametrize(("wrong", "tip"), MISSPELLED)
def test_a_type_that_is_spelled_almost_so(wrong: str, tip: str, run: Run, pair: Pair) -> None:
    ended = run(pair[0], "--target-model-dir", pair[1], "-t", wrong, "--dry-run")
    assert ended.code == 2
    assert f"unknown output type {wrong!r}" in ended.err
    assert tip in ended.err
    assert "dflash-convert quantize --help lists every type" in ended.err
    assert len(ended.err.splitlines()[-1]) < 160


def test_types_in_one_option(run: Run, pair: Pair) -> None:
    base = [pair[0], "--target-model-dir", pair[1], "--dry-run"]
    one = run(*base, "-t", "q8_0,q4_0, f16")
    several = run(*base, "-t", "q8_0", "-t", "q4_0", "-t", "f16")
    assert one.code == 0
    assert one.out == several.out
    assert run(*base, "-t", "q8_0,,q4_0").code == 2


def test_the_pages_show_an_example_and_the_types(run: Run) -> None:
    page = run("convert", "--help").out
    assert "Example: dflash-convert z-lab/" in page
    assert "dflash-convert quantize --help" in " ".join(page.split())
    listed = run("quantize", "--help").out
    assert "Types: f32, f16, q4_0" in listed
    assert TYPES.split() == [name.lower() for name in FTYPES]
    assert "Example: " in listed


@pytest.mark.parametrize("option", OPTIONS)
def test_options_of_other_programs_are_answered(option: str, run: Run) -> None:
    ended = run("somewhere", option, "x")
    assert ended.code == 2
    assert f"there is no option {option} here" in ended.err
    assert OPTIONS[option] in ended.err


def test_options_that_exist_are_not_answered() -> None:
    import importlib

    for name in ("convert", "quantize"):
        command = importlib.import_module(f"dflash_convert.cli.{name}").command
        own = {spelled for parameter in command.params for spelled in parameter.opts}
        assert not own & OPTIONS.keys()


def test_every_option_of_llama_cpps_converter_exists_or_is_answered() -> None:
    """Those of b11434's convert_hf_to_gguf.py."""
    from dflash_convert.cli.convert import command

    theirs = """--vocab-only --outfile --outtype --bigendian --use-temp-file --no-lazy --model-name --verbose
    --split-max-tensors --split-max-size --dry-run --no-tensor-first-split --metadata --print-supported-models --remote
    --mmproj --mtp --no-nextn --no-mtp --dspark --mistral-format --disable-mistral-community-chat-template --fuse-qkv
    --fuse-gate-up-exps --fp8-as-q8 --target-model-dir"""
    own = {spelled for parameter in command.params for spelled in parameter.opts}
    assert set(theirs.split()) <= own | OPTIONS.keys()


EMPTY = [
    ([""], "argument 1 is empty"),
    (["convert", "  "], "argument 2 is empty"),
    (["x", "--target-model-dir", ""], "--target-model-dir has an empty value"),
    (["x", "--target-model-dir="], "--target-model-dir has an empty value"),
    (["x", "-o", ""], "-o has an empty value"),
    (["quantize", "", "o.gguf", "q8_0"], "argument 2 is empty"),
    (["inspect", ""], "argument 2 is empty"),
    (["check", "x", ""], "argument 3 is empty"),
    (["verify", "x", ""], "argument 3 is empty"),
    (["validate", "x", "y", "--prompts", ""], "--prompts has an empty value"),
    (["package", "x", "-o", ""], "-o has an empty value"),
    (["publish", "", "a/b"], "argument 2 is empty"),
    (["batch", ""], "argument 2 is empty"),
    (["tune", ""], "argument 2 is empty"),
    (["compare", "", "x"], "argument 2 is empty"),
]


@pytest.mark.parametrize(("line", "told"), EMPTY)
def test_an_empty_argument_is_refused(line: list[str], told: str, run: Run, tmp_path: Path) -> None:
    ended = run(*line)
    assert ended.code == 2
    assert told in ended.err
    assert "unset variable" in ended.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", [["x", "-o", "-"], ["quantize", "-", "o", "q8_0"], ["quantize", "x", "-", "q8_0"]])
def test_a_dash_is_no_file(line: list[str], run: Run, tmp_path: Path) -> None:
    ended = run(*line)
    assert ended.code == 2
    assert "is -: nothing is read from standard input or written to standard output" in ended.err
    assert list(tmp_path.iterdir()) == []


def test_what_follows_two_dashes_is_the_servers(run: Run) -> None:
    assert "empty" not in run("validate", "a.gguf", "b.gguf", "--", "--alias", "", "-").err


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_is_a_word_too(command: str | None, run: Run) -> None:
    words = [] if command is None else [command]
    asked, usual = run("help", *words), run(*words, "--help")
    assert asked.code == usual.code == 0
    assert asked.out == usual.out
    assert asked.out.startswith("Usage: dflash-convert")


def test_help_of_nothing_known_is_the_main_page(run: Run) -> None:
    assert run("help", "nothing").out == run("--help").out


def test_a_damaged_gguf_says_so_itself(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    ended = run("x.gguf")
    assert ended.code == 3
    assert "too few for a GGUF header" in ended.err
    shutil.rmtree(tmp_path)
