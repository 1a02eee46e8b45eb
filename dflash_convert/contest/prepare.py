"""A contest made ready: candidates that fit the target, prompts, engine, and where finished runs are kept."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from dflash_convert.container.reader import Gguf, open_gguf
from dflash_convert.container.shards import all_shards
from dflash_convert.contest import budget, images
from dflash_convert.contest.candidates import NOTHING, Candidate, distinct, parse
from dflash_convert.contest.engines import LlamaCpp, machine
from dflash_convert.contest.trial import Say, Store
from dflash_convert.engine import find
from dflash_convert.engine.trace import Launch
from dflash_convert.errors import DflashError, OutputError, PairingError, UsageError
from dflash_convert.hashing import stamp_of
from dflash_convert.notes import Note
from dflash_convert.output import try_place
from dflash_convert.pairing import check, open_pair
from dflash_convert.validation import prompts
from dflash_convert.validation.pair import copied, read_target
from dflash_convert.validation.prompts import SETS, Item

DOMAIN = "dflash-convert"


@dataclass(frozen=True)
class Options:
    """A contest as asked for; ``keep`` is the directory of finished runs, None for the user's cache."""

    target: Path
    candidates: tuple[str, ...]
    prompts: Path | None = None
    sets: tuple[str, ...] = SETS
    n_predict: int | None = None
    context: int = 4096
    threads: int | None = None
    gpu_layers: int | None = None
    device: str | None = None
    draft_device: str | None = None
    llama_server: str | None = None
    extra_args: tuple[str, ...] = ()
    keep: Path | None = None
    fresh: bool = False
    budget: int | None = None
    parallel: int = 1


@dataclass(frozen=True)
class Contest:
    """``candidates``: no drafter first. ``refused``: those that fit neither target nor budget, by name, with the
    reason. ``needs``: memory by name, with ``slots`` requests at a time. ``notes``: what else is to be known."""

    candidates: tuple[Candidate, ...]
    refused: dict[str, str]
    items: tuple[Item, ...]
    chats: bool
    engines: LlamaCpp
    store: Store
    needs: dict[str, budget.Need]
    slots: int = 1
    notes: tuple[Note, ...] = ()

    @property
    def context(self) -> int:
        """Tokens of each slot."""
        return self.engines.launch.ctx_size


def prepare(options: Options, detail: Say = lambda _: None) -> Contest:
    """Nothing is run but the engine's own question for its version; ``detail`` is told every start.
    PairingError when no candidate fits the target, UsageError when none fits the budget."""
    chosen = [parse(text) for text in options.candidates]
    target = read_target(options.target)
    fitting, refused = _fitting(chosen, options.target)
    if refused and not fitting:
        name, reason = next(iter(refused.items()))
        raise PairingError(f"{name} does not fit {options.target.name}: {reason}", tip="dflash-convert check names all")
    candidates = distinct(fitting)
    needs, large = _within(candidates, options)
    candidates = tuple(each for each in candidates if each.name not in large)
    items = prompts.read(options.prompts, options.n_predict) if options.prompts else None
    items = items or prompts.bundled(options.sets, options.n_predict)
    images.require_projector(items, options.extra_args)
    launch = Launch(
        target=options.target,
        ctx_size=options.context,
        threads=options.threads,
        gpu_layers=options.gpu_layers,
        device=options.device,
        draft_device=options.draft_device,
        extra_args=options.extra_args,
    )
    keep = None if options.fresh else usable(_directory(options))
    engine = find.choose(options.llama_server, launch)
    for candidate in candidates[1:]:
        find.require(engine, candidate.spec_type)
    store = Store(keep, _identity(options, launch, engine.name))
    chats = renders_chats(target, items)
    engines, reasons = LlamaCpp(engine, launch, detail), refused | large
    notes = copied("drafter", [each.drafter for each in candidates if each.drafter])
    return Contest(candidates, reasons, tuple(items), chats, engines, store, needs, options.parallel, notes)


def renders_chats(target: Gguf, items: Sequence[Item]) -> bool:
    """Whether the engine puts prompts into the target's template."""
    return isinstance(target.get("tokenizer.chat_template"), str) and any(item.prompt is None for item in items)


def _within(candidates: Sequence[Candidate], options: Options) -> tuple[dict[str, budget.Need], dict[str, str]]:
    """What all need, and the reasons of those that need too much."""
    request = budget.request_of(options.context, options.parallel, options.extra_args)
    needs = budget.needs(candidates, options.target, request, options.budget, budget.projector(options.extra_args))
    large = budget.over(needs, options.budget, request.slots)
    if NOTHING.name in large or (large and len(large) == len(candidates) - 1):
        name, reason = next(iter(large.items()))
        raise UsageError(f"nothing is left to run: {name} {reason}", tip=budget.cure(needs))
    return needs, large


def _fitting(chosen: Sequence[Candidate], target: Path) -> tuple[list[Candidate], dict[str, str]]:
    fitting, refused = [], {}
    for candidate in chosen:
        reason = None if candidate.drafter is None else _reason(candidate.drafter, target)
        if reason is None:
            fitting.append(candidate)
        else:
            refused[candidate.name] = reason
    return fitting, refused


def _reason(drafter: Path, target: Path) -> str | None:
    """The first error of ``check``, or None."""
    try:
        errors = [each for each in check(*open_pair(drafter, target)) if each.severity == "error"]
    except DflashError as error:
        return str(error)
    return None if not errors else f"{errors[0].name}: {errors[0].cure}"


def _directory(options: Options) -> Path:
    if options.keep is not None:
        return options.keep
    root = os.environ.get("XDG_CACHE_HOME") or ""
    return (Path(root) if root else Path.home() / ".cache") / DOMAIN / "runs"


def usable(directory: Path) -> Path:
    """The directory of finished runs, made when it is missing; OutputError when it cannot hold any."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        try_place(directory / "run.json")
    except (OSError, OutputError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise OutputError(
            f"{directory} cannot keep finished runs: {reason}",
            tip="--keep takes a directory that can be written; --fresh keeps nothing",
        ) from None
    return directory


def _identity(options: Options, launch: Launch, engine: str) -> str:
    """Machine, engine, the launch, and the bytes of every file in it. A target is too large to be hashed for each call:
    its stamp tells every change as well, and at worst a copy with the same bytes is measured again."""
    target = options.target
    named = [Path(word) for word in options.extra_args if Path(word).is_file()]  # a projector, adapters
    stamps = [stamp_of(path) for path in (*all_shards(target, open_gguf(target)), *named)]
    shared = {name: str(value) for name, value in vars(replace(launch, target=options.target.resolve())).items()}
    document = [machine(), engine, stamps, shared]
    return sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def sizes(text: str | None, option: str, most: int, cure: str = "") -> tuple[int, ...]:
    """``1k,8k,32768`` as numbers from 1 to ``most``; UsageError for anything else. ``cure``: what raises ``most``."""
    if text is None:
        return ()
    found = []
    for word in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(k?)", word.lower())
        value = int(match[1]) * (1024 if match[2] else 1) if match else 0
        if not 1 <= value <= most:
            example = f"for example {option} 4,8,16; 1k is 1,024"
            raise UsageError(f"{option}: {word!r} is not a whole number from 1 to {most:,}", tip=cure or example)
        found.append(value)
    return tuple(dict.fromkeys(found))
