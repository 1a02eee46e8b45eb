"""dflash-convert compare TARGET.gguf CANDIDATE…"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dflash_convert.cli import nextsteps
from dflash_convert.cli.common import json_option, takes, verbosity_options
from dflash_convert.cli.contest import FILE, ContestGiven, contest_options
from dflash_convert.cli.swapped import put_right
from dflash_convert.cli.terminal import echo, emit, stays
from dflash_convert.errors import UsageError

if TYPE_CHECKING:
    from dflash_convert.contest.images import Survival
    from dflash_convert.contest.judge import Ruling
    from dflash_convert.contest.trees import Estimate
    from dflash_convert.contest.trial import Work
    from dflash_convert.contest.works import Loads
    from dflash_convert.validation.net import Net


@dataclass(frozen=True, kw_only=True)
class CompareGiven(ContestGiven):
    parallel: str | None
    context: str | None
    sampled: float | None
    resumed: bool
    thinking: bool
    targets: bool
    tree: str | None

    @property
    def users(self) -> int:
        return max(self._parallel, default=1)

    @property
    def _parallel(self) -> tuple[int, ...]:
        from dflash_convert.contest.prepare import sizes
        from dflash_convert.memory.plan import MAX_SLOTS

        return sizes(self.parallel, "--parallel", MAX_SLOTS)

    @property
    def nodes(self) -> tuple[int, ...]:
        """``--tree``."""
        from dflash_convert.contest.prepare import sizes
        from dflash_convert.contest.trees import MOST_NODES

        return sizes(self.tree, "--tree", MOST_NODES)

    def loads(self) -> Loads:
        from dflash_convert.contest.prepare import sizes
        from dflash_convert.contest.works import Loads

        raised = f"{self.ctx_size:,} is --ctx-size: raise it, or give less (1k is 1,024 tokens)"
        contexts = sizes(self.context, "--context", self.ctx_size, raised)
        return Loads(self._parallel, contexts, self.sampled, self.resumed, self.thinking)


@click.command("compare")
@click.argument("target", type=FILE, metavar="TARGET.gguf")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="CANDIDATE… [-- LLAMA-SERVER-ARGS…]")
@contest_options
@click.option("--rounds", type=click.IntRange(3, 20), default=3, show_default=True, help="Rounds of every candidate.")
@click.option("--parallel", metavar="N,N…", help="Also with this many requests at once.")
@click.option("--context", metavar="N,N…", help="Also at these context lengths, for example 1k,8k.")
@click.option("--sampled", type=click.FloatRange(0.01, 5), metavar="T", help="Also sampled at this temperature.")
@click.option("--resumed", is_flag=True, help="Also conversations whose beginning is cached.")
@click.option("--tree", metavar="N,N…", help="Estimate trees of so many nodes; llama.cpp runs none.")
@click.option("--targets", is_flag=True, help="TARGET… DRAFTER: one drafter on several targets.")
@click.option("--thinking", is_flag=True, help="Also with the template's thinking on and off.")
@json_option
@verbosity_options
@takes(CompareGiven)
def command(given: CompareGiven) -> None:
    """Run several drafters, settings and methods without a drafter on the same work, and say which to take.

    A CANDIDATE is FILE.gguf[,n-max=N][,p-min=P], a method such as ngram-mod, or FILE.gguf+ngram-mod. No drafter is
    always one of them. Every candidate answers every prompt once a round, in turned order; finished runs are kept, so
    an interrupted comparison goes on where it stopped.

    With --targets all words but the last are targets, and the last is the drafter: which of them keep its acceptance.
    """
    stays(given.kept, goes_on=not given.fresh)
    if given.targets:
        _siblings(given)
        return
    from dflash_convert.contest import images, preset, pruned, report, trees, works
    from dflash_convert.contest.judge import rule
    from dflash_convert.contest.trial import run
    from dflash_convert.report import contest

    loads, nodes = given.loads(), given.nodes
    made = given.prepared("dflash-convert compare TARGET.gguf DRAFTER.gguf ngram-mod")
    rulings: list[Ruling] = []
    kinds: list[Ruling] = []
    survived: tuple[Survival, ...] = ()
    guessed: tuple[Estimate, ...] = ()
    net: list[Net] = []
    for work in works.make(made.engines, made.items, made.chats, loads, given.say):
        with given.bar(work.label, "requests") as bar:
            book = run(made.engines, made.candidates, work, given.rounds, made.store, given.say, watch=bar)
        parts = dict.fromkeys(work.kinds) if work.apart else {None: None}
        rulings += [rule(label(work, part), made.candidates, book, work, part) for part in parts]
        if nodes and not guessed:
            guessed = trees.estimates(made, book, work, nodes, given.say)
        if work.label == images.LABEL:
            survived = images.survivals(made.candidates, book, work)
        if not net and work.parallel == 1 and not work.apart:
            net = pruned.nets(made.candidates, book, work)
        if len(rulings) == 1 and len(set(work.kinds)) > 1:
            kinds = [rule(kind, made.candidates, book, work, kind) for kind in dict.fromkeys(work.kinds)]
    winner = rulings[0].winner.candidate
    if given.as_json:
        document = report.compare_json(rulings, kinds, made, survived, net) | {"trees": trees.trees_json(guessed)}
        emit(document)
    else:
        echo("\n\n".join(map(report.table, rulings)))
        if guessed:
            echo("\n" + "\n".join(trees.lines(guessed)))
        echo("\n" + report.memory(rulings, made))
        lines = [*map(report.advice, (*rulings, *kinds)), *map(report.survival, survived)]
        lines += [line for each in net for line in each.lines]
        echo("\n" + "\n".join(lines))
        nextsteps.show(given, [("run it", [preset.command(given.target, winner)])])
    given.write_preset(winner)
    given.write_html(
        winner, lambda *texts: contest.render(contest.Shown(made, rulings, kinds, guessed=guessed, nets=net), *texts)
    )


def _siblings(given: CompareGiven) -> None:
    from dataclasses import replace

    from dflash_convert.contest import siblings

    *others, drafter = given.candidates or ("",)
    if not others:
        example = "dflash-convert compare --targets A.gguf B.gguf DRAFTER.gguf"
        raise UsageError("--targets needs two targets and a drafter", tip=example)
    more = ("parallel", "context", "sampled", "resumed", "thinking", "preset", "html", "tree")
    if unused := next((name for name in more if getattr(given, name)), None):
        raise UsageError(f"--targets does not go with --{unused}", tip="run compare for one target")
    targets = [given.target, *map(Path, others)]
    if twice := [path for i, path in enumerate(targets) if path.resolve() in [p.resolve() for p in targets[:i]]]:
        raise UsageError(f"--targets names {twice[0]} twice", tip="name every target once")
    options = replace(given.options(), candidates=(drafter,))
    with put_right(drafter, [str(given.target), *others]):
        made, found = siblings.compare_targets(options, targets, given.rounds, given.say, given.detail)
    if given.as_json:
        emit(siblings.document(made, found))
    else:
        siblings.show(made, found, echo)


def label(work: Work, part: str | None) -> str:
    """What a ruling is about: the whole load, or one part of a load whose parts are not to be added up."""
    return work.label if part is None else f"{work.label}, {part}"
