"""What trainers leave around tensors' names: wrappers of compilation and sharding, and the module of a larger model."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

from dflash_convert.checkpoint import Checkpoint
from dflash_convert.errors import CheckpointError
from dflash_convert.notes import Note

# torch.compile, FSDP, activation checkpointing and Lightning: these parts name no module, wherever they stand
ANYWHERE = re.compile(r"(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)\.")
# DDP's wrapper, and what trainers of drafters call the drafter inside their model
LEADING = re.compile(
    r"(?:module|draft_model|draft_module|draft|drafter|drafter_model|dflash_module|dflash_model|dflash|dspark_module|"
    r"eagle_module|eagle|speculator|spec_model|student)\."
)
MAPS = ("d2t", "t2d")  # stand beside the drafter's module in some trainers


def unwrap(checkpoint: Checkpoint) -> tuple[Checkpoint, list[Note]]:
    """The checkpoint with its tensors' own names, and a note of what was taken off.

    CheckpointError when a drafter stands beside other weights, or when two tensors become one.
    """
    names: dict[str, str] = {}
    removed: Counter[str] = Counter()
    for name in checkpoint.tensors:
        bare, wrapper = _bare(name)
        if bare in names:
            raise CheckpointError(
                f"tensors {names[bare]!r} and {name!r} are one tensor but for {wrapper or 'a wrapper'}"
            )
        names[bare] = name
        removed[wrapper] += 1
    if set(removed) == {""}:
        return checkpoint, []
    _check_alone(checkpoint, names, removed)
    tensors = {bare: replace(checkpoint.tensors[name], name=bare) for bare, name in names.items()}
    told = ", ".join(f"{wrapper} of {count} tensors" for wrapper, count in sorted(removed.items()) if wrapper)
    note = Note("derived", f"a trainer's wrapper is taken off the names: {told}")
    return replace(checkpoint, tensors=tensors), [note]


def _bare(name: str) -> tuple[str, str]:
    """The tensor's own name, and the wrappers that were around it."""
    inside = ANYWHERE.findall(name)
    rest = ANYWHERE.sub("", name)
    bare = rest
    while True:
        start = 6 if bare.startswith("model.") and LEADING.match(bare, 6) else 0
        found = LEADING.match(bare, start)
        if found is None:
            break
        bare = bare[found.end() :]
    return bare, "".join(dict.fromkeys(inside)) + rest[: len(rest) - len(bare)]


def _check_alone(checkpoint: Checkpoint, names: dict[str, str], removed: Counter[str]) -> None:
    """A module of a larger model is the drafter only when nothing else is in the checkpoint."""
    modules = {wrapper for wrapper in removed if ANYWHERE.sub("", wrapper)}
    others = [name for bare, name in names.items() if _bare(name)[1] not in modules and bare not in MAPS]
    if len(modules) > 1:
        raise CheckpointError(
            f"{checkpoint.directory}: tensors stand under {' and '.join(sorted(modules))}, not of one drafter",
            tip="export the drafter alone, with the exporter of the trainer that made it",
        )
    if modules and others:
        count = sum(removed[wrapper] for wrapper in modules)
        raise CheckpointError(
            f"{checkpoint.directory}: {count} tensors stand under {', '.join(sorted(modules))} and "
            f"{len(others)} beside it ({others[0]!r} first): a drafter inside another model's checkpoint",
            tip="export the drafter alone, with the exporter of the trainer that made it",
        )
