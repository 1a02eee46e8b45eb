"""Every verdict and exit code, with a fake llama-server in the engine's place."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dflash_convert.cli.validate import saving
from dflash_convert.validation.result import from_json


@pytest.fixture
def validate(
    fixtures: Path,
    drafters: dict[str, Path],
    cli: Callable[..., Any],
    fake_server: Callable[[str], Path],
    tmp_path: Path,
) -> Callable[..., Any]:
    """validate('oom', '--quick') runs the pair with a fake server in that mode."""
    prompts = tmp_path / "two.jsonl"
    prompts.write_text('{"prompt": "one", "n_predict": 31}\n{"prompt": "two", "n_predict": 61}\n')

    def run(mode: str, *args: object, extra: tuple[str, ...] = ()) -> Any:
        return cli(
            *("validate", drafters["bf16"], fixtures / "tiny-js" / "target-bf16.gguf", "--prompts", prompts),
            *("--llama-server", fake_server(mode), *args, *(("--", *extra) if extra else ())),
        )

    return run


def test_healthy(validate: Callable[..., Any]) -> None:
    ran = validate("normal", "--quick", "--json", "--n-max", 4)
    assert ran.code == 0, ran.err
    result = ran.json
    assert result["verdict"] == "healthy"
    assert result["engine"]["build"].startswith("4242 (abc1234)")
    assert result["engine"]["devices"] == ["CUDA0: A Graphics Card (24000 MiB, 23000 MiB free)"]
    # 10 and 20 steps of 4 drafts, two accepted each; warm-up is not among them
    assert [(p["drafted"], p["accepted"], p["steps"]) for p in result["prompts"]] == [(40, 20, 10), (80, 40, 20)]
    total = result["total"]
    assert (total["drafted"], total["accepted"], total["acceptance"], total["mean_length"]) == (120, 60, 0.5, 3.0)
    assert (total["tokens_per_second"], total["baseline_tokens_per_second"]) == (50.0, 25.0)
    assert (result["gain"], total["speedup"]) == ("not measured", None)  # one round proves no speed
    assert total["acceptance_by_position"] == [1.0, 1.0, 0.0, 0.0]
    assert from_json(result).json() == result


def test_table(validate: Callable[..., Any]) -> None:
    ran = validate("normal", "--quick", "--n-max", 4)
    total = next(line for line in ran.out.splitlines() if line.startswith("total"))
    # 6 prompt tokens in 5 ms, 92 generated in 1840 ms
    assert " ".join(total.split()) == "total 5 6 1200.00 1,840 92 50.00 60 120 50.0 % 3.00 25.00 yes"
    assert "verdict: healthy (60 of 120 drafts accepted (50.0 %), mean length 3.00)" in ran.out
    assert "thresholds recorded" in ran.err


def test_every_run(validate: Callable[..., Any]) -> None:
    ran = validate("normal", "--json", "--long-context", 600)
    runs = ran.json["runs"]
    assert [(r["label"], r["n_max"]) for r in runs] == [("sampled", 7), ("long-context", 7), ("sweep", 4)]
    assert ran.json["total"]["drafted"] == 30 * 7
    assert runs[1]["prompts"][0]["prompt_tokens"] > 500
    assert ran.json["sweep"]["recommended"] == 4
    assert ran.json["sweep"]["pays"] is True


def test_zero_drafts_is_broken(validate: Callable[..., Any], tmp_path: Path) -> None:
    ran = validate("zero-drafts", "--quick", "--json", "--save-reference", tmp_path / "r.json")
    assert ran.code == 6
    assert "reference not saved" in ran.err
    assert not (tmp_path / "r.json").exists()
    assert ran.json["verdict"] == "broken"
    assert "0 tokens drafted" in ran.json["reasons"][0]


def test_old_server(validate: Callable[..., Any]) -> None:
    ran = validate("old-log", "--quick", "--json", "--n-max", 4)
    assert ran.code == 0, ran.err
    total = ran.json["total"]
    assert (total["drafted"], total["accepted"], total["mean_length"]) == (120, 60, 3.0)
    assert total["accepted_per_position"] is None


def test_other_text_is_broken(validate: Callable[..., Any]) -> None:
    ran = validate("differs", "--quick", "--json")
    assert ran.code == 6
    assert ran.json["verdict"] == "broken"
    assert ran.json["total"]["identical"] is False
    first = ran.json["prompts"][0]["divergence"]
    assert (first["token"], first["gap"], first["near_tie"]) == (15, None, False)
    assert first["found"].startswith("9999")
    assert "differs from token 16 on" in ran.err


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("oom-always", "out-of-memory"),
        ("unknown-type", "unknown-option"),
        ("assert", "crash"),
        ("crash-second", "crash"),
        ("hang", "timeout"),
        ("oom-silent", "out-of-memory"),
    ],
)
def test_engine_failures(validate: Callable[..., Any], mode: str, kind: str) -> None:
    ran = validate(mode, "--quick", "--json", *(("--timeout", 2) if mode == "hang" else ()))
    assert ran.code == 7
    assert ran.json["verdict"] == "engine-failure"
    assert ran.json["failure"]["kind"] == kind
    assert ran.json["exit_code"] == 7
    assert ran.err.rstrip().splitlines()[-1].startswith("TIP")


def test_out_of_memory_is_retried_and_said(validate: Callable[..., Any]) -> None:
    ran = validate("oom", "--json", "--no-sampled")
    assert ran.code == 0, ran.err
    result = ran.json
    # the target was trained for 4096 tokens, which caps both contexts
    assert result["retries"] == ["out of memory at a context of 4096 tokens"] * 2
    assert (result["settings"]["context"], result["settings"]["long_context"]) == (2048, None)
    assert "the runs used a smaller one" in result["warnings"][0]


def test_outdated_server_is_refused_before_the_run(validate: Callable[..., Any]) -> None:
    ran = validate("outdated", "--quick", "--json")
    assert ran.code == 7
    assert "does not know the drafting method draft-dflash" in ran.json["error"]["message"]
    assert "does not know the drafting method draft-dflash" in ran.err


@pytest.mark.parametrize(
    ("option", "code", "words"),
    [
        (("--min-acceptance", "0.5"), 0, "healthy"),
        (("--min-acceptance", "0.51"), 6, "acceptance is 0.5, at least 0.51 was required"),
        (("--min-mean-length", "3.5"), 6, "mean length is 3, at least 3.5"),
        (("--min-speedup", "1.9"), 0, "healthy"),
        (("--min-speedup", "2"), 6, "speedup is 1.961 at the lower end of its spread, at least 2 was required"),
        (("--min-tokens-per-second", "60"), 6, "tokens per second is 50"),
    ],
)
def test_requirements(validate: Callable[..., Any], option: tuple[str, str], code: int, words: str) -> None:
    ran = validate("normal", "--quick", "--n-max", 4, *option)
    assert ran.code == code
    assert words in ran.out


def test_weak_exits_0_unless_something_is_required(validate: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text("weak_acceptance = 0.6\nweak_mean_length = 4\n")
    weak = validate("normal", "--quick", "--n-max", 4, "--thresholds", file)
    assert weak.code == 0
    assert "verdict: weak" in weak.out
    file.write_text("min_acceptance = 0.6\n")
    assert validate("normal", "--quick", "--n-max", 4, "--thresholds", file).code == 6
    assert validate("normal", "--quick", "--n-max", 4, "--thresholds", file, "--min-acceptance", 0.4).code == 0


def test_arguments_after_the_dashes(validate: Callable[..., Any]) -> None:
    ran = validate("normal", "--quick", "--json", extra=("-ctkd", "q8_0"))
    assert ran.json["settings"]["extra_args"] == ["-ctkd", "q8_0"]
    assert ran.json["settings"]["draft_cache_type"] == "-ctkd q8_0"
    assert "f16 is the default" in ran.json["warnings"][0]
    assert "WARNING" in ran.err


def test_chat_prompts(
    fixtures: Path,
    drafters: dict[str, Path],
    cli: Callable[..., Any],
    fake_server: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    """Both thinking modes; turns see the answers before them; the bundled sets load."""
    files = ("validate", drafters["bf16"], fixtures / "tiny-js" / "target-bf16.gguf", "--n-predict", 16, "--json")
    rest = ("--llama-server", fake_server("normal"), "--n-max", 4, "--long-context", 0, "--no-sampled")
    result = cli(*files, *rest, "--set", "javascript").json
    names = [p["name"] for p in result["prompts"]]
    assert names == [f"task board turn {i}" for i in (1, 2, 3, 4)]
    sent = [p["sent"] for p in result["prompts"]]
    assert all(text.endswith("<think>") for text in sent)
    assert result["prompts"][0]["text"] in sent[1]
    assert result["settings"]["thinking"] == "on"
    (other,) = result["runs"]
    assert (other["label"], other["thinking"]) == ("thinking", False)
    assert all(p["sent"].endswith("<answer>") for p in other["prompts"])
    off = cli(*files, *rest, "--set", "javascript", "--thinking", "off").json
    assert off["runs"] == []
    assert all(p["sent"].endswith("<answer>") for p in off["prompts"])
    everything = cli(*files, *rest).json
    assert everything["settings"]["prompt_sets"] == ["code", "javascript", "prose", "reasoning"]
    assert len(everything["prompts"]) == 17


def test_outputs_are_not_overwritten(validate: Callable[..., Any], tmp_path: Path) -> None:
    stored = tmp_path / "r.json"
    stored.write_text("mine")
    ran = validate("normal", "--quick", "--save-reference", stored)
    assert ran.code == 9
    assert stored.read_text() == "mine"
    assert validate("normal", "--quick", "--save-reference", stored, "--force").code == 0
    assert json.loads(stored.read_text())["kind"] == "validation-reference"
    ran = validate("normal", "--reference", stored)
    assert ran.code == 2
    assert "--reference brings its own prompts" in ran.err


def test_the_printed_lines_package_the_drafter_with_its_evidence(
    validate: Callable[..., Any], cli: Callable[..., Any], tmp_path: Path
) -> None:
    """Pasted as they stand, but for their placeholders; one line where the result was kept, else that run first."""

    def printed(err: str, out: Path) -> list[list[str]]:
        lines = [shlex.split(line) for line in err.split("make a release of it")[1].splitlines()[1:]]
        names = {"RUN.json": str(tmp_path / "RUN.json"), "PACKAGE": str(out)}
        return [[names.get(word, word) for word in words[1:]] for words in lines if words[:1] == ["dflash-convert"]]

    kept = tmp_path / "kept.json"
    ran = validate("normal", "--quick", "--n-max", 4, "--save", kept)
    assert ran.code == 0, ran.err
    assert from_json(json.loads(kept.read_text("utf-8"))).verdict == "healthy"
    lines = printed(ran.err, tmp_path / "one")
    assert len(lines) == 1
    again = printed(validate("normal", "--quick", "--n-max", 4, "--html", tmp_path / "r.html").err, tmp_path / "two")
    assert [words[0] for words in again] == ["validate", "package"]
    for words in lines + again:
        done = cli(*words)
        assert done.code == 0, done.err
    for name in ("one", "two"):
        manifest = json.loads((tmp_path / name / "manifest.json").read_text("utf-8"))
        assert [each["verdict"] for each in manifest["validation"]] == ["healthy"]


SAVING = [
    ("validate d t", "validate d t --save R"),
    ("validate d t --html x --json --force --save-reference=y", "validate d t --save R"),
    ("validate d t --quick -- --alias --html", "validate d t --quick --save R -- --alias --html"),
]


@pytest.mark.parametrize(("line", "meant"), SAVING)
def test_the_same_line_that_keeps_its_result(line: str, meant: str) -> None:
    assert saving(line.split(), Path("R")) == meant.split()


@pytest.mark.parametrize("option", ["--html", "--save", "--save-reference"])
def test_a_report_that_cannot_be_written_is_told_before_the_run(
    fixtures: Path, drafters: dict[str, Path], cli: Callable[..., Any], tmp_path: Path, option: str
) -> None:
    target = fixtures / "tiny-js" / "target-bf16.gguf"
    ran = cli("validate", drafters["bf16"], target, "--llama-server", "/nonexistent", option, tmp_path / "no" / "x")
    assert ran.code == 9  # and not 7: the engine was not asked yet
    assert f"{tmp_path / 'no'} is not a directory" in ran.err
