"""Greedy speculative decoding of a pair, counted as llama.cpp counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dflash_convert.errors import PairingError, UsageError
from dflash_convert.forward.drafter import Drafter
from dflash_convert.forward.heads import Draft
from dflash_convert.forward.target import Target


@dataclass(frozen=True, slots=True)
class Step:
    """One step: the last committed token and its position, what was drafted after it, how many were right.

    ``gaps`` belong to the drafts: the distance of each to its runner-up.
    """

    position: int
    token: int
    drafted: tuple[int, ...]
    accepted: int
    gaps: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Generation:
    """Output ids and every step in order."""

    ids: tuple[int, ...]
    steps: tuple[Step, ...]

    @property
    def drafted(self) -> int:
        return sum(len(step.drafted) for step in self.steps)

    @property
    def accepted(self) -> int:
        return sum(step.accepted for step in self.steps)


def generate(
    target: Target,
    drafter: Drafter,
    prompt: Sequence[int],
    n_predict: int,
    n_max: int,
    stop: Sequence[int] = (),
) -> Generation:
    """Decode ``n_predict`` tokens after ``prompt``, or up to a token of ``stop``.

    The first token comes with the prompt; a step drafts min(n_max, tokens left - 1) tokens, although the
    drafter's block always has its full width.  ``n_max`` is clamped to the drafter's block, as in the runtime.
    """
    if n_predict < 1 or n_max < 1:
        raise UsageError(f"n_predict {n_predict} and n_max {n_max} must be at least 1")
    if target.hyper.hidden != drafter.hyper.hidden:
        raise PairingError(f"hidden sizes differ: drafter {drafter.hyper.hidden}, target {target.hyper.hidden}")
    taps = drafter.hyper.target_layers
    seen, context = target.new_cache(), drafter.new_cache()
    logits, features = target.forward(prompt, seen, taps)
    drafter.inject(context, features)
    out, steps = [int(logits[-1].argmax())], []
    while len(out) < n_predict and out[-1] not in stop:
        limit = min(n_max, n_predict - len(out) - 1)
        draft = drafter.draft(context, out[-1], n_max).first(limit) if limit else Draft((), ())
        start = seen.length
        logits, features = target.forward([out[-1], *draft.tokens], seen, taps)
        best = [int(t) for t in logits.argmax(axis=-1)]
        accepted = _matching(draft.tokens, best)
        steps.append(Step(start, out[-1], draft.tokens, accepted, draft.gaps))
        seen.truncate(start + accepted + 1)
        drafter.inject(context, features[: accepted + 1])
        out.extend(_until(best[: accepted + 1], stop))
    return Generation(tuple(out), tuple(steps))


def _matching(drafted: Sequence[int], best: Sequence[int]) -> int:
    for i, token in enumerate(drafted):
        if token != best[i]:
            return i
    return len(drafted)


def _until(tokens: Sequence[int], stop: Sequence[int]) -> Sequence[int]:
    for i, token in enumerate(tokens):
        if token in stop:
            return tokens[: i + 1]
    return tokens
