"""What a report shows beside the validation itself: tensor types, the memory plan and the static check."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_convert.container.reader import open_gguf
from dflash_convert.contest.budget import model_of
from dflash_convert.errors import DflashError
from dflash_convert.memory.fit import largest_context, trained_context
from dflash_convert.memory.plan import Serving, plan_memory
from dflash_convert.text import MIB

if TYPE_CHECKING:
    from dflash_convert.memory.plan import MemoryPlan
    from dflash_convert.pairing import Finding
    from dflash_convert.validation.result import ValidationResult


FREE = re.compile(r"(.*\S) ?\(\d+ MiB, (\d+) MiB free\)")


@dataclass(frozen=True)
class TypeRow:
    """All tensors of one type in the drafter's file."""

    type: str
    count: int
    elements: int
    nbytes: int


@dataclass(frozen=True)
class Room:
    """A device's free memory before the run; ``context`` is the longest that fits, 0 when the pair does not fit, None
    when that is not known. ``trained``: it is all that the target was trained for, so that memory is not its limit."""

    device: str
    free_mib: int
    context: int | None = None
    trained: bool = False


@dataclass(frozen=True)
class Extras:
    """Each part may be missing; the report leaves its section out then."""

    types: tuple[TypeRow, ...] = ()
    memory: MemoryPlan | None = None
    room: Room | None = None
    findings: tuple[Finding, ...] | None = None


def gather(result: ValidationResult) -> Extras:
    """What the two files tell, as far as they can (still) be read."""
    from dflash_convert.pairing import check, open_pair

    try:
        findings = check(*open_pair(Path(result.drafter.path), Path(result.target.path)))
        return Extras(type_rows(Path(result.drafter.path)), *_memory(result), tuple(findings))
    except DflashError:
        return Extras()


def type_rows(path: Path) -> tuple[TypeRow, ...]:
    rows: dict[str, TypeRow] = {}
    for info in open_gguf(path).tensors.values():
        old = rows.get(info.type.name, TypeRow(info.type.name, 0, 0, 0))
        elements = old.elements + info.rows * info.shape[-1]
        rows[info.type.name] = TypeRow(old.type, old.count + 1, elements, old.nbytes + info.nbytes)
    return tuple(sorted(rows.values(), key=lambda row: -row.nbytes))


def _memory(result: ValidationResult) -> tuple[MemoryPlan, Room | None]:
    drafter, target = (model_of(Path(side.path)) for side in (result.drafter, result.target))
    request = Serving(ctx_size=result.settings.context, n_max=max(1, result.settings.n_max))
    plan, room = plan_memory(drafter, target, request), free_memory(result.engine.devices)
    if room is not None and target.weights is not None:
        most = largest_context(drafter, target, request, room.free_mib * MIB)
        whole = bool(target.context_length) and most >= trained_context(target, request)
        room = replace(room, context=most, trained=whole)
    return plan, room


def free_memory(devices: Sequence[str]) -> Room | None:
    """Of the first device that is no processor, else of the processor, as the engine lists them:
    ``CUDA0: NAME (81000 MiB, 80000 MiB free)``."""
    found = [Room(m[1], int(m[2])) for device in devices if (m := FREE.fullmatch(device))]
    return min(found, key=lambda room: room.device.startswith("CPU"), default=None)
