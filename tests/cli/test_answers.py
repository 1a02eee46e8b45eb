"""Lines that mean another command, another program's option, or nothing at all get the right words."""

from __future__ import annotations

import json
import os
import re
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
    ([""], "DRAFTER is empty"),
    (["convert", "  "], "DRAFTER is empty"),
    (["x", "--target-model-dir", ""], "--target-model-dir has an empty value"),
    (["x", "--target-model-dir="], "--target-model-dir has an empty value"),
    (["x", "-o", ""], "-o has an empty value"),
    (["quantize", "", "o.gguf", "q8_0"], "IN.gguf is empty"),
    (["inspect", ""], "PATH is empty"),
    (["check", "x", ""], "TARGET is empty"),
    (["verify", "x", ""], "DRAFTER is empty"),
    (["validate", "x", ""], "TARGET.gguf is empty"),
    (["validate", "x", "", "--quikc"], "argument 3 is empty"),
    (["validate", "x", "y", "--prompts", ""], "--prompts has an empty value"),
    (["package", "x", "-o", ""], "-o has an empty value"),
    (["publish", "", "a/b"], "DIR is empty"),
    (["batch", ""], "RELEASE.toml is empty"),
    (["tune", ""], "TARGET.gguf is empty"),
    (["compare", "", "x"], "TARGET.gguf is empty"),
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


@pytest.fixture
def files(run: Run, fixtures: Path, tmp_path: Path) -> Path:
    """t.gguf, d.gguf, and the target alone in a directory."""
    pair = fixtures / "tiny-js"
    (tmp_path / "dir").mkdir()
    shutil.copy(pair / "target-bf16.gguf", tmp_path / "t.gguf")
    shutil.copy(pair / "target-bf16.gguf", tmp_path / "dir" / "t.gguf")
    assert run(pair / "drafter", "--target-model-dir", pair / "target", "-t", "q8_0", "-o", "d.gguf").code == 0
    return tmp_path


SWAPPED = [
    ("validate ./t.gguf d.gguf --quick", "validate d.gguf t.gguf --quick"),
    ("tune d.gguf t.gguf --rounds 3", "tune t.gguf d.gguf --rounds 3"),
    ("compare d.gguf t.gguf ngram-mod", "compare t.gguf d.gguf ngram-mod"),
    ("compare --targets d.gguf t.gguf dir/t.gguf", "compare --targets dir/t.gguf t.gguf d.gguf"),
    ("check t.gguf d.gguf", "check d.gguf t.gguf"),
    ("check TARGET DRAFTER", "check DRAFTER TARGET"),
    ("check t.gguf DRAFTER", "check DRAFTER t.gguf"),
]


def test_swapped_drafter_and_target_get_the_line_that_was_meant(run: Run, pair: Pair, files: Path) -> None:
    def words(line: str) -> list[str]:
        return line.replace("DRAFTER", str(pair[0])).replace("TARGET", str(pair[1])).split()

    for line, meant in SWAPPED:
        ended = run(*words(line))
        assert ended.code in (3, 4), line
        assert f"in each other's place: dflash-convert {' '.join(words(meant))}\n" in ended.err
    assert "in each other's place" not in run("tune", "d.gguf", "d.gguf").err


def test_a_directory_for_a_targets_gguf_says_where_one_comes_from(run: Run, pair: Pair, files: Path) -> None:
    for line in (["validate", "d.gguf"], ["tune"], ["compare"]):
        ended = run(*line, pair[1], *(["d.gguf"] if len(line) == 1 else []))
        assert ended.code == 3
        assert "get the target's GGUF from the Hub" in ended.err
        assert "convert_hf_to_gguf.py (docs/convert.md#the-targets-gguf)" in ended.err
        assert "--target-model-dir" not in ended.err
        assert "it holds t.gguf: name the file" in run(*line, "dir", *(["d.gguf"] if len(line) == 1 else [])).err
    page = (Path(__file__).resolve().parents[2] / "docs/convert.md").read_text("utf-8")
    assert "## The target's GGUF\n" in page


def test_check_names_the_gguf_that_it_read_in_a_directory(run: Run, files: Path) -> None:
    ended = run("check", "d.gguf", "dir")
    assert ended.code == 0
    read = str(Path("dir/t.gguf"))
    assert "t.gguf stands for the target: the only GGUF there" in ended.err
    assert f"d.gguf fits {read}" in ended.err
    assert f"dflash-convert validate d.gguf {read}\n" in ended.err


QUANTIZE = [
    ("in.gguf -t q4_0", "in.gguf OUT.gguf q4_0"),
    ("in.gguf out.gguf -tq4_0 --threads 2", "in.gguf out.gguf q4_0"),
    ("in.gguf -o out.gguf --outtype=q4_0", "in.gguf out.gguf q4_0"),
    ("in.gguf --outfile out.gguf q4_0", "in.gguf out.gguf q4_0"),
    ("--type q4_0", "IN.gguf OUT.gguf q4_0"),
]


@pytest.mark.parametrize(("line", "meant"), QUANTIZE)
def test_quantize_with_an_option_for_type_or_output_gets_the_whole_line(line: str, meant: str, run: Run) -> None:
    ended = run("quantize", *line.split())
    assert ended.code == 2
    assert f"dflash-convert quantize {meant}\n" in ended.err


@pytest.mark.parametrize("option", ["--typ", "--type", "--quant", "--quantise"])
def test_an_option_that_is_almost_another_programs(option: str, run: Run) -> None:
    ended = run("x", option, "q8_0")
    assert ended.code == 2
    assert "-t TYPE (--outtype)" in ended.err
    assert "-t TYPE" not in run("validate", "x", "y", option, "q8_0").err, "there -t is for threads"


def test_a_missing_argument_shows_the_usage(run: Run) -> None:
    for line, usage in (
        (["validate", "d.gguf"], "dflash-convert validate [OPTIONS] DRAFTER.gguf TARGET.gguf"),
        (["quantize"], "dflash-convert quantize [OPTIONS] IN.gguf OUT.gguf TYPE"),
    ):
        ended = run(*line)
        assert ended.code == 2
        assert f"usage: {usage}" in ended.err


def test_an_output_that_exists_is_refused_before_the_work_is_shown(run: Run, pair: Pair, files: Path) -> None:
    ended = run(pair[0], "--target-model-dir", pair[1], "-t", "q8_0", "-o", "d.gguf")
    assert ended.code == 9
    assert ended.err == "ERROR d.gguf exists already\nTIP   --force replaces it; another -o leaves it as it is\n"


def test_a_finished_file_is_named_once_as_done(run: Run, pair: Pair) -> None:
    """By its path on stdout; before that only as what is to be written."""
    ended = run(pair[0], "--target-model-dir", pair[1], "-t", "q8_0,q4_0", "-o", ".")
    assert ended.out.split() == ["dflash-target-Q8_0.gguf", "dflash-target-Q4_0.gguf"]
    lines = [line for line in ended.err.splitlines() if not line.startswith("  ")]
    assert [line for line in lines if ".gguf," in line or ".gguf:" in line][:2] == [
        line for line in lines if line.startswith("to be written: dflash-target-Q")
    ]
    assert [line.split(",")[0] for line in lines if line.startswith("done: ")] == ["done: Q8_0", "done: Q4_0"]


def test_a_file_in_a_directorys_place_is_read_as_it_or_told_what_is_taken(run: Run, pair: Pair, files: Path) -> None:
    winding = files / "dir" / ".." / "checkpoint" / "." / "model.safetensors"
    shutil.copytree(pair[0], files / "checkpoint")
    for line in ([winding, "--target-model-dir", pair[1], "--dry-run"], ["check", winding, "t.gguf"]):
        ended = run(*line)
        assert ended.code == 0, ended.err
        assert f"{winding} is read as {files / 'checkpoint'}\n" in ended.err
    (files / "notes.txt").write_text("x")
    for line, taken in (
        (["notes.txt", "--target-model-dir", pair[1]], ("checkpoint's directory", "config.json", "safetensors")),
        (["checkpoint", "--target-model-dir", "notes.txt"], ("directory", "config.json", "GGUF")),
    ):
        ended = run(*line)
        assert ended.code == 2
        assert "a directory was expected, this is a file" in ended.err
        assert all(word in ended.err.split("TIP")[1] for word in taken)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_is_called_so(run: Run, pair: Pair) -> None:
    os.mkfifo("p.gguf")
    target = pair[1].parent / "target-bf16.gguf"
    for line in (
        ["p.gguf", "--target-model-dir", pair[1]],
        [pair[0], "--target-model-dir", "p.gguf"],
        ["check", "p.gguf", pair[1]],
        ["inspect", "p.gguf"],
        ["quantize", "p.gguf", "x.gguf", "q8_0"],
        ["validate", "p.gguf", target],
        ["compare", target, "p.gguf"],
        ["package", "p.gguf", "-o", "x"],
        [pair[0], "--target-model-dir", pair[1], "--tokenizer-model", "p.gguf", "--dry-run"],
    ):
        ended = run(*line)
        assert re.search(r"p\.gguf: (a directory was expected, this is )?a pipe", ended.err), line
        assert "TIP   files are read more than once and in places, a pipe cannot be" in ended.err, line
