"""dflash-convert compare TARGET.gguf CANDIDATE…"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from dflash_convert.cli.common import echo, json_option, takes, verbosity_options
from dflash_convert.cli.contest import FILE, ContestGiven, contest_options
from dflash_convert.cli.terminal import emit
from dflash_convert.errors import UsageError

if TYPE_CHECKING:
    from dflash_convert.contest.judge import Ruling
    from dflash_convert.contest.prepare import Contest
    from dflash_convert.contest.trial import Work


@dataclass(frozen=True, kw_only=True)
class CompareGiven(ContestGiven):
    parallel: str | None
    context: str | None

    @property
    def users(self) -> int:
        from dflash_convert.contest.prepare import sizes

        return max(sizes(self.parallel, "--parallel"), default=1)


@click.command("compare")
@click.argument("target", type=FILE, metavar="TARGET.gguf")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="CANDIDATE… [-- LLAMA-SERVER-ARGS…]")
@contest_options
@click.option("--rounds", type=click.IntRange(3, 20), default=3, show_default=True, help="Rounds of every candidate.")
@click.option("--parallel", metavar="N,N…", help="Also so many requests at a time.")
@click.option("--context", metavar="N,N…", help="Also at so many tokens of context, for example 1k,8k.")
@json_option
@verbosity_options
@takes(CompareGiven)
def command(given: CompareGiven) -> None:
    """Run several drafters, settings and methods without a drafter on the same work, and say which to take.

    A CANDIDATE is FILE.gguf[,n-max=N][,p-min=P], a method such as ngram-mod, or FILE.gguf+ngram-mod. No drafter is
    always one of them. Every candidate answers every prompt once a round, in turned order; finished runs are kept, so
    an interrupted comparison goes on where it stopped.
    """
    from dflash_convert.contest import preset, report
    from dflash_convert.contest.judge import rule
    from dflash_convert.contest.trial import run

    made = given.prepared("dflash-convert compare TARGET.gguf DRAFTER.gguf ngram-mod")
    candidates = made.candidates
    rulings: list[Ruling] = []
    kinds: list[Ruling] = []
    for work in _works(made, given):
        book = run(made.engines, candidates, work, given.rounds, made.store, given.say)
        rulings.append(rule(work.label, candidates, book, work))
        if len(rulings) == 1 and len(set(work.kinds)) > 1:
            kinds = [rule(kind, candidates, book, work, kind) for kind in dict.fromkeys(work.kinds)]
    winner = rulings[0].winner.candidate
    given.write_preset(winner)
    if given.as_json:
        emit(report.compare_json(rulings, kinds, made))
        return
    echo("\n\n".join(map(report.table, rulings)))
    echo("\n" + report.memory(rulings, made))
    echo("\n" + "\n".join(report.advice(each) for each in (*rulings, *kinds)))
    given.say(f"\nrun it:  {preset.command(given.target, winner)}")


def _works(made: Contest, given: CompareGiven) -> list[Work]:
    from dflash_convert.contest.engines import long_work, main_work, parallel_work
    from dflash_convert.contest.prepare import sizes

    parallel, contexts = sizes(given.parallel, "--parallel"), sizes(given.context, "--context")
    too_long = [n for n in contexts if n > given.ctx_size]
    if too_long:
        raise UsageError(f"--context {too_long[0]} is more than --ctx-size {given.ctx_size}", tip="raise --ctx-size")
    first = main_work(made.engines, made.items, made.chats)
    works = [first, *(parallel_work(first, n) for n in parallel if n > 1)]
    return [*works, *(long_work(made.engines, made.items, made.chats, n) for n in contexts)]
