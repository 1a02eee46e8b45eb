"""``dflash-convert validate``: parse the options, run, show the result."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dflash_convert.cli import nextsteps
from dflash_convert.cli.common import Given, json_option, say, sets_option, takes, verbosity_options
from dflash_convert.cli.swapped import put_right
from dflash_convert.cli.terminal import as_text, echo, emit, leaving, running, width
from dflash_convert.container.reader import open_gguf, require_file, require_target
from dflash_convert.errors import UsageError
from dflash_convert.output import write_text

if TYPE_CHECKING:
    from dflash_convert.cli.progress import Progress
    from dflash_convert.validation.options import Options
    from dflash_convert.validation.result import ValidationResult
    from dflash_convert.validation.setup import Setup

FILE = click.Path(path_type=Path)
THRESHOLDS = ("min_acceptance", "min_mean_length", "min_speedup", "min_tokens_per_second", "tolerance", "near_tie")
HELP = """Run DRAFTER.gguf with TARGET.gguf in llama.cpp and judge the pair.

Every prompt runs greedily without and with the drafter. Two verdicts: the pair (healthy, weak, broken: acceptance,
mean accepted length, identical text), and what it gains on this machine (faster, no gain, slower, disturbed), from
rounds in turn with their spread. Without --quick, sampled runs, the other thinking mode, a long context and a sweep
over n-max follow. A broken pair ends after its first round. Arguments after -- go to llama-server.

Exit code: 0 healthy, or weak when nothing was required; 6 broken or below a threshold; 7 the engine failed.
"""


@dataclass(frozen=True, kw_only=True)
class ValidateGiven(Given):
    drafter: Path
    target: Path
    engine_args: tuple[str, ...]
    prompts: Path | None
    sets: tuple[str, ...]
    n_predict: int | None
    n_max: str | None
    quick: bool
    rounds: int | None
    keep_going: bool
    no_sampled: bool
    thinking: str
    ctx_size: int
    long_context: int
    temperature: float
    seed: int
    min_acceptance: float | None
    min_mean_length: float | None
    min_speedup: float | None
    min_tokens_per_second: float | None
    near_tie: float | None
    thresholds: Path | None
    save: Path | None
    save_reference: Path | None
    reference: Path | None
    tolerance: float | None
    beside: Path | None
    llama_server: str | None
    device: str | None
    spec_draft_device: str | None
    n_gpu_layers: int | None
    threads: int | None
    timeout: float
    html: Path | None
    force: bool
    force_pair: bool


@click.command("validate", help=HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("drafter", type=FILE, metavar="DRAFTER.gguf")
@click.argument("target", type=FILE, metavar="TARGET.gguf")
@click.argument("engine_args", nargs=-1, type=click.UNPROCESSED, metavar="[-- LLAMA-SERVER-ARGS…]")
@click.option("--prompts", type=FILE, metavar="FILE.jsonl", help="Prompts, one JSON object a line; default: all sets.")
@sets_option
@click.option("--n-predict", type=click.IntRange(1), metavar="N", help="Tokens per prompt, in place of the file's.")
@click.option("--n-max", metavar="N,N…", help="Draft lengths; the first is the main run. Default: the block's.")
@click.option("--quick", is_flag=True, help="Only the main run, in one round: no claim of a gain.")
@click.option("--rounds", type=click.IntRange(1, 20), metavar="N", help="Rounds of the timed runs. [3; --quick: 1]")
@click.option("--keep-going", is_flag=True, help="Run everything, even when the first round shows a broken pair.")
@click.option("--no-sampled", is_flag=True, help="No run with a temperature.")
@click.option(
    "--thinking",
    type=click.Choice(["on", "off", "both"]),
    default="both",
    show_default=True,
    help="For templates that have it.",
)
@click.option(
    "-c", "--ctx-size", type=click.IntRange(64), default=4096, show_default=True, metavar="N", help="Context."
)
@click.option("--long-context", type=click.IntRange(0), default=8192, show_default=True, metavar="N", help="0: skip.")
@click.option("--temperature", type=click.FloatRange(0.01), default=1.0, show_default=True, help="Of the sampled run.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="First seed of the sampled run.")
@click.option("--min-acceptance", type=click.FloatRange(0, 1), metavar="X", help="Required share, 0 to 1.")
@click.option("--min-mean-length", type=click.FloatRange(1), metavar="X", help="Required tokens per step.")
@click.option("--min-speedup", type=click.FloatRange(0), metavar="X", help="Required gain, by the lower end.")
@click.option("--min-tokens-per-second", type=click.FloatRange(0), metavar="X", help="Required speed.")
@click.option("--near-tie", type=click.FloatRange(0), metavar="NATS", help="Gap of a harmless difference. [0.1]")
@click.option("--thresholds", type=FILE, metavar="FILE", help="Thresholds as JSON or TOML; options win.")
@click.option("--save", type=FILE, metavar="RUN.json", help="Keep the result, as package --validation takes it.")
@click.option("--save-reference", type=FILE, metavar="R.json", help="Store this run to compare others with.")
@click.option("--reference", type=FILE, metavar="R.json", help="Replay a stored run; fail when this one is worse.")
@click.option("--tolerance", type=click.FloatRange(0, 1), metavar="X", help="Allowed loss of acceptance. [0.02]")
@click.option("--beside", type=FILE, metavar="OTHER.gguf", help="Time this drafter in the same rounds: a net verdict.")
@click.option("--llama-server", metavar="PATH", help="Use this program [env: DFLASH_LLAMA_SERVER].")
@click.option("--device", metavar="DEV", help="llama-server's --device.")
@click.option("--spec-draft-device", metavar="DEV", help="llama-server's device for the drafter.")
@click.option("-ngl", "--n-gpu-layers", type=int, metavar="N", help="Target layers on the GPU.")
@click.option("-t", "--threads", type=click.IntRange(1), metavar="N", help="CPU threads of the engine.")
@click.option("--timeout", type=click.FloatRange(1), default=1800.0, show_default=True, help="Seconds a request.")
@click.option("--force-pair", is_flag=True, help="Run a pair that check refuses.")
@click.option("--html", type=FILE, metavar="OUT", help="Write a report as one HTML file.")
@click.option("--force", is_flag=True, help="Overwrite --html, --save and --save-reference files.")
@json_option
@verbosity_options
@takes(ValidateGiven)
def command(given: ValidateGiven) -> None:
    given.check_outputs(html=given.html, save=given.save, save_reference=given.save_reference)
    require_file(given.drafter, *([given.beside] if given.beside else []))
    require_target(given.target)
    from dflash_convert.validation import expected, run

    given.say(f"validate: {given.drafter.name} with {given.target.name}")
    with put_right(str(given.drafter), str(given.target)):
        setup = replace(run.prepare(options_of(given)), detail=given.detail)
    given.show_notes(setup.notes)
    given.say(_recorded(setup.options))
    given.say(expected.plan(setup))
    with given.bar("validating", "requests", expected.requests(setup)) as bar, leaving("nothing was written"):
        result = run.validate(setup, _Seen(given, bar, setup))
    _show(result, given)
    result.raise_for_status()
    nextsteps.show(given, _next(result, given))


class _Seen:
    """What the validation tells of itself: messages, each prompt as it begins, and after a round what is left."""

    def __init__(self, given: ValidateGiven, bar: Progress, setup: Setup) -> None:
        self._given, self._bar, self._setup = given, bar, setup
        self._began, self._begun = time.monotonic(), 0

    def __call__(self, text: str, detail: bool) -> None:
        if self._given.verbose or not detail:
            self._given.say(text)
        if detail:  # a prompt
            self._estimate()
            self._bar.item(text)
            self._bar.update()

    def _estimate(self) -> None:
        from dflash_convert.validation import expected

        if self._begun == expected.a_round(self._setup):
            self._given.say(expected.left(self._setup, time.monotonic() - self._began) or "")
        self._begun += 1


def options_of(given: ValidateGiven) -> Options:
    from dflash_convert.validation import options as opt
    from dflash_convert.validation.prompts import SETS

    if given.prompts and given.sets:
        raise UsageError("--prompts and --set exclude each other")
    if given.reference and (given.prompts or given.sets or given.n_max or given.n_predict):
        raise UsageError(
            "--reference brings its own prompts and n-max", tip="leave out --prompts, --set, --n-predict and --n-max"
        )
    from_file = opt.read_thresholds(given.thresholds) if given.thresholds else {}
    return opt.Options(
        drafter=given.drafter,
        target=given.target,
        prompts=given.prompts,
        sets=given.sets or SETS,
        n_predict=given.n_predict,
        n_max=opt.parse_n_max(given.n_max) if given.n_max else (),
        context=given.ctx_size,
        long_context=given.long_context,
        quick=given.quick,
        rounds=given.rounds,
        keep_going=given.keep_going,
        sampled=not given.no_sampled,
        thinking=given.thinking,
        temperature=given.temperature,
        seed=given.seed,
        thresholds=opt.thresholds(from_file, {name: getattr(given, name) for name in THRESHOLDS}),
        llama_server=given.llama_server,
        threads=given.threads,
        gpu_layers=given.n_gpu_layers,
        device=given.device,
        draft_device=given.spec_draft_device,
        extra_args=given.engine_args,
        request_timeout=given.timeout,
        reference=given.reference,
        beside=given.beside,
        hashes=bool(given.save_reference),
        force_pair=given.force_pair,
    )


def _next(result: ValidationResult, given: ValidateGiven) -> list[tuple[str, list[str]]]:
    """Of a pair that may be used."""
    n_max = result.sweep.recommended if result.sweep else result.settings.n_max
    run = nextsteps.run_command(open_gguf(given.drafter), given.drafter, given.target, n_max)
    saved = given.save or Path("RUN.json")
    words = "--target-gguf", given.target, "--validation", saved, "--out", "PACKAGE"
    release = [nextsteps.command("package", given.drafter, *words)]
    if given.save is None:
        release.insert(0, nextsteps.command(*saving(running().argv, saved)))
    return [("run it", [run]), ("make a release of it, with a kept result (--save)", release)]


def saving(argv: Sequence[str], place: Path) -> list[str]:
    """The same line, keeping its result; other outputs are there already."""
    end = argv.index("--") if "--" in argv else len(argv)
    words: list[str] = []
    rest = iter(argv[:end])
    for word in rest:
        if word in ("--html", "--save-reference"):
            next(rest, None)
        elif word not in ("--json", "--force") and not word.startswith(("--html=", "--save-reference=")):
            words.append(word)
    return [*words, "--save", str(place), *argv[end:]]


def _recorded(options: Options) -> str:
    """The thresholds, before anything runs."""
    t = options.thresholds
    required = ", ".join(f"{name} >= {value:g}" for name, value in t.required.items()) or "none"
    return (
        f"thresholds recorded {t.recorded_at}: required {required}; "
        f"weak below {t.weak_acceptance:g} and length {t.weak_mean_length:g}, "
        f"broken below {t.broken_acceptance:g} and length {t.broken_mean_length:g}"
    )


def _show(result: ValidationResult, given: ValidateGiven) -> None:
    from dflash_convert.validation import reference, table

    if given.as_json:
        emit(result.json())
    else:
        echo(table.render(result, width()))
    if given.save:
        write_text(given.save, as_text(result.json()) + "\n", force=given.force)
        given.say(f"result kept: {given.save}")
    if given.save_reference and result.exit_code:
        say("reference not saved: a run that failed is nothing to compare with")
    elif given.save_reference:
        reference.save(given.save_reference, reference.document(result), force=given.force)
        given.say(f"reference saved: {given.save_reference}")
    if given.html:
        from dflash_convert.report import html

        write_text(given.html, html.render(result), force=given.force)
        given.say(f"report written: {given.html}")
    if result.failure and given.verbose:
        say(result.failure.log)
