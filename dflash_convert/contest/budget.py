"""What every candidate needs in memory, and which of them a budget leaves out."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_convert import llama
from dflash_convert.container.reader import open_gguf
from dflash_convert.container.shards import all_shards
from dflash_convert.contest.candidates import Candidate
from dflash_convert.memory.fit import largest_context, needed
from dflash_convert.memory.models import model_from_keys
from dflash_convert.memory.plan import Model, Serving
from dflash_convert.text import MIB, size

# of llama-server: the same value under several names -> field of the memory plan's request
ARGUMENTS = {
    **dict.fromkeys(("-ctk", "--cache-type-k"), "cache_k"),
    **dict.fromkeys(("-ctv", "--cache-type-v"), "cache_v"),
    **dict.fromkeys(("-ctkd", "--cache-type-k-draft", "--spec-draft-type-k"), "draft_cache_k"),
    **dict.fromkeys(("-ctvd", "--cache-type-v-draft", "--spec-draft-type-v"), "draft_cache_v"),
    **dict.fromkeys(("-b", "--batch-size"), "batch"),
    **dict.fromkeys(("-ub", "--ubatch-size"), "micro_batch"),
}


@dataclass(frozen=True)
class Need:
    """Bytes of the plan at the contest's context, and the largest context within the budget (None without one)."""

    planned: int
    largest: int | None = None

    @property
    def mib(self) -> float:
        return self.planned / MIB


def request_of(context: int, parallel: int, arguments: Sequence[str]) -> Serving:
    """How the engine is started: ``context`` tokens in each slot, and what llama-server's own arguments say."""
    fields: dict[str, int | str] = {}
    for name, value in itertools.pairwise(arguments):
        field = ARGUMENTS.get(name)
        if field in ("batch", "micro_batch") and value.isdecimal() and int(value) > 0:
            fields[field] = int(value)
        elif field is not None and field.startswith(("cache", "draft")):
            fields[field] = value
    return Serving(ctx_size=context * parallel, parallel=parallel, **fields)  # type: ignore[arg-type]


def projector(arguments: Sequence[str]) -> int:
    """Bytes of the file behind ``--mmproj``: its weights, which stay loaded; 0 without one."""
    named = [Path(value) for name, value in itertools.pairwise(arguments) if name in ("--mmproj", "-mm")]
    return named[-1].stat().st_size if named and named[-1].is_file() else 0


def needs(
    candidates: Sequence[Candidate], target: Path, request: Serving, budget: int | None, beside: int = 0
) -> dict[str, Need]:
    """By the name of the candidate. Weights and caches are exact, compute buffers estimates; ``beside`` are the bytes
    of what is loaded besides."""
    main = model_of(target)
    found = {}
    for each in candidates:
        drafter = None if each.drafter is None else model_of(each.drafter)
        most = None if budget is None else largest_context(drafter, main, request, budget - beside)
        found[each.name] = Need(needed(drafter, main, request) + beside, most)
    return found


def over(found: Mapping[str, Need], budget: int | None, slots: int) -> dict[str, str]:
    """Candidates that need more than ``budget``, each with the reason."""
    return {name: _reason(need, budget, slots) for name, need in found.items() if budget and need.planned > budget}


def _reason(need: Need, budget: int, slots: int) -> str:
    most = (need.largest or 0) // slots
    limit = f"it fits up to a context of {most}" if most else "no context is short enough"
    return f"needs {size(need.planned)} of the budget's {size(budget)}; {limit}"


def cure(found: Mapping[str, Need]) -> str:
    """What to change when nothing is left to run beside the target alone."""
    alone, *others = sorted(found.values(), key=lambda need: need.planned)
    least = others[0] if others else alone
    enough = f"--budget {-(-least.planned // MIB)}MiB lets one run"
    return f"lower --ctx-size or --parallel, or raise the budget: {enough}" if least.largest else enough


def model_of(path: Path) -> Model:
    """One side of the plan, the weights of all its shards."""
    gguf = open_gguf(path)
    shards = [gguf] if llama.drafter(gguf.architecture) else [open_gguf(each) for each in all_shards(path, gguf)]
    rows = {info.name: (info.shape, info.type) for shard in shards for info in shard.tensors.values()}
    return model_from_keys({name: kv.value for name, kv in gguf.keys.items()}, rows, source=path.name)
