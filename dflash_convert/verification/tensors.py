"""The round trip: every tensor and key of a GGUF against the checkpoint it was made from.

The expectation is planned anew from config, headers and tokenizer, so the file may come from any converter.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_convert import llama
from dflash_convert.checkpoint import Checkpoint, open_checkpoint, read_config
from dflash_convert.container.reader import Gguf, TensorInfo, open_gguf
from dflash_convert.container.types import BLOCK, TensorType, array_length
from dflash_convert.drafter import Description, Overrides, TensorPlan
from dflash_convert.encode.jobs import Place, make_jobs
from dflash_convert.encode.workers import pool_size
from dflash_convert.engine import embedded
from dflash_convert.errors import EngineError, UsageError, VerificationError
from dflash_convert.families.detect import describe
from dflash_convert.forward.fidelity import fidelity, random_contexts, real_contexts
from dflash_convert.forward.hyper import TARGET
from dflash_convert.forward.load import (
    drafter_from_checkpoint,
    drafter_from_gguf,
    target_from_checkpoint,
    target_from_gguf,
)
from dflash_convert.head.expected import has_head, with_head
from dflash_convert.hparams import architectures
from dflash_convert.notes import Note
from dflash_convert.pairing import Finding, check, refusal
from dflash_convert.pairing.drafters import drafter_gguf
from dflash_convert.pairing.finding import findings_json
from dflash_convert.pairing.targets import target_view
from dflash_convert.plan import base_type
from dflash_convert.processes import Workers
from dflash_convert.target import Target
from dflash_convert.verification.compare import INTEGERS, compare, is_lossless, merged, source_type
from dflash_convert.verification.figures import BLOCK_BOUND, FileRows, dequantizer
from dflash_convert.verification.keys import OURS, compare_encoding, compare_keys, compare_provenance, lost, overruled
from dflash_convert.verification.vocabulary import PROBES, probe_texts, round_trip

if TYPE_CHECKING:
    from dflash_convert.forward import target as forward_target
    from dflash_convert.forward.fidelity import Fidelity
    from dflash_convert.processes import Workers
    from dflash_convert.verification.compare import Outcome
    from dflash_convert.verification.figures import Figures

MAX_TARGET = 256 << 20  # bytes of a target that the numpy forward can run in seconds
PROMPTS = ("function add(a, b) {", "const items = [1, 2, 3];", "The weather today is", "def main():")
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
                f"{self.path.name} differs from its source: {self.differences[0]}{more}",
                tip="convert the checkpoint again, or find out what changed the file",
            )
        refused = refusal(self.findings, self.path.name, "the target")
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
    begin: Callable[[int], None] = lambda _: None,
    progress: Callable[[int], None] = lambda _: None,
) -> VerifyResult:
    """Compare the GGUF at ``path`` with the checkpoint in ``drafter`` and the tokenizer of ``target``.

    Without a target the vocabulary and the keys derived from it are not judged, and a note says so.
    ``overrides``, ``tokenizer_model`` and ``pre`` are those of the conversion; a head of the drafter's own is compared
    with the rows of the target's GGUF, or of the weights in its directory; ``threads`` worker processes share the
    tensors (None: all cores, and none for a small file). ``begin`` receives the elements there are to compare,
    ``progress`` those compared. InputError for what cannot be read; all differences are in the result.
    """
    target = target or Target()
    gguf = open_gguf(path)
    count = pool_size(threads, sum(info.rows * info.shape[-1] for info in gguf.tensors.values()))
    with Workers("verification.worker", count) as workers:  # they start while the tokenizer is read
        checkpoint = open_checkpoint(drafter)
        description, notes = _described(gguf, checkpoint, target, overrides or Overrides())
        keys = compare_keys(gguf, description, target, tokenizer_model, pre)
        unknown: frozenset[str] = frozenset()
        if has_head(gguf):
            description, unknown, said = with_head(description, gguf, target.gguf or target.directory)
            notes += said
        begin(sum(math.prod(plan.shape) for plan in description.tensors if plan.name in gguf.tensors))
        reports, differences = compare_tensors(gguf, description, progress, workers if count else None, unknown)
    view = drafter_gguf(gguf)
    encoding = compare_encoding(view, notes)
    found = (*keys.differences, *encoding, *compare_provenance(gguf, drafter, target.directory), *differences)
    pair = check(view, target_view(target) if target.known else None)
    return VerifyResult(path, tuple(reports), keys.checked, found, (*keys.notes, *notes), findings=tuple(pair))


def _described(
    gguf: Gguf, checkpoint: Checkpoint, target: Target, overrides: Overrides
) -> tuple[Description, list[Note]]:
    """What the file should hold: as llama.cpp's converter writes it, unless this tool's own keys are in it."""
    plain = f"{OURS}version" not in gguf.keys
    description = describe(checkpoint, target, dataclasses.replace(overrides, plain=plain))
    notes = overruled(gguf, overrides)
    if plain:
        notes += lost(description, describe(checkpoint, target, dataclasses.replace(overrides, plain=False)))
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
    jobs = []
    with FileRows(gguf.path) as file:
        for info in gguf.tensors.values():
            plan = plans.get(info.name)
            if plan is None:
                continue
            wrong = _unlike(plan, info)
            if wrong is None:
                jobs += make_jobs(plan, (Place(file.fd, info.offset, info.type.name),))
                continue
            if isinstance(wrong, str):
                differences.append(wrong)
            else:
                reports[info.name] = wrong
            progress(info.rows * info.shape[-1])
        outcomes = compare(jobs, progress, workers)
    parts: dict[str, list[Outcome]] = {}
    for job, outcome in zip(jobs, outcomes, strict=True):
        parts.setdefault(job.plan.name, []).append(outcome)
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


def add_round_trip(result: VerifyResult, target: Target) -> VerifyResult:
    """The file's vocabulary in the embedded engine against the target's own tokenizer library, on probe texts.

    Ids that differ are differences, unless a known limit of llama.cpp explains them; without an engine a note
    says that nothing was run, and so it does for a target's GGUF, beside which there is no such library.
    """
    if target.directory is None:
        note = Note("info", "the vocabulary was not tried against the target's own tokenizer: a GGUF brings none")
        return dataclasses.replace(result, notes=(*result.notes, note))
    engine = embedded.info()
    if engine is None:
        note = Note("info", "the vocabulary was not tried in llama.cpp: no embedded engine is installed")
        return dataclasses.replace(result, notes=(*result.notes, note))
    texts = probe_texts(PROBES)
    try:
        found = round_trip(result.path, target.files, texts, engine)
    except EngineError as error:
        note = Note("warning", f"the vocabulary was not tried in llama.cpp: {error}")
        return dataclasses.replace(result, notes=(*result.notes, note))
    wrong = tuple(f"llama.cpp splits {one}" for one in found if one.limit is None)
    limits = {one.limit for one in found if one.limit is not None}
    notes = [Note("info", f"llama.cpp splits some probe texts differently: {limit}") for limit in sorted(limits)]
    if not found:
        notes.append(Note("info", f"llama.cpp splits {len(texts)} probe texts as the target's tokenizer does"))
    return dataclasses.replace(result, differences=(*result.differences, *wrong), notes=(*result.notes, *notes))


def add_fidelity(
    result: VerifyResult, drafter: Path, target: Target, *, overrides: Overrides | None = None
) -> VerifyResult:
    """The same contexts through checkpoint and GGUF in the numpy forward; hidden states and logits compared.

    ``overrides`` are those of the conversion, so that the source is read as it was.

    With a small Qwen3-type target whose weights are at hand (its GGUF, or in its directory) the context is
    that target's own greedy text, and drafts are compared too; else it is noise, and a note says why.
    """
    source = drafter_from_checkpoint(drafter, target, overrides)
    encoded = {result.path.name: drafter_from_gguf(result.path)}
    model, why = _small_target(target.directory, target.gguf)
    if model is None or not target.known:
        note = Note("info", f"fidelity compares no drafts: {why}")
        result = dataclasses.replace(result, notes=(*result.notes, note))
        tokens = array_length(open_gguf(result.path).get("tokenizer.ggml.tokens"))
        found = fidelity(source, encoded, random_contexts(source.hyper, tokens or source.hyper.mask_token + 1))
    else:
        found = fidelity(source, encoded, real_contexts(model, _prompts(target)), target=model)
    return dataclasses.replace(result, fidelity=found, notes=(*result.notes, *found.notes))


def _small_target(directory: Path | None, gguf: Path | None) -> tuple[forward_target.Target | None, str]:
    """The target's forward when it is of the type that is modelled and small enough for numpy, else why not."""
    if gguf is not None:
        header = open_gguf(gguf)
        kind = header.architecture
        if llama.drafter(kind) is not None:
            raise UsageError(f"--target-gguf {gguf} is a drafter ({kind})", tip="give the target's GGUF")
        if kind != TARGET:
            return None, f"the numpy forward runs {TARGET} targets, and {gguf.name} is {kind}"
        if gguf.stat().st_size > MAX_TARGET or header.get("split.count", 1) != 1:
            return None, f"{gguf.name} is larger than the {MAX_TARGET >> 20} MiB that the numpy forward runs"
        return target_from_gguf(gguf), ""
    if directory is None or architectures(read_config(directory))[:1] != ["Qwen3ForCausalLM"]:
        return None, f"the target's weights are not available, or it is not a {TARGET}; give --target-gguf"
    sizes = [path.stat().st_size for path in directory.glob("*.safetensors")]
    if not sizes:
        return None, "the target's weights are not available; give --target-gguf"
    if sum(sizes) > MAX_TARGET:
        return None, f"the target is larger than the {MAX_TARGET >> 20} MiB that the numpy forward runs"
    return target_from_checkpoint(directory), ""


def _prompts(target: Target) -> list[list[int]]:
    """Token ids of some texts; from a GGUF's own tokens and merges when it brings no tokenizer.json."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    if target.directory is None and target.header is not None:
        tokens, merges = (list(target.header.get(f"tokenizer.ggml.{name}") or ()) for name in ("tokens", "merges"))
        pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
        tokenizer = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(tokens)}, merges=pairs))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        return [tokenizer.encode(text).ids for text in PROMPTS]
    file = target.files / "tokenizer.json"
    if not file.is_file():
        raise UsageError(f"{target.files}: no tokenizer.json to make a context with", tip="leave --target-gguf out")
    tokenizer = Tokenizer.from_file(str(file))
    return [tokenizer.encode(text).ids for text in PROMPTS]
