"""Every command at 80 columns: lines fit, nothing drives a terminal, and what is proposed next can be pasted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from dflash_convert.cli import COMMANDS, cli, main, nextsteps
from dflash_convert.cli.terminal import COMMANDS as TO_PASTE

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
PLACEHOLDERS = {nextsteps.TARGET, nextsteps.TARGET_DIR, nextsteps.DRAFTER, nextsteps.DRAFTER_DIR, nextsteps.REPOSITORY}
NEW = {"PACKAGE"}  # is made by the command


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return [*self.out.splitlines(), *self.err.splitlines()]


Run = Callable[[str], Ran]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("outputs")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, place: Path, fixtures: Path) -> Run:
    """A line at 80 columns, in a directory that the module's tests share; tiny/ is the bundled pair."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(place)
    if not Path("tiny").exists():
        Path("tiny").symlink_to(fixtures / "tiny-js")
        Path("release.toml").write_text(
            'types = ["Q8_0"]\n[[pair]]\ndrafter = "tiny/drafter"\ntarget = "tiny/target"\n'
        )

    def call(line: str) -> Ran:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(line))
        done = capsys.readouterr()
        return Ran(int(str(ended.value.code)), done.out, done.err)

    return call


# in this order: later lines read what earlier ones write, so a process of the tests runs what it has not run yet
RAN: set[str] = set()
LINES = {
    "convert --dry-run": ("tiny/drafter --target-model-dir tiny/target -t q4_0 --dry-run", 0),
    "convert": ("tiny/drafter --target-model-dir tiny/target --target-name js -t q8_0 -t bf16", 0),
    "convert, nothing there": ("convert nowhere --target-model-dir tiny/target", 2),
    "quantize": ("quantize dflash-js-BF16.gguf q4.gguf q4_k_m", 0),
    "quantize --dry-run": ("quantize dflash-js-BF16.gguf q5.gguf q5_0 --dry-run -v", 0),
    "inspect": ("inspect dflash-js-Q8_0.gguf --target-model-dir tiny/target-bf16.gguf --memory", 0),
    "inspect, a drafter": ("inspect tiny/drafter", 0),
    "inspect, a target": ("inspect tiny/target", 0),
    "check": ("check dflash-js-Q8_0.gguf tiny/target-bf16.gguf --n-max 99", 0),
    "check, directories": ("check tiny/drafter tiny/target", 0),
    "check, two drafters": ("check dflash-js-Q8_0.gguf dflash-js-Q8_0.gguf", 4),
    "verify": ("verify dflash-js-Q8_0.gguf tiny/drafter -v", 0),
    "diff": ("diff dflash-js-BF16.gguf q4.gguf", 0),
    "head": ("head dflash-js-BF16.gguf tiny/target-bf16.gguf head.gguf --full", 0),
    "migrate": ("migrate dflash-js-BF16.gguf new.gguf", 2),
    "package": ("package dflash-js-Q8_0.gguf --out made --license mit", 0),
    "package --check": ("package --check made", 0),
    "publish": ("publish made owner/name --dry-run", 0),
    "batch": ("batch release.toml --list", 0),
    "doctor": ("doctor --offline", None),
    "validate": ("validate nowhere.gguf tiny/target-bf16.gguf", 3),
    "compare": ("compare tiny/target-bf16.gguf", 2),
    "tune": ("tune tiny/target-bf16.gguf", 2),
}
ADVISING = {  # what ends well says what comes next
    *("convert", "quantize", "inspect", "inspect, a drafter", "inspect, a target", "check", "check, directories"),
    *("verify", "diff", "head", "package", "package --check", "publish", "batch"),
}


def test_every_command_is_here() -> None:
    assert {re.split(r"[ ,]", name)[0] for name in LINES} == COMMANDS.keys()


@pytest.mark.parametrize("case", LINES)
def test_a_command_at_80_columns(case: str, run: Run) -> None:
    for earlier in takewhile(lambda name: name != case, LINES):
        if earlier not in RAN:
            run(LINES[earlier][0])
            RAN.add(earlier)
    line, code = LINES[case]
    RAN.add(case)
    done = run(line)
    assert code is None or done.code == code, done.err
    assert done.lines
    assert not CONTROL.search(done.out + done.err)
    words = [word for row in done.lines for word in row.split()]
    wide = [row for row in done.lines if len(row) > 80]
    assert [row for row in wide if max(map(len, row.split())) < 70] == [], "only a path or a digest may be longer"
    assert not [word for word in words if re.fullmatch(r"\d(\.\d+)?e\+0\d,?", word)]
    whole = done.err.replace(" \\\n    ", " ")
    proposed = [row.strip() for row in re.findall(rf"(?<=:\n)((?:  (?:{'|'.join(TO_PASTE)}).*\n)+)", whole)]
    proposed = [row.strip() for rows in proposed for row in rows.splitlines()]
    assert proposed or case not in ADVISING
    for each in proposed:
        _pastes(shlex.split(each))


def _pastes(words: Sequence[str]) -> None:
    """Its options exist, and its files do, or are marked as placeholders."""
    if words[0] == "dflash-convert":
        name, *rest = words[1:] if words[1] in COMMANDS else ["convert", *words[1:]]
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        command.make_context(name, list(rest))
    for word in words[1:]:
        if "/" in word or word.endswith(".gguf"):
            assert word in PLACEHOLDERS | NEW or Path(word).exists() or word == "owner/name", word


def test_more_detail_tells_what_it_took(run: Run) -> None:
    brief, long = run("inspect tiny/drafter"), run("inspect tiny/drafter -v")
    assert "took " not in brief.err
    assert re.fullmatch(
        r"took [\d.]+ s, [\d.,]+ MiB of memory( and [\d.,]+ [MG]iB in a child process)?", long.err.splitlines()[-1]
    )
    long = run("tiny/drafter --target-model-dir tiny/target --target-name more -t q8_0 -v").err
    assert re.search(r"^  blk\.0\.attn_q\.weight +Q8_0 +<-\s+layers\.0\.self_attn\.q_proj\.weight$", long, re.MULTILINE)
    long = run("quantize dflash-more-Q8_0.gguf more.gguf q4_0 --allow-requantize -v").err
    assert re.search(r"^  blk\.0\.attn_q\.weight +Q4_0$", long, re.MULTILINE)
    assert run("inspect nowhere -v").err.splitlines()[0].startswith("took "), "also of what failed"


def test_type_names_in_any_case_make_one_file(run: Run) -> None:
    done = run("tiny/drafter --target-model-dir tiny/target --target-name case -t q5_k_m -t Q5_K_M,q5_K_m")
    assert done.out == "dflash-case-Q5_K_M.gguf\n"


def test_what_was_found_is_told_before_anything_is_written(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dflash_convert import conversion as convert

    told = []
    write = convert.write

    def look(*args: object, **given: object) -> object:
        told.append(capsys.readouterr().err)
        return write(*args, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(convert, "write", look)
    run("tiny/drafter --target-model-dir tiny/target --target-name early -t q4_k_m")
    for words in ("DFlash drafter: block 8", "derived: pre-tokenizer", "dflash-early-Q4_K_M.gguf, 0.", " MiB: "):
        assert words in told[0]


def test_where_the_target_s_gguf_comes_from() -> None:
    keys: dict[str, object] = {"general.base_model.0.repo_url": "https://huggingface.co/Qwen/Qwen3-8B"}
    assert nextsteps.target_of(keys.get) == ("Qwen3-8B", "Qwen/Qwen3-8B")
    keys["dflash_convert.target.repository"] = "Qwen/Qwen3-4B"
    assert nextsteps.target_of(keys.get) == ("Qwen3-4B", "Qwen/Qwen3-4B")
    assert nextsteps.target_of({"dflash_convert.target.name": "tiny"}.get) == ("tiny", None)
    text = nextsteps.where_target("Qwen3-4B", "Qwen/Qwen3-4B")
    assert text == 'TARGET.gguf: the target\'s GGUF, of Qwen/Qwen3-4B; on the Hub search for "Qwen3-4B GGUF"'
