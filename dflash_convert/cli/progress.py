"""A task's progress and result on stderr."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from tqdm import tqdm

from dflash_convert.cli.common import Given
from dflash_convert.naming import FIRST_GUESS, server_command
from dflash_convert.notes import Note
from dflash_convert.pipeline import Made, Prepared, Result, Watcher
from dflash_convert.validation import table


class Shown(Watcher):
    """What happens, as it happens; with a bar on a terminal."""

    def __init__(self, given: Given) -> None:
        self._given = given
        self._bar: tqdm[None] | None = None

    def __enter__(self) -> Shown:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def step(self, name: str) -> None:
        if name != "convert":
            self.__exit__()

    def say(self, text: str, detail: bool = False) -> None:
        if not detail or self._given.verbose:
            self._given.say(text)

    def notes(self, notes: Iterable[Note]) -> None:
        self._given.show_notes(notes)

    def planned(self, prepared: Prepared) -> None:
        show_findings(prepared, self._given)
        total = sum(math.prod(tensor.shape) for tensor in prepared.conversion.description.tensors)
        hidden = not self._given.progress
        self._bar = tqdm(total=total, unit=" weights", unit_scale=True, disable=hidden, desc="converting")

    def wrote(self, elements: int) -> None:
        if self._bar is not None:
            self._bar.update(elements)


def show_findings(prepared: Prepared, given: Given) -> None:
    """What speaks against this pair and is written all the same: warnings, and errors that --force-pair overruled."""
    for finding in prepared.conversion.findings:
        forced = "refused, but forced: " if finding.severity == "error" else ""
        given.say(f"  WARNING: {forced}{finding}: {finding.cure}")


def show_result(result: Result, given: Given, target: Path | None) -> None:
    """What was proved, understood and written, and the command that runs it with the GGUF ``target``."""
    conversion = result.prepared.conversion
    d, v = conversion.description, conversion.vocabulary
    for made in result.files:
        if made.proof and made.proof.validated:
            given.say(table.render(made.proof.validated))
    facts = {"block": d.block_size, "mask token": d.mask_token_id, "reads": d.taps or None}
    said = ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
    given.say(f"{d.family} drafter{': ' if said else ''}{said}")
    given.say(
        f"target {conversion.target_name}: {v.model} vocabulary of {v.size} tokens, "
        f"pre-tokenizer {v.pre} ({v.pre_source})"
    )
    given.show_notes(conversion.notes)
    for plan in conversion.files:
        for text in plan.fallbacks:
            given.say(f"  fallback: {text}")
    written = [made.written for made in result.files]
    for one in written:
        kinds = ", ".join(f"{n} {kind}" for kind, n in one.tensor_types.items())
        given.say(f"{one.path}: {one.nbytes / 1e6:,.1f} MB, {kinds}, {one.seconds:.1f} s")
    measured = _measured(result.files[0])
    model = target or f"{conversion.target_name}.gguf"
    given.say(f"run it: {server_command(model, written[0].path, d.variant, measured or d.n_max)}")
    if measured is None:
        given.say(f"  {FIRST_GUESS}")


def _measured(made: Made) -> int | None:
    """The draft length that a sweep recommends; None where none was run."""
    found = made.proof.validated if made.proof else None
    return found.sweep.recommended if found is not None and found.sweep is not None else None
