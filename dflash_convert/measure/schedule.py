"""The order in which several sides are timed when only one engine can be loaded at a time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stint:
    """One engine start: ``side`` answers all requests once for each of ``rounds`` (numbers from 0)."""

    side: int
    rounds: tuple[int, ...]


def schedule(sides: int, rounds: int) -> tuple[Stint, ...]:
    """Every side once a round, the order turned from round to round.

    Where a round ends with the side that begins the next one the engine stays loaded: two sides in three rounds
    are 0, 1 1, 0 0, 1, four starts instead of six. A machine that becomes slower or faster as time goes on
    favours no side.
    """
    stints: list[Stint] = []
    for number in range(rounds):
        order = range(sides) if number % 2 == 0 else reversed(range(sides))
        for side in order:
            if stints and stints[-1].side == side:
                stints[-1] = Stint(side, (*stints[-1].rounds, number))
            else:
                stints.append(Stint(side, (number,)))
    return tuple(stints)
