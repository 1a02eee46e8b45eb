"""Figures that llama.cpp gives only in its log.

Known forms of the acceptance line (``print_timing``), newest first::

    draft acceptance = 0.50000 (   73 accepted /   146 generated), mean len =  4.48
    draft acceptance rate = 0.57576 (   19 accepted /    33 generated)

At verbosity 4 and above, builds since 2026 add the rates by block position and, over all requests so far,
the number of drafts and the milliseconds spent drafting (b, g, a: begin, generate, accept)::

         acc per pos = (0.952, 0.714, 0.619)
    statistics     draft-dflash: #calls(b,g,a) =    1     21     21, ..., dur(b,g,a) = 0.0, 15.4, 0.0 ms

At verbosity 5 the candidates of every draft stand in the log too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

ACCEPTANCE = re.compile(
    r"draft acceptance(?: rate)? *= *[\d.]+ *\( *(?P<accepted>\d+) accepted */ *(?P<drafted>\d+) generated\)"
    r"(?:, mean len *= *(?P<mean>[\d.]+))?"
)
POSITIONS = re.compile(r"acc per pos = \((?P<rates>[\d., ]*)\)")
DRAFTS = re.compile(r"statistics +\S+ *#calls\(b,g,a\) *= *\d+ +\d+ +(?P<accepts>\d+)")
DRAFTING = re.compile(r"dur\(b,g,a\) *= *[\d.]+ *, *(?P<ms>[\d.]+) *, *[\d.]+ *ms")
FINISHED = re.compile(r"stop processing")
IDLE = re.compile(r"all slots are idle")  # the last line of a request, where a build writes it
BUFFER = re.compile(r"(?P<place>\S+) +(?P<kind>model|KV|RS|output|compute) buffer size = *(?P<mib>[\d.]+) MiB")
CONTEXT = "llama_context: constructing"  # before the buffers of a context; compute buffers are reserved repeatedly
BUILD = re.compile(r"print_info: (?P<build>build[^\n]*)|^build: (?P<old>[^\n]*)", re.MULTILINE)

RATE_DIGITS = 0.0005  # rates are printed with three decimals


@dataclass(frozen=True)
class LoggedStats:
    """What the log says of one request; ``total_accepts`` counts drafts verified since the start,
    ``total_draft_ms`` is the time that drafting took since then."""

    drafted: int = 0
    accepted: int = 0
    mean_length: float | None = None
    position_rates: tuple[float, ...] = ()
    total_accepts: int | None = None
    total_draft_ms: float | None = None


def parse_request(log: str) -> LoggedStats:
    """Read the part of a log that belongs to one request; all zero when nothing was drafted."""
    line, rates, drafts = ACCEPTANCE.search(log), POSITIONS.search(log), DRAFTS.search(log)
    spent = DRAFTING.search(log)
    return LoggedStats(
        drafted=int(line["drafted"]) if line else 0,
        accepted=int(line["accepted"]) if line else 0,
        mean_length=float(line["mean"]) if line and line["mean"] else None,
        position_rates=tuple(float(r) for r in rates["rates"].split(",") if r.strip()) if rates else (),
        total_accepts=int(drafts["accepts"]) if drafts else None,
        total_draft_ms=float(spent["ms"]) if spent else None,
    )


def steps_of(stats: LoggedStats, before: int | None, accepted: int) -> int | None:
    """Verification steps of one request: exact from the running count, else from the printed mean length.

    ``before`` is the running count at the end of the previous request. Returns None when the log has neither.
    """
    if stats.total_accepts is not None and before is not None:
        return stats.total_accepts - before
    if stats.mean_length is None or stats.mean_length <= 1 or not accepted:
        return None
    # the mean has two decimals: only a value that no neighbour shares is taken
    low = accepted / (stats.mean_length - 1 + 0.005)
    high = accepted / max(stats.mean_length - 1 - 0.005, 1e-9)
    candidates = [n for n in range(max(int(low), 1), int(high) + 2) if low <= n <= high]
    return candidates[0] if len(candidates) == 1 else None


def position_counts(rates: Sequence[float], steps: int | None, accepted: int) -> tuple[int, ...] | None:
    """Accepted drafts at each block position, from rates with three decimals; None unless they add up."""
    if not rates or not steps:
        return None
    counts = tuple(round(rate * steps) for rate in rates)
    exact = all(abs(rate - n / steps) <= RATE_DIGITS + 1e-9 for rate, n in zip(rates, counts, strict=True))
    return counts if exact and sum(counts) == accepted else None


def build_of(log: str) -> str:
    """The build line an engine prints when it starts; empty when it prints none."""
    match = BUILD.search(log)
    return (match["build"] or match["old"]).strip() if match else ""


def memory_of(log: str) -> float | None:
    """MiB of all buffers that an engine says it took: weights, caches, outputs, and of each context the largest
    compute buffer in every place; None for a log without them."""
    total, found = 0.0, False
    for part in log.split(CONTEXT):
        compute: dict[str, float] = {}
        for match in BUFFER.finditer(part):
            found = True
            size = float(match["mib"])
            if match["kind"] == "compute":
                compute[match["place"]] = max(compute.get(match["place"], 0.0), size)
            else:
                total += size
        total += sum(compute.values())
    return total if found else None
