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
@click.option("--threads", type=click.IntRange(1), help="Worker processes of a conversion; default: a fair share.")
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
    with leaving("finished jobs are kept"):
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
    from dflash_convert.release.plan import PLACES

    for key in ("drafter", "target"):
        text = getattr(job.pair, key)
        if not Path(text).exists() and (text.startswith((".", "/", "~")) or hub.parse_spec(text) is None):
            yield f"{key} {text} does not exist and is not a Hub id"
    for key in PLACES:
        text = getattr(job.pair, key)
        if text is not None and not Path(text).is_file():
            yield f"{key} {text} does not exist"
    try:
        asked = _asked(job, None)
        files = [asked.types.imatrix]
        if job.pair.target_gguf:
            wanted = _proof(job)
            files += [wanted.thresholds, wanted.reference]
            if not any(file and not file.is_file() for file in files):
                _proving(job)
    except DflashError as error:
        yield f"{error}{f' ({error.tip})' if error.tip else ''}"
        return
    yield from (f"{file} does not exist" for file in files if file is not None and not file.is_file())


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
            outcome, result = run_job(job, lambda: task_of(job, given), watcher, force=given.force)
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

    asked = _asked(job, given.threads)
    task = convert.task_of(replace(asked, quiet=given.quiet, verbose=given.verbose))
    return replace(task, proving=_proving(job))


def _asked(job: Job, threads: int | None) -> ConvertGiven:
    from dflash_convert.cli import convert

    asked = _parse("convert", convert.command, convert.ConvertGiven, convert_arguments(job, threads))
    for unwanted, there, tip in (
        ("--dry-run", asked.dry_run, None),
        ("--validate", asked.validate, "target_gguf = … validates a pair"),
        ("--outtype", len(asked.outtypes) > 1, "types = […] says which files to make"),
    ):
        if there:
            raise UsageError(f"{unwanted} has no place in convert = …", tip=tip)
    convert.check_options(asked)
    return asked


def _proof(job: Job) -> ValidateGiven:
    from dflash_convert.cli import validate

    asked = _parse("validate", validate.command, validate.ValidateGiven, validate_arguments(job))
    unwanted = "--html" if asked.html else "--save-reference" if asked.save_reference else None
    if unwanted:
        raise UsageError(f"{unwanted} has no place in validate = …: the job's report is validation.json")
    return asked


def _proving(job: Job) -> Proving:
    from dflash_convert.cli import validate
    from dflash_convert.pipeline import Proving

    wanted = validate.options_of(_proof(job)) if job.pair.target_gguf else None
    return Proving(wanted, job.pair.n_max, job.pair.fidelity)


def _parse(name: str, command: click.Command, kind: type[G], arguments: list[str]) -> G:
    try:
        return parse(command, kind, arguments)
    except click.ClickException as error:
        raise UsageError(f"{name} = …: {error.format_message()}", tip=f"see dflash-convert {name} --help") from None


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
    return [*call, *pair.convert]


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
    return [*call, *pair.validate]


def _option(name: str, value: object) -> list[str]:
    return [] if value is None else [name, str(value)]
