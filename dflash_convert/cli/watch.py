"""A task as it is carried out: what was found before anything is written, its progress, what came of it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path

from dflash_convert.cli import nextsteps
from dflash_convert.cli.common import Given
from dflash_convert.cli.progress import Progress
from dflash_convert.cli.terminal import width
from dflash_convert.encode import estimate
from dflash_convert.encode.pool import pool_size
from dflash_convert.naming import says_no_model
from dflash_convert.notes import Note
from dflash_convert.pipeline import Made, Prepared, Result, Watcher
from dflash_convert.text import duration, size
from dflash_convert.validation import table

Stamp = tuple[int, int, int] | None


class Shown(Watcher):
    """What happens, as it happens."""

    def __init__(self, given: Given, threads: int | None = None) -> None:
        self._given, self._threads = given, threads
        self._bar = Progress("converting", "weights", quiet=given.quiet)
        self._paths: dict[Path, Stamp] = {}

    def __enter__(self) -> Shown:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def step(self, name: str) -> None:
        self._bar.close()
        unit = "requests" if name == "validate" else "weights"
        self._bar = Progress(PHASES[name], unit, quiet=self._given.quiet)

    def say(self, text: str, detail: bool = False) -> None:
        if not detail or self._given.verbose:
            self._given.say(text)

    def notes(self, notes: Iterable[Note]) -> None:
        self._given.show_notes(notes)

    def planned(self, prepared: Prepared) -> None:
        self._paths = {path: _stamp(path) for path in prepared.paths}
        show_plan(prepared, self._given)
        show_sizes(prepared, self._given, self._threads)
        self._bar.begin(sum(math.prod(tensor.shape) for tensor in prepared.conversion.description.tensors))

    def wrote(self, elements: int) -> None:
        self._bar.update(elements)

    def amount(self, total: int) -> None:
        self._bar.begin(total)

    def advanced(self, done: int) -> None:
        self._bar.update(done)

    def at(self, item: str) -> None:
        self._bar.item(item)

    def left(self) -> str:
        """What stands after an interrupt."""
        new = [str(path) for path, before in self._paths.items() if _stamp(path) != before]
        return f"complete: {', '.join(new)}" if new else "no output was written"


PHASES = {"convert": "converting", "check": "checking", "verify": "comparing", "validate": "validating"}


def _stamp(path: Path) -> Stamp:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def show_plan(prepared: Prepared, given: Given) -> None:
    """What was understood and derived, and what speaks against this pair and is written all the same."""
    conversion = prepared.conversion
    d, v = conversion.description, conversion.vocabulary
    facts = {"block": d.block_size, "mask token": d.mask_token_id, "reads": d.taps or None}
    said = ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
    given.say(f"{d.family} drafter{': ' if said else ''}{said}")
    given.say(
        f"target {conversion.target_name}: {v.model} vocabulary of {v.size} tokens, "
        f"pre-tokenizer {v.pre} ({v.pre_source})"
    )
    for finding in conversion.findings:
        forced = "refused, but forced: " if finding.severity == "error" else ""
        given.say(f"  WARNING: {forced}{finding}: {finding.cure}")
    given.show_notes(conversion.notes)
    name = conversion.target_name
    by_name = {path.name for path in conversion.default_paths(Path())}
    if conversion.named_after and says_no_model(name) and not by_name.isdisjoint(path.name for path in prepared.paths):
        origin = f"the target's {conversion.named_after}, {name!r}"
        text = f"the file is named after {origin}: --target-name gives the model's own name"
        given.show_notes([Note("warning", text)])
    for plan in conversion.files:
        for text in plan.fallbacks:
            given.say(f"  fallback: {text}")


def show_sizes(prepared: Prepared, given: Given, threads: int | None) -> None:
    """Every output's size and types, and about how long they take."""
    from dflash_convert.container.writer import layout

    files = prepared.conversion.files
    for plan, path in zip(files, prepared.paths, strict=True):
        kinds = ", ".join(f"{n} {kind}" for kind, n in plan.type_counts().items())
        given.say(f"to be written: {path}, {size(layout(plan.keys, plan.entries).size)}: {kinds}")
        for tensor, kind in plan.tensors:
            source = ", ".join(each.name for each in tensor.sources) or tensor.transform
            given.detail(f"  {tensor.name:<36} {kind.name:<6} <- {source}")
    elements = sum(math.prod(tensor.shape) for tensor in prepared.conversion.description.tensors)
    needed = estimate.seconds([plan.entries for plan in files], pool_size(threads, elements))
    if needed is not None:
        given.say(f"writing takes about {duration(needed)} on this machine; Ctrl-C stops and leaves no half file")


def show_result(result: Result, given: Given, target: Path | None) -> None:
    """What was proved and written, and the command that runs it with the GGUF ``target``."""
    for made in result.files:
        if made.proof and made.proof.validated:
            given.say(table.render(made.proof.validated, width(err=True)))
    for made in result.files:
        one = made.written  # whose path stands on stdout
        given.say(f"done: {one.outtype}, {size(one.nbytes)} in {duration(one.seconds)}")
    paths = [made.written.path for made in result.files]
    nextsteps.after_convert(given, result.prepared.conversion, paths, target, _measured(result.files[0]))


def _measured(made: Made) -> int | None:
    """The draft length that a sweep recommends; None where none was run."""
    found = made.proof.validated if made.proof else None
    return found.sweep.recommended if found is not None and found.sweep is not None else None
