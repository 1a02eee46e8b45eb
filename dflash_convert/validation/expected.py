"""What a validation will do: requests for its progress, and what is told before it begins."""

from __future__ import annotations

from dflash_convert.measure.schedule import schedule
from dflash_convert.text import counted, duration, named
from dflash_convert.validation import sweep
from dflash_convert.validation.requests import LONG_REQUESTS, SOME
from dflash_convert.validation.setup import Setup


def requests(setup: Setup) -> int:
    """At most so many: a broken pair ends early, and not every template has a thinking mode to switch."""
    turns, options = _turns(setup), setup.options
    count, once = sum(turns), a_round(setup)
    if options.quick:
        return setup.rounds * once
    others = min(SOME, count) if options.sampled else 0
    if options.thinking == "both" and setup.chats:
        chats = [turn for turn, item in zip(turns, setup.items, strict=True) if item.prompt is None]
        others += sum(chats[:SOME])
    others += min(LONG_REQUESTS, count) if options.long_context else 0
    return setup.rounds * once + 2 * others


def _turns(setup: Setup) -> list[int]:
    return [len(item.turns) or 1 for item in setup.items]


def a_round(setup: Setup) -> int:
    """Requests of one round: without the drafter, with it, with the one beside it, and at the other draft lengths."""
    count = sum(_turns(setup))
    sides = 2 if setup.beside is None else 3
    return sides * count + (len(setup.n_max) - 1) * len(sweep.chosen(count))


def plan(setup: Setup) -> str:
    """What will be run, in a line."""
    sides = 1 + len(setup.n_max) + (setup.beside is not None)
    starts = len(schedule(sides, setup.rounds))
    if setup.rounds == 1 and not setup.options.quick:
        starts += 2  # the other runs have no later start to share
    return (
        f"will run {counted(len(setup.items), 'prompt')} ({named([item.name for item in setup.items])}) in "
        f"{counted(setup.rounds, 'round')}: at most {counted(requests(setup), 'request')}, "
        f"{counted(starts, 'engine start')}"
    )


def left(setup: Setup, seconds: float) -> str | None:
    """What the first round says of the rest, after ``seconds``; None when it was all."""
    once = a_round(setup)
    more = requests(setup) - once
    if not more:
        return None
    return f"the first round took {duration(seconds)}: about {duration(seconds / once * more)} left, or less"
