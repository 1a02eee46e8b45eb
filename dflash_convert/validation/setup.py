"""Everything decided before the first run: files, engine, prompts, n-max, rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

from dflash_convert import system
from dflash_convert.container.shards import shard_paths
from dflash_convert.engine import external, find
from dflash_convert.engine.trace import EngineInfo, Launch
from dflash_convert.errors import UsageError
from dflash_convert.hashing import sha256_of
from dflash_convert.measure.speed import MIN_ROUNDS
from dflash_convert.notes import Note
from dflash_convert.pairing import check, open_pair, refusal
from dflash_convert.validation import pair, prompts, reference
from dflash_convert.validation.options import Options, n_max_values
from dflash_convert.validation.result import FileFacts


@dataclass(frozen=True)
class Setup:
    """What :func:`prepare` decided. ``rounds`` of the timed runs, at least one; ``beside`` another drafter in them;
    ``detail`` is told every start of the engine."""

    options: Options
    pair: pair.Pair
    engine: EngineInfo
    items: tuple[prompts.Item, ...]
    n_max: tuple[int, ...]
    rounds: int
    stored: reference.Reference | None
    notes: tuple[Note, ...]
    started_at: str
    beside: FileFacts | None = None
    load: float | None = None
    detail: Callable[[str], None] = field(default=lambda _: None, compare=False, repr=False)

    @property
    def chats(self) -> bool:
        """Whether some prompts are chats and the target has a template for them."""
        return self.pair.has_template and any(item.prompt is None for item in self.items)

    def launch(self, n_max: int, context: int, *, beside: bool = False) -> Launch:
        """The engine for one draft length; 0 is without the drafter, ``beside`` with the other one."""
        options, facts = self.options, self.pair.drafter
        drafter = options.beside if beside else options.drafter
        if beside and self.beside is not None:
            facts = self.beside
        return _launch(options, facts, drafter if n_max else None, n_max, context)


def prepare(options: Options) -> Setup:
    """Read headers, prompts, reference; choose the engine; record the thresholds. Nothing runs yet.

    PairingError for a pair that ``check`` refuses, unless ``options.force_pair``.
    """
    rounds = _rounds(options)
    files = pair.read_pair(options.drafter, options.target)
    told = _check(options, options.drafter)
    stored = reference.load(options.reference) if options.reference else None
    if stored:
        options = stored.apply(options)
        rounds = _rounds(options)
    files = _with_hashes(files, target=bool(options.reference or options.hashes))
    engine = find.choose(options.llama_server, _launch(options, files.drafter, None, 0, options.context))
    find.require(engine, str(files.drafter.spec_type))
    if stored:
        items = stored.items()
    elif options.prompts:
        items = prompts.read(options.prompts, options.n_predict)
    else:
        items = prompts.bundled(options.sets, options.n_predict)
    n_max, notes = n_max_values(options.n_max, files.n_max_cap, options.quick)
    beside, more = _beside(options, n_max[0])
    notes += [*told, *more]
    quantized = external.quantizes_draft_cache(options.extra_args)
    if quantized:
        text = f"{quantized}: a quantized drafter cache has been seen to destroy acceptance; f16 is the default"
        notes.append(Note("warning", text))
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    options = replace(options, thresholds=replace(options.thresholds, recorded_at=now))
    return Setup(options, files, engine, items, n_max, rounds, stored, tuple(notes), now, beside, system.load())


def _check(options: Options, drafter: Path) -> list[Note]:
    """What the headers say of the pair; PairingError for what `check` refuses, unless it was forced."""
    findings = check(*open_pair(drafter, options.target))
    refused = None if options.force_pair else refusal(findings, str(drafter), str(options.target))
    if refused is not None:
        refused.tip = f"{refused.tip}; --force-pair runs the pair anyway"
        raise refused
    return [Note("warning", f"check: {finding}: {finding.cure}") for finding in findings]


def _rounds(options: Options) -> int:
    """As asked for; else one round for --quick, which claims nothing, unless a speed-up is required."""
    required = options.thresholds.min_speedup is not None
    if options.rounds is None:
        return 1 if options.quick and not required else MIN_ROUNDS
    if required and options.rounds < MIN_ROUNDS:
        raise UsageError(
            f"--rounds {options.rounds} is too few for --min-speedup: a speed-up takes at least {MIN_ROUNDS} rounds",
            tip=f"give --rounds {MIN_ROUNDS}",
        )
    return options.rounds


def _beside(options: Options, n_max: int) -> tuple[FileFacts | None, list[Note]]:
    """The other drafter, which must draft as many tokens at a time."""
    if options.beside is None:
        return None, []
    other = pair.read_pair(options.beside, options.target)
    if options.beside.samefile(options.drafter):
        raise UsageError(f"--beside {options.beside} is the drafter itself", tip="name the one to compare it with")
    notes = [*_check(options, options.beside), *pair.copied("drafter", (options.drafter, options.beside))]
    if other.n_max_cap is not None and n_max > other.n_max_cap:
        raise UsageError(
            f"--beside {options.beside.name} drafts at most {other.n_max_cap} tokens, not {n_max}",
            tip=f"--n-max {other.n_max_cap} runs both alike",
        )
    return _with_hashes(other, target=False).drafter, notes


def _launch(options: Options, files: FileFacts, drafter: Path | None, n_max: int, context: int) -> Launch:
    return Launch(
        target=options.target,
        drafter=drafter,
        spec_type=str(files.spec_type),
        n_max=n_max,
        ctx_size=context,
        threads=options.threads,
        gpu_layers=options.gpu_layers,
        device=options.device,
        draft_device=options.draft_device,
        extra_args=options.extra_args,
        start_timeout=options.start_timeout,
        request_timeout=options.request_timeout,
    )


def _with_hashes(files: pair.Pair, *, target: bool) -> pair.Pair:
    """The drafter is always hashed, so that a report names its file for good; the large target when asked for."""
    drafter = replace(files.drafter, sha256=(sha256_of(Path(files.drafter.path)),))
    if not target:
        return replace(files, drafter=drafter)
    shards = tuple(sha256_of(p) for p in shard_paths(Path(files.target.path)))
    return replace(files, drafter=drafter, target=replace(files.target, sha256=shards))
