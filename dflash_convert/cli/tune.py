"""dflash-convert tune TARGET.gguf DRAFTER.gguf…"""

from __future__ import annotations

import re
from dataclasses import dataclass

import click

from dflash_convert.cli import nextsteps
from dflash_convert.cli.common import json_option, takes, verbosity_options
from dflash_convert.cli.contest import FILE, ContestGiven, contest_options
from dflash_convert.cli.terminal import echo, emit, stays
from dflash_convert.errors import UsageError

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, kw_only=True)
class TuneGiven(ContestGiven):
    limit: str | None
    sampled: float | None


@click.command("tune")
@click.argument("target", type=FILE, metavar="TARGET.gguf")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="DRAFTER.gguf… [-- LLAMA-SERVER-ARGS…]")
@contest_options
@click.option("--rounds", type=click.IntRange(3, 20), default=3, show_default=True, help="Rounds of the final.")
@click.option("--time", "limit", metavar="10m", help="Start no new trial after half of this; the final always runs.")
@click.option("--sampled", type=click.FloatRange(0.01, 5), metavar="T", help="Sample at this temperature. [greedy]")
@json_option
@verbosity_options
@takes(TuneGiven)
def command(given: TuneGiven) -> None:
    """Find the settings that pay on this machine and for these prompts.

    One run at the whole block gives acceptance by position, a few short ones give what a step costs; the speed of every
    draft length follows. Around the best p-min, the drafter's cache type and place, where sampling happens, threads and
    a method mixed in are tried, as far as the engine has them, and a final of several rounds confirms the best few
    against no drafter.
    """
    stays(given.kept, goes_on=not given.fresh)
    from dflash_convert.contest import preset, report, works
    from dflash_convert.contest.tune import tune
    from dflash_convert.contest.tweaks import tweaks
    from dflash_convert.report import contest

    made = given.prepared("dflash-convert tune TARGET.gguf DRAFTER.gguf")
    drafters = made.candidates[1:]
    without = [each.name for each in drafters if each.drafter is None]
    if without:
        raise UsageError(f"{without[0]} has no settings to tune", tip="compare runs it beside a drafter")
    main, *sampled = works.make(made.engines, made.items, made.chats, works.Loads(temperature=given.sampled))
    work = main if given.sampled is None else sampled[0]
    engines = made.engines
    with given.bar("tuning", "requests") as bar:
        found = tune(
            engines,
            drafters,
            work,
            made.store,
            given.say,
            _seconds(given.limit),
            given.rounds,
            lambda best: tweaks(
                made.engines.info, made.engines.launch, best.methods, sampled=given.sampled is not None
            ),
            watch=bar,
        )
    if given.as_json:
        emit(report.tune_json(found, made))
    else:
        echo(report.tune_text(found))
        echo("\n" + report.memory([found.ruling], made))
        nextsteps.show(given, [("run it", [preset.command(given.target, found.best)])])
    given.write_preset(found.best)
    shown = contest.Shown(made, [found.ruling], found=found)
    given.write_html(found.best, lambda *texts: contest.render(shown, *texts))


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,6})([smh]?)", text)
    if match is None:
        raise UsageError(f"--time {text} is not a length of time", tip="for example 10m, 90s or 1h")
    return int(match[1]) * UNITS[match[2] or "s"]
