"""No disturbance of the machine becomes a claim: the whole validation, on a simulated engine with scripted delays."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
from simulated_engine import Machine, always_wrong, busy, quiet, setup, stall, warming

from dflash_convert.validation import rounds, run
from dflash_convert.validation.result import ValidationResult

SEEDS = 200
TRUTHS = (1.0, 0.6, 1.5, 2.5)  # how many times faster drafting really is
FALSE = {1.0: ("faster", "slower"), 0.6: ("faster",), 1.5: ("slower",), 2.5: ("slower",)}
DELAYS = {
    "plain noise": quiet,
    "a stall in the baseline": stall(False),
    "a stall in the drafted run": stall(True),
    "a machine that warms up": warming,
    "another program that comes and goes": busy,
}


def validated(machine: Machine, monkeypatch: pytest.MonkeyPatch, **options: int) -> ValidationResult:
    monkeypatch.setattr(rounds, "start", machine.start)
    return run.validate(setup(**options))


@pytest.mark.parametrize("name", DELAYS)
def test_no_false_claim_in_200_runs(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, false = [], []
    for truth in TRUTHS:
        found: Counter[str] = Counter()
        for seed in range(SEEDS):
            result = validated(Machine(truth, DELAYS[name], seed), monkeypatch)
            found[result.gain] += 1
            if result.gain in FALSE[truth]:
                false.append((truth, seed, result.speed))
        shown = ", ".join(f"{gain} {count / SEEDS:.1%}" for gain, count in found.most_common())
        lines.append(f"  really {truth:g} x: {shown}")
    with capsys.disabled():
        sys.stdout.write("\n".join([f"\n{name}, {SEEDS} runs each, {len(false)} false claims:", *lines, ""]))
    assert not false


@pytest.mark.parametrize("truth", [0.6, 1.5, 2.5])
def test_real_gains_are_seen_on_a_quiet_machine(truth: float, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = "faster" if truth > 1 else "slower"
    for seed in range(30):
        result = validated(Machine(truth, quiet, seed), monkeypatch)
        speed = result.speed
        assert speed is not None
        assert result.gain == wanted
        assert speed.low is not None
        assert speed.high is not None
        assert speed.low < truth < speed.high


def test_what_cannot_be_is_measured_again_and_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(2.0, always_wrong, 1)
    result = validated(machine, monkeypatch)
    assert (result.gain, result.total.speedup) == ("disturbed", None)
    speed = result.speed
    assert speed is not None
    assert (speed.attempts, speed.speedup, speed.low, speed.high, speed.tokens_per_second) == (
        2,
        None,
        None,
        None,
        None,
    )
    assert "cannot gain more than its mean length" in speed.reason
    assert machine.starts == 8  # twice the four of three rounds
    assert result.verdict == "healthy"  # the pair is what it is
    assert result.exit_code == 0


def test_a_stall_is_told_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def once(machine: Machine, drafted: bool, start: int) -> float:
        machine.plan.append(0)
        return 30.0 if len(machine.plan) == 5 else 1.0  # a prompt of the first baseline pass

    result = validated(Machine(1.5, once, 3), monkeypatch)
    assert result.gain == "faster"
    assert result.speed is not None
    assert [(s.drafted, s.round, s.prompt) for s in result.speed.stalls] == [(False, 1, "prompt 3")]
    assert any("1 request stalled" in warning for warning in result.warnings)
    assert result.speed.speedup == pytest.approx(1.5, rel=0.05)


def test_a_drift_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def cooling(machine: Machine, drafted: bool, start: int) -> float:
        return 1 + 0.5 * machine.now / machine.expected

    result = validated(Machine(2.5, cooling, 3), monkeypatch)
    assert result.speed is not None
    assert result.speed.drift is not None
    assert result.speed.drift < 0
    assert any("changed its pace" in warning for warning in result.warnings)


def test_the_sides_take_turns_with_few_engine_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    for count, starts in ((1, 2), (2, 3), (3, 4), (5, 6)):
        machine = Machine(1.5, quiet, 1)
        result = validated(machine, monkeypatch, rounds=count)
        assert machine.starts == starts
        assert (result.gain == "faster") is (count >= 3)
        assert result.settings.rounds == count
