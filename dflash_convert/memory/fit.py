"""The memory plan turned round: what fits into so many bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dflash_convert.errors import UsageError
from dflash_convert.memory.plan import CACHE_TYPES, CELL_PAD, MAX_CONTEXT, Model, Serving, mib, plan_memory

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "MB": 10**6, "GB": 10**9, "TB": 10**12}
NO_DRAFTER = Model((), window=0, hidden=0, feed_forward=0, vocab=0, context_length=0, weights=0)


def parse_size(text: str, option: str) -> int:
    """Bytes of ``12GiB``, ``800MiB`` or ``12GB``; UsageError for anything else."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?) ?([KMGT]i?B)", text)
    if match is None or match[2] not in UNITS or not float(match[1]):
        raise UsageError(f"{option} {text} is not an amount of memory", tip="for example 12GiB, 800MiB or 12GB")
    return round(float(match[1]) * UNITS[match[2]])


def needed(drafter: Model | None, target: Model, request: Serving) -> int:
    """Bytes of the whole plan; ``drafter`` None is the target alone. UsageError as :func:`plan_memory`."""
    if drafter is None:
        alone = plan_memory(NO_DRAFTER, target, replace(request, n_max=1)).target
        return alone.total if alone else 0
    plan = plan_memory(drafter, target, request)
    return plan.drafter.total + (plan.target.total if plan.target else 0)


def largest_context(drafter: Model | None, target: Model, request: Serving, budget: int) -> int:
    """The most tokens of context, all slots together, whose plan fits into ``budget`` bytes: a multiple of llama.cpp's
    padding, at most what the target was trained for in every slot; 0 when nothing fits."""
    step = CELL_PAD * _share(request)
    low, high = 0, trained_context(target, request) // step
    while low < high:
        middle = (low + high + 1) // 2
        if needed(drafter, target, replace(request, ctx_size=middle * step)) <= budget:
            low = middle
        else:
            high = middle - 1
    return low * step


def trained_context(target: Model, request: Serving) -> int:
    """The most tokens of context, all slots together, that :func:`largest_context` looks at."""
    share = _share(request)
    return max((target.context_length or MAX_CONTEXT // share) // CELL_PAD, 1) * CELL_PAD * share


def _share(request: Serving) -> int:
    """Slots with a context each."""
    return request.slots if request.parallel is not None else 1


@dataclass(frozen=True)
class Fit:
    """The largest context by cache type of the target (lower case), with the drafter encoded as ``drafter`` (None:
    without one). None for a type whose blocks the cache's rows do not fill."""

    drafter: str | None
    contexts: dict[str, int | None]


def fits(drafters: Mapping[str, Model], target: Model, request: Serving, budget: int) -> tuple[Fit, ...]:
    """Without a drafter, then with each of ``drafters`` (by encoding); keys and values of the target's cache share a
    type, the drafter's cache stays as ``request`` says. UsageError for a request that cannot be carried out."""
    needed(None, target, replace(request, ctx_size=CELL_PAD))  # what is wrong with the request is no matter of types
    models: list[tuple[str | None, Model | None]] = [(None, None), *drafters.items()]
    return tuple(
        Fit(name, {kind.lower(): _fit(model, target, request, kind, budget) for kind in CACHE_TYPES})
        for name, model in models
    )


def _fit(drafter: Model | None, target: Model, request: Serving, kind: str, budget: int) -> int | None:
    try:
        return largest_context(drafter, target, replace(request, cache_k=kind, cache_v=kind), budget)
    except UsageError:  # the rows of this cache do not fill the type's blocks
        return None


def fits_json(found: tuple[Fit, ...], budget: int, request: Serving) -> dict[str, Any]:
    """What ``inspect --fit --json`` prints under ``fit``."""
    rows = [{"drafter": each.drafter, "contexts": each.contexts} for each in found]
    return {"budget_mib": mib(budget), "parallel": request.slots, "unified": request.parallel is None, "rows": rows}
