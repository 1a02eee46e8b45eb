"""dflash-convert batch release.toml"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dflash_convert.cli.common import json_option, say, verbosity_options

if TYPE_CHECKING:
    from dflash_convert.release.batch import Runner, Summary
    from dflash_convert.release.plan import Release


@click.command("batch")
@click.argument("release", metavar="RELEASE.toml", type=click.Path(path_type=Path))
@click.option("-j", "--jobs", "workers", type=click.IntRange(1), default=1, show_default=True, help="Jobs at a time.")
@click.option("--scheduler", metavar="ADDRESS", help="Run the jobs on this Dask cluster (tcp://host:port).")
@click.option("--job", metavar="NAME|N", help="Run one job (PAIR/TYPE, or its number from 0) and package nothing.")
@click.option("--list", "list_jobs", is_flag=True, help="List the jobs and run nothing.")
@click.option("--no-package", is_flag=True, help="Only the jobs, no packages.")
@click.option("--threads", type=click.IntRange(1), help="Worker processes of a conversion; default: a fair share.")
@click.option("--force", is_flag=True, help="Run finished jobs again too.")
@click.option("--plain", is_flag=True, help="Accepted for symmetry: batch takes its options from the file.")
@json_option
@verbosity_options
def command(release: Path, **given: Any) -> int:
    """Convert, check, verify, validate and package many pairs, as RELEASE.toml says.

    Every pair and type is a job of its own. Finished jobs whose inputs and outputs are unchanged are skipped, a
    failed one does not stop the rest, and the exit code is that of the worst. Interrupt it at any time; the same
    command goes on.
    """
    from dflash_convert.errors import UsageError
    from dflash_convert.release.plan import read_release

    plan = read_release(release)
    if given["scheduler"] and (given["job"] or given["workers"] > 1):
        raise UsageError("--scheduler excludes --job and --jobs", tip="the cluster decides how many jobs run")
    if given["list_jobs"]:
        _list(plan, given["as_json"])
        return 0
    # a scheduler's or a person's polite end must reach the children, as Ctrl-C does
    signal.signal(signal.SIGTERM, _interrupt)
    summary = _one(plan, given) if given["job"] is not None else _all(plan, given)
    if given["as_json"]:
        click.echo(json.dumps(summary.to_json(), indent=1, ensure_ascii=False))
    else:
        click.echo(_table(summary))
    return summary.exit_code


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _list(plan: Release, as_json: bool) -> None:
    names = [job.name for job in plan.jobs]
    if as_json:
        click.echo(json.dumps({"schema": 1, "out": str(plan.out), "jobs": names}, indent=1))
    else:
        click.echo("\n".join(f"{number:>4}  {name}" for number, name in enumerate(names)))


def _one(plan: Release, given: dict[str, Any]) -> Summary:
    from dflash_convert.errors import DflashError
    from dflash_convert.release.batch import Summary
    from dflash_convert.release.job import Outcome, run_job

    job = plan.job(given["job"])

    def tell(text: str) -> None:
        say(text, quiet=given["quiet"])

    try:
        outcome = run_job(job, tell, force=given["force"], threads=given["threads"])
    except DflashError as error:
        tell(f"ERROR {error}")
        outcome = Outcome(job.name, "failed", error.exit_code, "prepare", str(error))
    return Summary((outcome,), ())


def _all(plan: Release, given: dict[str, Any]) -> Summary:
    from dflash_convert.release.batch import run_batch

    def tell(text: str) -> None:
        say(text, quiet=given["quiet"])

    def detail(text: str) -> None:
        say(text, quiet=given["quiet"] or not given["verbose"])

    runner = _runner(plan, given, detail)
    return run_batch(plan, runner, tell, force=given["force"], package=not given["no_package"])


def _runner(plan: Release, given: dict[str, Any], log: Any) -> Runner:
    if given["scheduler"]:
        from dflash_convert.release.cluster import ClusterRunner

        return ClusterRunner(plan, given["scheduler"], force=given["force"])
    from dflash_convert.release.batch import LocalRunner

    return LocalRunner(plan, given["workers"], force=given["force"], log=log)


def _table(summary: Summary) -> str:
    rows = [("job", "status", "exit", "accepted", "length", "file")]
    for kind, outcomes in (("", summary.jobs), ("package ", summary.packages)):
        for each in outcomes:
            accepted = "" if each.acceptance is None else f"{100 * each.acceptance:.1f} %"
            length = "" if each.mean_length is None else f"{each.mean_length:.2f}"
            last = each.file or (f"{each.step}: {each.message}" if each.step else each.message or "")
            rows.append((kind + each.name, each.status, str(each.exit_code), accepted, length, last))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return "\n".join("  ".join([*(c.ljust(w) for c, w in zip(r, widths, strict=False)), r[5]]).rstrip() for r in rows)
