"""The round trip: every tensor and key of a GGUF against the checkpoint it was made from.

The expectation is planned anew from config, headers and tokenizer, so the file may come from any converter.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_convert.checkpoint import Checkpoint, open_checkpoint
from dflash_convert.container.reader import Gguf, TensorInfo, open_gguf
from dflash_convert.container.types import BLOCK, TensorType
from dflash_convert.drafter import Description, Overrides, TensorPlan
from dflash_convert.encode.pieces import Place, make_pieces
from dflash_convert.encode.pool import pool_size
from dflash_convert.errors import InputError, VerificationError
from dflash_convert.families.detect import describe
from dflash_convert.head.expected import has_head, with_head
from dflash_convert.notes import Note
from dflash_convert.pairing import Finding, check, refusal
from dflash_convert.pairing.drafters import drafter_gguf
from dflash_convert.pairing.finding import findings_json
from dflash_convert.pairing.targets import target_directory, target_view
from dflash_convert.pairing.view import TargetView, vocab_from_keys
from dflash_convert.plan import base_type
from dflash_convert.processes import Workers
from dflash_convert.target import Target
from dflash_convert.verification.compare import INTEGERS, compare, is_lossless, merged, source_type
from dflash_convert.verification.figures import BLOCK_BOUND, FileRows, dequantizer
from dflash_convert.verification.fill import compare_fill
from dflash_convert.verification.keys import (
    OURS,
    Compared,
    compare_encoding,
    compare_keys,
    compare_provenance,
    lost,
    overruled,
)
from dflash_convert.verification.trial import Trial, Tried

if TYPE_CHECKING:
    from dflash_convert.forward.fidelity import Fidelity
    from dflash_convert.verification.compare import Outcome
    from dflash_convert.verification.figures import Figures

MIN_COSINE = 0.8  # for types whose block bound was not measured


@dataclass(frozen=True)
class TensorReport:
    """One tensor: ``status`` is equal, rounded (to a narrower float) or quantized; ``problem`` None when right.

    ``rmse`` and ``max_error`` are in the weights' own units; ``block_error`` is the largest error over the
    largest value of its block (None: a block of zeros is not zero); ``decoder`` names the library that
    recomputed the values.
    """

    name: str
    type: str
    source_type: str
    status: str
    rmse: float = 0.0
    max_error: float = 0.0
    snr_db: float | None = None
    cosine: float = 1.0
    block_error: float | None = 0.0
    decoder: str = ""
    problem: str | None = None


@dataclass(frozen=True)
class VerifyResult:
    """What was compared; ``differences`` is empty when the file is what its source says.

    ``findings`` are those of ``check`` on the file and the target; a file that was forced says so itself.
    """

    path: Path
    tensors: tuple[TensorReport, ...]
    keys_checked: int
    differences: tuple[str, ...]
    notes: tuple[Note, ...] = ()
    fidelity: Fidelity | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.differences

    def raise_for_status(self) -> None:
        """VerificationError that names the first difference and counts the others; else PairingError for a file
        that is what its source says, but for another target."""
        if self.differences:
            more = f" (and {len(self.differences) - 1} more)" if len(self.differences) > 1 else ""
            raise VerificationError(
                f"{self.path} differs from its source: {self.differences[0]}{more}",
                tip="convert the checkpoint again, or find out what changed the file",
            )
        refused = refusal(self.findings, str(self.path), "the target")
        if refused is not None and not any(finding.name == "forced-pair" for finding in self.findings):
            raise refused

    def json(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "path": str(self.path),
            "keys_checked": self.keys_checked,
            "differences": list(self.differences),
            "tensors": [dataclasses.asdict(tensor) for tensor in self.tensors],
            "notes": [note.text for note in self.notes],
            **findings_json(self.findings),
            "fidelity": None
            if self.fidelity is None
            else {
                "blocks": self.fidelity.blocks,
                "source_acceptance": self.fidelity.source_acceptance,
                "rows": [row.json() for row in self.fidelity.rows],
            },
        }


def verify(
    path: Path,
    drafter: Path,
    target: Target | None = None,
    *,
    overrides: Overrides | None = None,
    tokenizer_model: Path | None = None,
    pre: str | None = None,
    threads: int | None = None,
    engine: bool = False,
    begin: Callable[[int], None] = lambda _: None,
    progress: Callable[[int], None] = lambda _: None,
) -> VerifyResult:
    """Compare the GGUF at ``path`` with the checkpoint in ``drafter`` and the tokenizer of ``target``.

    Without a target the vocabulary and the keys derived from it are not judged, and a note says so.
    ``overrides``, ``tokenizer_model`` and ``pre`` are those of the conversion; a head of the drafter's own is compared
    with the rows of the target's GGUF, or of the weights in its directory; ``threads`` worker processes share the
    tensors (None: all cores, and none for a small file). With ``engine`` the vocabulary is tried in llama.cpp, too.
    ``begin`` receives the elements there are to compare, ``progress`` those compared, from a thread of its own.
    InputError for what cannot be read; all differences are in the result.
    """
    target = target or Target()
    gguf = open_gguf(path)
    count = pool_size(threads, sum(info.rows * info.shape[-1] for info in gguf.tensors.values()))
    with ExitStack() as stack:
        aside = stack.enter_context(ThreadPoolExecutor(1))
        workers = stack.enter_context(Workers("verification.worker", count)) if count else None
        trial = stack.enter_context(Trial(path, target.directory)) if engine else None
        checkpoint = open_checkpoint(drafter)
        description, notes = _described(gguf, checkpoint, target, overrides or Overrides())
        unknown: frozenset[str] = frozenset()
        if has_head(gguf):
            description, unknown, said = with_head(description, gguf, target.gguf or target.directory)
            notes += said
        begin(sum(math.prod(plan.shape) for plan in description.tensors if plan.name in gguf.tensors))
        tensors = aside.submit(compare_tensors, gguf, description, progress, workers, unknown)
        keys = compare_keys(gguf, description, target, tokenizer_model, pre)
        view = drafter_gguf(gguf)
        encoding = [*compare_encoding(view, notes), *compare_fill(gguf, notes)]
        origin = compare_provenance(gguf, drafter, target.directory)
        pair = check(view, _target_view(target, keys) if target.known else None)
        reports, differences = tensors.result()
        tried = trial.result() if trial else Tried()
    found = (*keys.differences, *encoding, *origin, *differences, *tried.differences)
    return VerifyResult(
        path, tuple(reports), keys.checked, found, (*keys.notes, *notes, *tried.notes), findings=tuple(pair)
    )


def _target_view(target: Target, keys: Compared) -> TargetView:
    """With the vocabulary that was just read, where it is as long as the target's own."""
    tokens = keys.vocabulary.get("tokenizer.ggml.tokens")
    rows = target.stated.integer("vocab_size")
    if target.directory is None or tokens is None or rows not in (None, len(tokens.value)):
        return target_view(target)
    return target_directory(target, vocab=vocab_from_keys(target.name, keys.vocabulary))


def _described(
    gguf: Gguf, checkpoint: Checkpoint, target: Target, overrides: Overrides
) -> tuple[Description, list[Note]]:
    """What the file should hold: as llama.cpp's converter writes it, unless this tool's own keys are in it."""
    plain = f"{OURS}version" not in gguf.keys
    description = describe(checkpoint, target, dataclasses.replace(overrides, plain=plain))
    notes = overruled(gguf, overrides)
    if plain:
        try:
            notes += lost(description, describe(checkpoint, target, dataclasses.replace(overrides, plain=False)))
        except InputError as reason:  # the reference writes what llama.cpp does not run
            notes.append(Note("warning", f"without --plain this checkpoint is refused: {reason}"))
    return description, notes


def compare_tensors(
    gguf: Gguf,
    description: Description,
    progress: Callable[[int], None],
    workers: Workers | None = None,
    unknown: frozenset[str] = frozenset(),
) -> tuple[list[TensorReport], list[str]]:
    """Every planned tensor against the file's, streaming; also names and shapes that differ. ``unknown``: tensors of
    the file whose source is not at hand."""
    plans = {plan.name: plan for plan in description.tensors}
    differences = [f"tensor {name} is not in the file" for name in plans if name not in gguf.tensors]
    differences += [
        f"tensor {name} has no source in the checkpoint" for name in gguf.tensors if name not in plans.keys() | unknown
    ]
    reports: dict[str, TensorReport] = {}
    pieces = []
    with FileRows(gguf.path) as file:
        for info in gguf.tensors.values():
            plan = plans.get(info.name)
            if plan is None:
                continue
            wrong = _unlike(plan, info)
            if wrong is None:
                pieces += make_pieces(plan, (Place(file.fd, info.offset, info.type.name),))
                continue
            if isinstance(wrong, str):
                differences.append(wrong)
            else:
                reports[info.name] = wrong
            progress(info.rows * info.shape[-1])
        outcomes = compare(pieces, progress, workers)
    parts: dict[str, list[Outcome]] = {}
    for piece, outcome in zip(pieces, outcomes, strict=True):
        parts.setdefault(piece.plan.name, []).append(outcome)
    reports |= {name: _report(plans[name], gguf.tensors[name], merged(some)) for name, some in parts.items()}
    ordered = [reports[name] for name in gguf.tensors if name in reports]
    differences += [f"tensor {report.name} {report.problem}" for report in ordered if report.problem]
    return ordered, differences


def _unlike(plan: TensorPlan, info: TensorInfo) -> TensorReport | str | None:
    """What keeps a tensor from being compared: a difference, or a whole report for one of the wrong type."""
    if not same_shape(plan.shape, info.shape):
        return f"tensor {info.name} has shape {list(info.shape)}, its source {list(plan.shape)}"
    fixed = base_type(plan)
    if fixed is not None and info.type is not fixed:
        wrong = f"is {info.type.name}, llama.cpp keeps it {fixed.name}"
        return TensorReport(info.name, info.type.name, source_type(plan), "wrong type", problem=wrong)
    return None


def same_shape(expected: tuple[int, ...], found: tuple[int, ...]) -> bool:
    """Equal but for outer dimensions of 1, which llama-quantize drops."""

    def bare(shape: tuple[int, ...]) -> tuple[int, ...]:
        while len(shape) > 1 and shape[0] == 1:
            shape = shape[1:]
        return shape

    return bare(expected) == bare(found)


def _report(plan: TensorPlan, info: TensorInfo, outcome: Outcome) -> TensorReport:
    equal, figures, source = outcome.equal, outcome.figures, source_type(plan)
    if info.type.name in INTEGERS:
        other = None if equal else "holds other numbers than its source"
        return TensorReport(info.name, info.type.name, source, "equal" if equal else "different", problem=other)
    lossless = is_lossless(plan, info.type.name)
    status = "equal" if equal else "quantized" if BLOCK[info.type][0] > 1 else "different" if lossless else "rounded"
    return TensorReport(
        name=info.name,
        type=info.type.name,
        source_type=source,
        status=status,
        rmse=figures.rmse,
        max_error=figures.maximum,
        snr_db=figures.snr_db,
        cosine=figures.cosine,
        block_error=figures.worst if math.isfinite(figures.worst) else None,
        decoder=dequantizer(info.type)[1],
        problem=_problem(info.type, figures, equal=equal, lossless=lossless),
    )


def _problem(kind: TensorType, figures: Figures, *, equal: bool, lossless: bool) -> str | None:
    if not figures.finite:
        return "holds NaN or Inf (a block scale or a value)"
    if equal:
        return None
    if lossless:
        return f"differs from its source (largest error {figures.maximum:.3g}, cosine {figures.cosine:.4f})"
    bound = BLOCK_BOUND.get(kind.name)
    if bound is not None and figures.worst > bound:
        text = f"a block errs by {figures.worst:.2g} of its largest value, {kind.name} allows {bound}"
        return f"is not its source in {kind.name}: {text} (cosine {figures.cosine:.4f})"
    if bound is None and figures.cosine < MIN_COSINE:
        return f"is not its source in {kind.name}: cosine {figures.cosine:.4f}"
    return None
