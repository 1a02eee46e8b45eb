"""The search and the ranking on machines whose true speeds are known."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from machines import MACHINES, Effect, Engine, Machine, drafter

from dflash_convert.contest.candidates import NOTHING, Candidate
from dflash_convert.contest.judge import rule
from dflash_convert.contest.search import P_MINS
from dflash_convert.contest.trial import Store, Work, run
from dflash_convert.contest.tune import tune
from dflash_convert.contest.tweaks import BACKEND_SAMPLING, CACHE, HOST_SAMPLED, NGRAM, ON_CPU, Tweak
from dflash_convert.engine.trace import Request
from dflash_convert.measure.speed import FASTER, SLOWER

REQUESTS = tuple(Request(f"prompt {i}", 128) for i in range(12))
WORK = Work("main", tuple(f"p{i}" for i in range(12)), ("code",) * 12, REQUESTS)
NO_STORE = Store(None, "")


def effects(seed: int) -> dict[Tweak, Effect]:
    """What tweaks do differs from machine to machine: some help, most do nothing or harm; a quantized draft cache ruins
    acceptance on one in four."""
    luck = random.Random(f"{seed} tweaks")
    ruined = luck.random() < 0.25
    return {
        CACHE: Effect(draft=luck.uniform(0.9, 1.0), right=0.1 if ruined else luck.uniform(0.97, 1.0)),
        HOST_SAMPLED: Effect(draft=luck.uniform(0.95, 1.4)),
        BACKEND_SAMPLING: Effect(verify=luck.uniform(0.9, 1.15)),
        ON_CPU: Effect(draft=luck.uniform(0.8, 6.0)),
        NGRAM: Effect(verify=luck.uniform(0.95, 1.05)),
    }


def machine(seed: int) -> Machine:
    luck = random.Random(seed)
    costs = MACHINES[list(MACHINES)[seed % len(MACHINES)]]
    return Machine(costs, seed, {"a": luck.uniform(0.45, 0.95)}, fade=luck.uniform(0.9, 0.99))


def optimum(played: Machine, drafter: Candidate) -> float:
    """The speed of the best of all depths, ``p-min`` and sets of tweaks. What changes times alone has its best value at
    every depth, so that half of the tweaks need no trial of their own."""
    effects = played.effects
    helpful = [each for each, e in effects.items() if e.right == 1 and max(e.verify, e.draft) <= 1]
    speeds = [played.speed(NOTHING, REQUESTS)]
    for cached in ([], [CACHE]):
        for n in range(1, drafter.cap + 1):
            for p_min in (None, *P_MINS):
                whole = replace(drafter, n_max=n, p_min=p_min, tweaks=(*helpful, *cached))
                speeds.append(played.speed(whole, REQUESTS))
    return max(speeds)


def test_tune_ends_near_the_exhaustive_optimum_in_a_third_of_its_starts(capsys: pytest.CaptureFixture[str]) -> None:
    good, shares, seeds = 0, [], 100
    candidate = drafter("a")
    for seed in range(seeds):
        played = replace(machine(seed), effects=effects(seed))
        found = tune(played, [candidate], WORK, NO_STORE, tweaks=lambda _, known=tuple(played.effects): known)
        good += played.speed(found.best, REQUESTS) >= 0.98 * optimum(played, candidate)
        shares.append(found.starts / found.exhaustive)
    told = f"{good} of {seeds} machines within 2 %, at most {max(shares):.0%} of the exhaustive search's engine starts"
    with capsys.disabled():
        sys.stdout.write(f"\n{told}\n")
    assert good >= 95, told
    assert max(shares) <= 1 / 3, told


def test_a_disturbed_run_of_the_target_alone_is_made_again() -> None:
    """Another program takes the machine while the first engine runs: everything else looks ten times as fast."""

    class Disturbed(Machine):
        @contextmanager
        def start(self, candidate: Candidate, parallel: int = 1) -> Iterator[Engine]:
            with super().start(candidate, parallel) as engine:
                engine.pace *= 10 if self.starts == 1 else 1
                yield engine

    costs, told = MACHINES["Apple"], list[str]()
    found = tune(Disturbed(costs, 1, {"a": 0.7}), [drafter("a", 7)], WORK, NO_STORE, told.append)
    calm = tune(Machine(costs, 1, {"a": 0.7}), [drafter("a", 7)], WORK, NO_STORE)
    assert any("cannot be" in line for line in told)
    assert found.target_ms == pytest.approx(calm.target_ms, rel=0.1)
    assert all(m.speedup <= 1.1 * m.length for m in found.measured)
    assert [p.speedup for p in found.predictions["a"]] == pytest.approx(
        [p.speedup for p in calm.predictions["a"]], rel=0.15
    )


def test_equal_candidates_are_not_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    different, seeds = 0, 200
    for seed in range(seeds):
        equal = [drafter("a", 7, size=100), replace(drafter("a", 7, size=200), name="a")]
        book = run(machine(seed), (NOTHING, *equal), WORK, 3, NO_STORE)
        ruling = rule("main", (NOTHING, *equal), book, WORK)
        one, other = (standing for standing in ruling.standings[1:])
        different += one.best is not other.best
        if ruling.pays:
            assert ruling.winner.candidate.size == 100, "of equals the smaller wins"
    told = f"{different} of {seeds} pairs of equal candidates were ranked as different"
    with capsys.disabled():
        sys.stdout.write(f"\n{told}\n")
    assert different <= 0.05 * seeds, told


def test_nothing_is_called_faster_that_is_not() -> None:
    """A drafter that is never right, on every machine."""
    wrong = 0
    for seed in range(100):
        useless = Machine(machine(seed).costs, seed, {"a": 0.02})
        book = run(useless, (NOTHING, drafter("a", 4)), WORK, 3, NO_STORE)
        ruling = rule("main", (NOTHING, drafter("a", 4)), book, WORK)
        wrong += ruling.pays
        speed = ruling.standings[1].speed
        assert speed is not None
        assert speed.gain != FASTER
    assert wrong == 0


def test_a_slow_drafter_is_called_slower_on_a_small_cpu() -> None:
    slow = sum(
        rule("main", pair, run(Machine(MACHINES["CPU"], seed, {"a": 0.4}), pair, WORK, 3, NO_STORE), WORK)
        .standings[1]
        .speed.gain  # type: ignore[union-attr]
        == SLOWER
        for seed in range(50)
        if (pair := (NOTHING, drafter("a", 15)))
    )
    assert slow >= 45
