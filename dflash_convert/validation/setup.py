"""Everything decided before the first run: files, engine, prompts, n-max, rounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

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


@dataclass(frozen=True)
class Setup:
    """What :func:`prepare` decided. ``rounds`` of the timed runs, at least one."""

    options: Options
    pair: pair.Pair
    engine: EngineInfo
    items: tuple[prompts.Item, ...]
    n_max: tuple[int, ...]
    rounds: int
    stored: reference.Reference | None
    notes: tuple[Note, ...]
    started_at: str

    @property
    def chats(self) -> bool:
        """Whether some prompts are chats and the target has a template for them."""
        return self.pair.has_template and any(item.prompt is None for item in self.items)

    def launch(self, n_max: int, context: int) -> Launch:
        """The engine for one draft length; 0 is without the drafter."""
        options = self.options
        return _launch(options, self.pair, options.drafter if n_max else None, n_max, context)


def prepare(options: Options) -> Setup:
    """Read headers, prompts, reference; choose the engine; record the thresholds. Nothing runs yet.

    PairingError for a pair that ``check`` refuses, unless ``options.force_pair``.
    """
    rounds = _rounds(options)
    files = pair.read_pair(options.drafter, options.target)
    told = _check(options)
    stored = reference.load(options.reference) if options.reference else None
    if stored:
        options = stored.apply(options)
        rounds = _rounds(options)
    files = _with_hashes(files, target=bool(options.reference or options.hashes))
    engine = find.choose(options.llama_server, _launch(options, files, None, 0, options.context))
    find.require(engine, str(files.drafter.spec_type))
    if stored:
        items = stored.items()
    elif options.prompts:
        items = prompts.read(options.prompts, options.n_predict)
    else:
        items = prompts.bundled(options.sets, options.n_predict)
    n_max, notes = n_max_values(options.n_max, files.n_max_cap, options.quick)
    notes += told
    quantized = external.quantizes_draft_cache(options.extra_args)
    if quantized:
        text = f"{quantized}: a quantized drafter cache has been seen to destroy acceptance; f16 is the default"
        notes.append(Note("warning", text))
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    options = replace(options, thresholds=replace(options.thresholds, recorded_at=now))
    return Setup(options, files, engine, items, n_max, rounds, stored, tuple(notes), now)


def _check(options: Options) -> list[Note]:
    """What the headers say of the pair; PairingError for what `check` refuses, unless it was forced."""
    findings = check(*open_pair(options.drafter, options.target))
    refused = None if options.force_pair else refusal(findings, options.drafter.name, options.target.name)
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


def _launch(options: Options, files: pair.Pair, drafter: Path | None, n_max: int, context: int) -> Launch:
    return Launch(
        target=options.target,
        drafter=drafter,
        spec_type=str(files.drafter.spec_type),
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
