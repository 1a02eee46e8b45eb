"""dflash-convert batch release.toml"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from dflash_convert import hub
from dflash_convert.cli import nextsteps
from dflash_convert.cli.common import Given, json_option, parse, say, takes, verbosity_options
from dflash_convert.cli.terminal import echo, emit, leaving, width
from dflash_convert.errors import ConfigError, DflashError, UsageError
from dflash_convert.text import columns, percent

if TYPE_CHECKING:
    from dflash_convert.cli.convert import ConvertGiven
    from dflash_convert.cli.validate import ValidateGiven
    from dflash_convert.pipeline import Proving, Task
    from dflash_convert.release.batch import Runner, Summary
    from dflash_convert.release.plan import Job, Release

G = TypeVar("G", bound=Given)
SHOWN = 5  # defects of a release.toml that are told at once
_SAID = dict.fromkeys(("as_json", "quiet", "verbose"), "batch's own options say how much is told")
REPORTED = "the job's report is validation.json"
# parameters of the commands that a job decides itself, and what to write instead
NO_PLACE: dict[str, dict[str, str | None]] = {
    "convert": {
        "target": "target = … is the pair's target",
        "outtypes": "types = […] says which files to make",
        "output": "out = … at the top says where all files go",
        "validate": "target_gguf = … validates a pair",
        "dry_run": None,
        **_SAID,
    },
    "validate": {"html": REPORTED, "save_reference": REPORTED, **_SAID},
}


@dataclass(frozen=True, kw_only=True)
class BatchGiven(Given):
    release: Path
    workers: int
    scheduler: str | None
    job: str | None
    list_jobs: bool
    no_package: bool
    threads: int | None
    force: bool


@click.command("batch")
@click.argument("release", metavar="RELEASE.toml", type=click.Path(path_type=Path))
@click.option("-j", "--jobs", "workers", type=click.IntRange(1), default=1, show_default=True, help="Jobs at a time.")
@click.option("--scheduler", metavar="ADDRESS", help="Run the jobs on this Dask cluster (tcp://host:port).")
@click.option("--job", metavar="NAME|N", help="Run one job (PAIR/TYPE, or its number from 0) and package nothing.")
@click.option("--list", "list_jobs", is_flag=True, help="List the jobs and run nothing.")
@click.option("--no-package", is_flag=True, help="Only the jobs, no packages.")
@click.option("--threads", type=click.IntRange(1), help="Processes of a conversion; default: a fair share.")
@click.option("--force", is_flag=True, help="Run finished jobs again too.")
@json_option
@verbosity_options
@takes(BatchGiven)
def command(given: BatchGiven) -> int:
    """Convert, check, verify, validate and package many pairs, as RELEASE.toml says.

    Every pair and type is a job of its own. Finished jobs whose inputs and outputs are unchanged are skipped, a
    failed one does not stop the rest, and the exit code is that of the worst. Interrupt it at any time; the same
    command goes on.
    """
    if not given.release.exists():  # told before anything large is imported
        raise ConfigError(f"{given.release}: no such file")
    from dflash_convert.release.plan import read_release

    plan = read_release(given.release)
    if given.scheduler and (given.job or given.workers > 1):
        raise UsageError("--scheduler excludes --job and --jobs", tip="the cluster decides how many jobs run")
    if given.list_jobs:
        _list(plan, given.as_json)
        nextsteps.show(given, [("run them", [nextsteps.command("batch", given.release)])])
        return 0
    wanted = [plan.job(given.job)] if given.job is not None else plan.jobs
    check_entries(given.release, wanted)
    with leaving("finished jobs are kept", goes_on=True):
        summary = _one(plan, wanted[0], given) if given.job is not None else _all(plan, given)
    if given.as_json:
        emit(summary.json())
    else:
        echo(_table(summary))
    made = [Path(each.file) for each in summary.packages if each.file]
    if made:
        nextsteps.upload(given, made)
    return summary.exit_code


def check_entries(release: Path, jobs: Sequence[Job]) -> None:
    """All that can be known before any work: places, options, thresholds. ConfigError names every defect."""
    first = {job.pair.name: job for job in jobs}  # a pair's types differ in nothing that is checked here
    found = [f"{name}: {problem}" for name, job in first.items() for problem in _problems(job)]
    if found:
        more = f" (and {len(found) - SHOWN} more)" if len(found) > SHOWN else ""
        raise ConfigError(f"{release}: {'; '.join(found[:SHOWN])}{more}", tip="nothing was run")


def _problems(job: Job) -> Iterator[str]:
    from dflash_convert.release.plan import PLACES, is_there

    for key in ("drafter", "target"):
        text = getattr(job.pair, key)
        if not is_there(Path(text)) and (text.startswith((".", "/", "~")) or hub.parse_spec(text) is None):
            yield f"{key} {text} does not exist and is not a Hub id"
    for key in PLACES:
        text = getattr(job.pair, key)
        if text is not None and not (is_there(Path(text)) and Path(text).is_file()):
            yield f"{key} {text} does not exist"
    try:
        asked = asked_of(job)
        files = [asked.types.imatrix]
        if job.pair.target_gguf:
            wanted = proof_of(job)
            files += [wanted.thresholds, wanted.reference]
            if all(is_there(file) and file.is_file() for file in files if file):
                _proving(job)
    except DflashError as error:
        yield f"{error}{f' ({error.tip})' if error.tip else ''}"
        return
    yield from (f"{file} does not exist" for file in files if file and not (is_there(file) and file.is_file()))


def _list(plan: Release, as_json: bool) -> None:
    names = [job.name for job in plan.jobs]
    if as_json:
        emit({"schema": 1, "out": str(plan.out), "jobs": names})
    else:
        echo("\n".join(f"{number:>4}  {name}" for number, name in enumerate(names)))


def _one(plan: Release, job: Job, given: BatchGiven) -> Summary:
    from dflash_convert.cli.watch import Shown, show_result
    from dflash_convert.release.batch import Summary
    from dflash_convert.release.job import Outcome, run_job

    try:
        with Shown(given, given.threads) as watcher:
            outcome, result = run_job(job, lambda: task_of(job, given), watcher, places_of(job), force=given.force)
        if result is not None:
            show_result(result, given, Path(job.pair.target_gguf) if job.pair.target_gguf else None)
    except DflashError as error:
        outcome = Outcome(job.name, "failed", error.exit_code, "prepare", str(error))
    if outcome.status == "failed":
        given.say(f"ERROR {outcome.message}")
    return Summary((outcome,), ())


def task_of(job: Job, given: BatchGiven) -> Task:
    """``job`` as if its options had been given to ``convert`` and ``validate``."""
    from dflash_convert.cli import convert

    asked = asked_of(job, given.threads)
    task = convert.task_of(replace(asked, quiet=given.quiet, verbose=given.verbose))
    return replace(task, proving=_proving(job))


def asked_of(job: Job, threads: int | None = None) -> ConvertGiven:
    """What ``convert`` would be asked; UsageError for what a job cannot have."""
    from dflash_convert.cli import convert

    fixed = convert_arguments(job, threads)
    asked = _parse("convert", convert.command, convert.ConvertGiven, fixed, job.pair.convert)
    convert.check_options(asked)
    return asked


def proof_of(job: Job) -> ValidateGiven:
    """What ``validate`` would be asked; UsageError for what a job cannot have."""
    from dflash_convert.cli import validate

    return _parse("validate", validate.command, validate.ValidateGiven, validate_arguments(job), job.pair.validate)


def places_of(job: Job) -> tuple[Path, ...]:
    """Every place that the options of a job's ``convert`` and ``validate`` name, in whichever way they are written."""
    from dflash_convert.container.shards import files_in

    asked = asked_of(job)
    texts = [asked.tokenizer_model]
    found = list(files_in(asked))
    if job.pair.target_gguf:
        proof = proof_of(job)
        found += files_in(proof, "drafter")
        texts += [proof.llama_server, *(part for word in proof.engine_args for part in (word, word.partition("=")[2]))]
    return tuple(dict.fromkeys([*found, *(Path(text) for text in texts if text)]))


def _proving(job: Job) -> Proving:
    from dflash_convert.cli import validate
    from dflash_convert.pipeline import Proving

    wanted = validate.options_of(proof_of(job)) if job.pair.target_gguf else None
    return Proving(wanted, job.pair.n_max, job.pair.fidelity)


def _parse(name: str, command: click.Command, kind: type[G], fixed: list[str], own: Sequence[str]) -> G:
    """``own`` are the words of ``convert`` or ``validate``, ``fixed`` the pair's other keys as arguments."""
    try:
        _check_own(name, command, fixed, own)
        return parse(command, kind, [*fixed, *own])
    except click.ClickException as error:
        raise UsageError(f"{name} = …: {error.format_message()}", tip=f"see dflash-convert {name} --help") from None


def _check_own(name: str, command: click.Command, fixed: list[str], own: Sequence[str]) -> None:
    """UsageError for an option that a job has no use for, that is given twice, or that another key gives already."""
    keys = {option.name for option in _options(command, fixed)} - {"threads"}
    seen = set()
    for option in _options(command, own):
        parameter, shown = str(option.name), option.opts[-1]
        if shown == "--help" or parameter in NO_PLACE[name]:
            raise UsageError(f"{shown} has no place in {name} = …", tip=NO_PLACE[name].get(parameter))
        if option.multiple:
            continue
        if parameter in keys:
            raise UsageError(f"{name} = … has {shown}, and the pair has {parameter} = …", tip="give one of them")
        if parameter in seen:
            raise UsageError(f"{name} = … has {shown} twice", tip="give it once")
        seen.add(parameter)


def _options(command: click.Command, words: Sequence[str]) -> list[click.Option]:
    """The options that ``words`` give, in their order, repeated ones too; nothing is called."""
    context = click.Context(command, **command.context_settings)
    _, _, order = command.make_parser(context).parse_args(list(words))
    return [each for each in order if isinstance(each, click.Option)]


def _all(plan: Release, given: BatchGiven) -> Summary:
    from dflash_convert.release.batch import run_batch

    def detail(text: str) -> None:
        say(text, quiet=given.quiet or not given.verbose)

    runner = _runner(plan, given, detail)
    with given.bar("jobs", "jobs") as bar:
        return run_batch(plan, runner, given.say, force=given.force, package=not given.no_package, watch=bar)


def _runner(plan: Release, given: BatchGiven, log: Callable[[str], None]) -> Runner:
    if given.scheduler:
        from dflash_convert.release.cluster import ClusterRunner

        return ClusterRunner(plan, given.scheduler, force=given.force)
    from dflash_convert.release.batch import LocalRunner

    return LocalRunner(plan, given.workers, force=given.force, log=log)


def _table(summary: Summary) -> str:
    rows = [("job", "status", "exit", "accepted", "length", "file")]
    for kind, outcomes in (("", summary.jobs), ("package ", summary.packages)):
        for each in outcomes:
            accepted = "" if each.acceptance is None else percent(each.acceptance)
            length = "" if each.mean_length is None else f"{each.mean_length:.2f}"
            last = each.file or (f"{each.step}: {each.message}" if each.step else each.message or "")
            rows.append((kind + each.name, each.status, str(each.exit_code), accepted, length, last))
    return "\n".join(columns(rows, width=width()))


def convert_arguments(job: Job, threads: int | None) -> list[str]:
    pair = job.pair
    call = [pair.drafter, "--target-model-dir", pair.target, "-t", job.type]
    for option, value in (
        ("--target-name", pair.target_name),
        ("--model-name", pair.model_name),
        ("--pre", pair.pre),
        ("--threads", threads),
    ):
        call += _option(option, value)
    return call


def validate_arguments(job: Job) -> list[str]:
    """The drafter's place is held by the job's name: it is made only now."""
    pair = job.pair
    call = [job.name, str(pair.target_gguf)]
    for option, value in (
        ("--prompts", pair.prompts),
        ("--n-max", pair.n_max),
        ("--min-acceptance", pair.min_acceptance),
        ("--min-mean-length", pair.min_mean_length),
        ("--llama-server", pair.llama_server),
    ):
        call += _option(option, value)
    return call


def _option(name: str, value: object) -> list[str]:
    return [] if value is None else [name, str(value)]
