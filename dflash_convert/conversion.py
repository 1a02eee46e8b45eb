"""The main job as functions: read and plan (`prepare`), then write (`write`).  Nothing is printed here."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_convert import __version__
from dflash_convert.checkpoint import Checkpoint, open_checkpoint, read_config
from dflash_convert.container.types import KV, ValueType, array, string, u32
from dflash_convert.container.writer import GgufOutput, layout
from dflash_convert.drafter import Description, Overrides
from dflash_convert.encode.pieces import Place, make_pieces
from dflash_convert.encode.pool import Pool
from dflash_convert.encode.workers import run_pieces
from dflash_convert.errors import InputError, PairingError, UsageError
from dflash_convert.families.contract import refuse_guesses
from dflash_convert.families.detect import describe, refuse_target
from dflash_convert.hashing import sha256_of
from dflash_convert.metadata import general_keys
from dflash_convert.naming import default_name
from dflash_convert.notes import Note
from dflash_convert.output import check_output_path, check_space, make_parent, refuse_taken
from dflash_convert.pairing import Finding, check, errors_of, refusal
from dflash_convert.pairing.drafters import DEPTH, described, stated_depth, undescribed
from dflash_convert.pairing.lineage import UNCONVERTIBLE
from dflash_convert.pairing.targets import target_view
from dflash_convert.pairing.view import FORCED, vocab_from_keys
from dflash_convert.plan import FilePlan, TypeOptions, notes_of, plan_file, resolve_outtype
from dflash_convert.target import Target
from dflash_convert.vocab.copied import vocabulary_of
from dflash_convert.vocab.load import check_size

if TYPE_CHECKING:
    from dflash_convert.vocab import Vocabulary


@dataclass(frozen=True)
class Options:
    """Choices of a conversion; None means what the checkpoint says.

    ``force_pair``: write the file although the pair is refused, and name the reasons in it.
    """

    outtypes: tuple[str, ...] = ("auto",)
    types: TypeOptions = field(default_factory=TypeOptions)
    model_name: str | None = None
    target_name: str | None = None
    pre: str | None = None
    tokenizer_model: Path | None = None
    plain: bool = False
    overrides: Overrides = field(default_factory=Overrides)
    force_pair: bool = False


@dataclass(frozen=True)
class Source:
    """Where a drafter came from; ``path`` is local, the rest is provenance for the file."""

    path: Path
    repository: str | None = None
    revision: str | None = None

    @property
    def shown(self) -> str:
        """For messages: as it was given."""
        return self.repository or str(self.path)

    @property
    def name(self) -> str:
        return (self.repository or self.path.resolve().name).rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Conversion:
    """Everything decided, nothing written. ``suffix`` ends the default names, before ``.gguf``; ``named_after`` is what
    of the target the name is taken from, empty where the caller gave it."""

    description: Description
    vocabulary: Vocabulary
    files: tuple[FilePlan, ...]
    checkpoint: Checkpoint
    target_name: str
    notes: tuple[Note, ...]
    imatrix: Path | None = None
    findings: tuple[Finding, ...] = ()
    suffix: str = ""
    named_after: str = ""

    def default_paths(self, directory: Path) -> list[Path]:
        variant, name = self.description.variant, self.target_name
        return [directory / default_name(variant, name, f.outtype, self.suffix) for f in self.files]


@dataclass(frozen=True)
class Written:
    """One finished output file."""

    path: Path
    outtype: str
    nbytes: int
    tensor_types: dict[str, int]
    seconds: float


def prepare(drafter: Source, target: Target, options: Options) -> Conversion:
    """Read config, headers and tokenizer; decide every key and tensor of every output.

    PairingError for a pair that `check` refuses, unless ``options.force_pair``.
    """
    refuse_target(read_config(drafter.path), drafter.name)
    checkpoint = open_checkpoint(drafter.path)
    description = _describe(checkpoint, drafter, target, options)
    vocabulary, findings = _pair(checkpoint, description, drafter, target, options)
    general, general_notes = general_keys(
        description.architecture,
        drafter.path,
        checkpoint.config,
        ((t.name, t.shape) for t in description.tensors),
        options.model_name,
        drafter.repository,
        plain=options.plain,
    )
    tokenizer = vocabulary.keys(description.mask_token_id)
    target_name = options.target_name or target.name
    extra = [] if options.plain else provenance_keys(drafter, target, target_name, description, vocabulary)
    if not options.plain:
        extra += [*pairing_keys(checkpoint, target, findings), *overrule_keys(options.overrides)]
    files = []
    for outtype in dict.fromkeys(resolve_outtype(o, description.tensors) for o in options.outtypes):
        files.append(plan_file(description, outtype, general, tokenizer, extra, options.types))
    notes = (*notes_of(description), *general_notes, *vocabulary.notes)
    return Conversion(
        description,
        vocabulary,
        tuple(files),
        checkpoint,
        target_name,
        notes,
        options.types.imatrix,
        tuple(findings),
        named_after="" if options.target_name else target.named_after,
    )


def _describe(checkpoint: Checkpoint, drafter: Source, target: Target, options: Options) -> Description:
    """The family's reading; where that fails because of the wrong target, the error says so."""
    try:
        description = describe(checkpoint, target, replace(options.overrides, plain=options.plain))
    except InputError as reason:
        refused = None if options.force_pair else _earlier_cause(checkpoint, drafter, target, reason)
        if refused is not None:
            raise refused from None
        raise
    if options.types.strict:
        refuse_guesses(description.notes)
    return description


def _earlier_cause(checkpoint: Checkpoint, drafter: Source, target: Target, reason: InputError) -> PairingError | None:
    """What speaks against the pair by config.json alone, before ``reason``, which may only follow from it."""
    try:
        view = target_view(target)
        wrong = errors_of(check(undescribed(checkpoint, str(reason)), view))
    except InputError:
        return None
    before = wrong[: next((i for i, finding in enumerate(wrong) if finding.name == UNCONVERTIBLE), 0)]
    return refusal(before, drafter.shown, target.shown)


def _pair(
    checkpoint: Checkpoint,
    description: Description,
    drafter: Source,
    target: Target,
    options: Options,
) -> tuple[Vocabulary, list[Finding]]:
    """The vocabulary to write, and what `check` finds in the pair; its errors are refused here."""

    def load(size: int) -> Vocabulary:
        return vocabulary_of(
            target,
            vocab_size=size,
            pre=options.pre,
            tokenizer_model=options.tokenizer_model,
            plain=options.plain,
            eagle3=description.eagle3_vocab,
        )

    check_size(description.vocab_size)
    rows = target.stated.integer("vocab_size") or description.vocab_size
    vocabulary = load(rows)  # as the target counts; the drafter may be padded to another size
    vocab = vocab_from_keys(target.name, {kv.name: kv for kv in vocabulary.entries})
    view = target_view(target, vocab=vocab)
    findings = check(described(checkpoint, description), view)
    refused = None if options.force_pair else refusal(findings, drafter.shown, target.shown)
    if refused is not None:
        refused.tip = f"{refused.tip}; --force-pair writes the file anyway"
        raise refused
    return vocabulary if rows == description.vocab_size else load(description.vocab_size), findings


def provenance_keys(
    drafter: Source, target: Target, target_name: str, description: Description, vocabulary: Vocabulary
) -> list[KV]:
    """What the file was made from and for; same inputs give the same keys on every machine."""
    keys = [
        string("dflash_convert.version", __version__),
        string("dflash_convert.family", description.family),
        string("dflash_convert.drafter.config_sha256", sha256_of(drafter.path / "config.json")),
        string("dflash_convert.target.name", target_name),
    ]
    for role, source in (("drafter", drafter), ("target", target)):
        if source.repository:
            keys.append(string(f"dflash_convert.{role}.repository", source.repository))
        if source.revision:
            keys.append(string(f"dflash_convert.{role}.revision", source.revision))
    if target.header is not None:
        keys.append(string("dflash_convert.target.gguf", target.header.path.name))
    for name, digest in sorted(vocabulary.files.items()):
        if name.startswith("token") or name.endswith(("tekken.json", ".model", ".tiktoken", "merges.txt")):
            keys.append(string(f"dflash_convert.target.files.{name}", digest))
    if description.taps:
        keys.append(array("dflash_convert.source_taps", ValueType.INT32, list(description.taps.outputs)))
    return keys


def pairing_keys(checkpoint: Checkpoint, target: Target, findings: Sequence[Finding]) -> list[KV]:
    """What the rules of a pair need that the runtime does not: the target's depth, and why a pair was forced."""
    depth = stated_depth(checkpoint.config) or target.stated.integer("num_hidden_layers")
    keys = [] if depth is None else [u32(DEPTH, depth)]
    forced = [finding.name for finding in errors_of(findings)]
    return keys + ([array(FORCED, ValueType.STRING, list(dict.fromkeys(forced)))] if forced else [])


def overrule_keys(overrides: Overrides) -> list[KV]:
    """What the caller said instead of the checkpoint, as options, so that the file tells it."""
    stated = [f"{name}={value}" for name, value in overrides.stated().items()]
    return [array("dflash_convert.overruled", ValueType.STRING, stated)] if stated else []


def output_paths(conversion: Conversion, output: Path | None) -> list[Path]:
    """The outputs' names: ``output`` is a .gguf file (for one type), a directory, or None for the working directory.

    A directory that does not exist yet is created when the files are written.
    """
    if output is None:
        return conversion.default_paths(Path())
    if output.is_dir():
        return conversion.default_paths(output)
    if output.suffix != ".gguf" and not output.exists():
        if output.suffix[1:].isalpha():
            raise UsageError(
                f"{output} is neither a directory nor the name of a GGUF",
                tip=f"end the name in .gguf; if a directory is meant, create it first: mkdir {output}",
            )
        return conversion.default_paths(output)
    if len(conversion.files) > 1:
        raise UsageError(
            f"{output} is one file, but {len(conversion.files)} types were asked for", tip="give a directory to -o"
        )
    return [output]


def _inputs(conversion: Conversion) -> list[Path]:
    return [conversion.checkpoint.directory / "config.json", *conversion.checkpoint.files]


def refuse_taken_paths(conversion: Conversion, paths: Sequence[Path], *, force: bool) -> None:
    """OutputError for an output that exists (without ``force``) or is an input: told before the work is shown."""
    for path in paths:
        refuse_taken(path, _inputs(conversion), force=force, other="another -o")


def write(
    conversion: Conversion,
    paths: Sequence[Path],
    *,
    force: bool = False,
    threads: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
    pool: Pool | None = None,
) -> list[Written]:
    """Write every output in one pass over the weights; on an error each path is as it was or complete.

    ``pool``: workers that were started earlier; without one, they are started here if the work is worth it.
    """
    begin = time.monotonic()
    inputs = _inputs(conversion)
    for path in paths:
        make_parent(path)
        check_output_path(path, force=force, inputs=inputs)
    with ExitStack() as stack:
        layouts = [layout(plan.keys, plan.entries) for plan in conversion.files]
        check_space(paths[0].parent, sum(each.size for each in layouts))
        outputs = [
            stack.enter_context(GgufOutput(path, plan.entries, each, force=force))
            for path, plan, each in zip(paths, conversion.files, layouts, strict=True)
        ]
        del layouts
        pieces = []
        kinds = [{plan.name: kind.name for plan, kind in file.tensors} for file in conversion.files]
        for plan in conversion.description.tensors:
            places = [Place(o.fileno(), o.offset(plan.name), k[plan.name]) for o, k in zip(outputs, kinds, strict=True)]
            # a type of its own was asked for by name, not chosen by the recipe that takes the weights
            pieces += make_pieces(plan, tuple(places), None if plan.type else conversion.imatrix)
        run_pieces(pieces, threads, progress, pool)
        for output in outputs:
            output.finish()
        for output in outputs:
            output.commit()
    seconds = time.monotonic() - begin
    return [
        Written(path, plan.outtype, path.stat().st_size, plan.type_counts(), seconds)
        for path, plan in zip(paths, conversion.files, strict=True)
    ]
