"""One drafter on several targets: fine-tunes, other trainings, other encodings. Which of them keep its acceptance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dflash_convert.contest.judge import Ruling, Standing, rule
from dflash_convert.contest.prepare import Contest, Options, prepare
from dflash_convert.contest.report import head_json, ruling_json
from dflash_convert.contest.trial import Say, run
from dflash_convert.contest.works import Loads, make
from dflash_convert.errors import PairingError
from dflash_convert.text import columns, counted, percent, shorten
from dflash_convert.validation.pair import copied, read_target

KEEPS, LOSES = 0.9, 0.3  # shares of the first target's acceptance
NAME = 30  # characters of a target's name


@dataclass(frozen=True)
class Sibling:
    """One target with the drafter: its contest against no drafter, or why it was not run."""

    target: Path
    ruling: Ruling | None = None
    refused: str = ""

    @property
    def drafted(self) -> Standing | None:
        return None if self.ruling is None else self.ruling.standings[1]

    @property
    def acceptance(self) -> float | None:
        """Share of the drafts that the target kept, 0 to 1."""
        each = self.drafted
        return None if each is None or not each.drafted else each.accepted / each.drafted


def compare_targets(
    options: Options, targets: Sequence[Path], rounds: int, say: Say, detail: Say = lambda _: None
) -> tuple[Contest, tuple[Sibling, ...]]:
    """``options`` with one drafter, run on each of ``targets``; a target that ``check`` refuses is listed and not run.
    PairingError when that is all of them. The contest is that of the first that ran."""
    for target in targets:
        read_target(target)  # a drafter among them is told before anything runs
    say(f"will run the drafter on {counted(len(targets), 'target')}, {counted(rounds, 'round')} each")
    for note in copied("target", targets):
        say(f"WARNING: {note.text}")
    first: Contest | None = None
    found = []
    for target in targets:
        try:
            made = prepare(replace(options, target=target), detail)
        except PairingError as error:
            found.append(Sibling(target, refused=str(error)))
            say(f"not run: {error}")
            continue
        first = first or made
        work = make(made.engines, made.items, made.chats, Loads(), say)[0]
        say(f"target {target.name}")
        book = run(made.engines, made.candidates, work, rounds, made.store, say)
        found.append(Sibling(target, rule(work.label, made.candidates, book, work)))
    if first is None:
        raise PairingError(f"the drafter fits none of the targets: {found[0].refused}", tip="dflash-convert check")
    return first, tuple(found)


def kept(found: Sequence[Sibling], each: Sibling) -> float | None:
    """Acceptance as a share of that on the first target that ran; None where nothing was drafted."""
    first = next((s.acceptance for s in found if s.acceptance is not None), None)
    return each.acceptance / first if first and each.acceptance is not None else None


def table(found: Sequence[Sibling]) -> str:
    """One row a target, 80 columns at most."""
    rows: list[tuple[str, ...]] = [("target", "accepted", "kept", "length", "x", "spread", "gain")]
    for sibling in found:
        each = sibling.drafted
        if each is None:
            continue
        share, speed = kept(found, sibling), each.speed
        claimed = speed is not None and speed.claimed
        rows.append(
            (
                shorten(sibling.target.stem, NAME),
                "" if sibling.acceptance is None else percent(sibling.acceptance),
                "" if share is None else percent(share, 0),
                "" if each.length is None else f"{each.length:.2f}",
                f"{speed.measured:.2f}" if speed and claimed else "",
                f"{speed.spread[0]:.2f}-{speed.spread[1]:.2f}" if speed and claimed else "",
                str(speed.gain) if speed else "",
            )
        )
    return "\n".join(columns(rows, "<>"))


def advice(found: Sequence[Sibling]) -> list[str]:
    """One sentence a target."""
    first = next(each for each in found if each.ruling is not None)
    return [_sentence(found, first, each) for each in found if each is not first]


def _sentence(found: Sequence[Sibling], first: Sibling, each: Sibling) -> str:
    if each.ruling is None:
        return f"{each.target.name}: not run, {each.refused}"
    share = kept(found, each)
    if share is None:
        return f"{each.target.name}: nothing was accepted on {first.target.name}, so there is nothing to keep"
    verdict = "keeps" if share >= KEEPS else "loses most of" if share < LOSES else "loses a part of"
    more = f" ({percent(share, 0)} of it)"
    cure = "" if share >= KEEPS else "; a drafter of its own would draft better"
    return f"{each.target.name}: {verdict} {first.target.name}'s acceptance{more}{cure}"


def document(made: Contest, found: Sequence[Sibling]) -> dict[str, Any]:
    """What ``compare --targets --json`` prints."""
    rows = []
    for each in found:
        share = kept(found, each)
        rows.append(
            {
                "path": str(each.target),
                "refused": each.refused or None,
                "kept": None if share is None else round(share, 4),
                "pays": each.ruling is not None and each.ruling.pays,
                "work": None if each.ruling is None else ruling_json(each.ruling),
            }
        )
    return {**head_json("siblings", made), "targets": rows, "advice": advice(found)}


def show(made: Contest, found: Sequence[Sibling], echo: Callable[[str], None]) -> None:
    """The table and what it says, for people."""
    drafter = made.candidates[1]
    echo(f"{drafter.name}, {drafter.settings}, on {len(found)} targets; kept: share of the first one's acceptance")
    echo(table(found))
    echo("\n" + "\n".join(advice(found)))
