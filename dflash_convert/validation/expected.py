"""How many requests a validation will make, for its progress."""

from __future__ import annotations

from dflash_convert.validation import sweep
from dflash_convert.validation.requests import LONG_REQUESTS, SOME
from dflash_convert.validation.setup import Setup


def requests(setup: Setup) -> int:
    """At most so many: a broken pair ends early, and not every template has a thinking mode to switch."""
    turns = [len(item.turns) or 1 for item in setup.items]
    count, options = sum(turns), setup.options
    once = 2 * count + (len(setup.n_max) - 1) * len(sweep.chosen(count))
    if options.quick:
        return setup.rounds * once
    others = min(SOME, count) if options.sampled else 0
    if options.thinking == "both" and setup.chats:
        chats = [turn for turn, item in zip(turns, setup.items, strict=True) if item.prompt is None]
        others += sum(chats[:SOME])
    others += min(LONG_REQUESTS, count) if options.long_context else 0
    return setup.rounds * once + 2 * others
