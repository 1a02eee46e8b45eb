"""What goes into an engine and what comes out of it, the same for every engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash_convert.llama import spec_types

GREEDY_TEMPERATURE = 0.0


@dataclass(frozen=True)
class Sampling:
    """How the target samples; temperature 0 is greedy, and then the other values do not matter."""

    temperature: float = GREEDY_TEMPERATURE
    top_p: float = 0.95
    top_k: int = 64
    seed: int = 1

    @property
    def greedy(self) -> bool:
        return self.temperature <= 0


@dataclass(frozen=True)
class Request:
    """One completion: ``prompt`` is text, or token ids sent as they are; ``n_predict`` tokens at most.

    ``reuse``: what the slot still holds of the prompt is not processed again. ``messages``: a chat that the engine
    renders and answers as one, in place of ``prompt``; it may hold images.
    """

    prompt: str | tuple[int, ...]
    n_predict: int
    sampling: Sampling = Sampling()
    ignore_eos: bool = False
    reuse: bool = False
    messages: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Launch:
    """How to start an engine for one target and, for a drafted run, one drafter.

    ``spec_type`` is llama.cpp's name of the drafting method (``draft-dflash`` …), or several with commas between
    them; methods without a drafter (``ngram-mod`` …) draft when there is none. ``p_min`` ends a draft at the first
    token the drafter is less sure of; ``parallel`` slots share the context of ``ctx_size`` tokens each;
    the timeouts in seconds. With ``splits_only`` text is split and nothing generated: the embedded engine then neither
    warms up nor loads the file a first time to fit it to the memory. None leaves a choice to the engine. The drafter's
    cache is f16 unless ``settings`` (of :mod:`dflash_convert.engine.settings`) say otherwise: with a quantized one
    acceptance was seen to fall from 99 % to 2 % (llama.cpp issue 25725).
    """

    target: Path
    drafter: Path | None = None
    spec_type: str = spec_types()[0]
    n_max: int = 0
    ctx_size: int = 4096
    threads: int | None = None
    gpu_layers: int | None = None
    device: str | None = None
    draft_device: str | None = None
    extra_args: tuple[str, ...] = ()
    verbosity: int = 4
    start_timeout: float = 600.0
    request_timeout: float = 1800.0
    p_min: float | None = None
    parallel: int = 1
    splits_only: bool = False
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def methods(self) -> tuple[str, ...]:
        """The drafting methods that this start uses, none for a run without drafts."""
        named = tuple(self.spec_type.split(","))
        return named if self.drafter else tuple(name for name in named if name.startswith("ngram"))


def to_split(model: Path) -> Launch:
    """The start of an engine that splits text with the vocabulary in ``model``, a carrier of a few kilobytes."""
    return Launch(target=model, ctx_size=256, start_timeout=120.0, gpu_layers=0, splits_only=True)


@dataclass(frozen=True)
class Trace:
    """The record of one request.

    ``tokens`` are the generated ids (empty when the engine does not return them); times in milliseconds;
    ``steps`` counts the verification steps that had a draft; ``accepted_per_position[i]`` of those steps kept
    the draft at block position i + 1; ``draft_ms`` is the part of ``generation_ms`` that the drafter took. These
    come from the engine's log and are None when it does not tell.
    """

    prompt_tokens: int
    tokens: tuple[int, ...]
    text: str
    drafted: int
    accepted: int
    generated: int
    prompt_ms: float
    generation_ms: float
    steps: int | None = None
    accepted_per_position: tuple[int, ...] | None = None
    stop: str = ""
    draft_ms: float | None = None

    @property
    def acceptance(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mean_length(self) -> float:
        """Tokens a verification step yields on average: one from the target plus the accepted drafts."""
        return mean_length(self.accepted, self.known_steps)

    @property
    def known_steps(self) -> int:
        """``steps``, or its estimate: every generated token but the first is accepted or ends a step."""
        if self.steps is not None:
            return self.steps
        return max(self.generated - 1 - self.accepted, 0) if self.drafted else 0

    @property
    def tokens_per_second(self) -> float:
        return rate(self.generated, self.generation_ms)

    @property
    def prompt_tokens_per_second(self) -> float:
        return rate(self.prompt_tokens, self.prompt_ms)


def mean_length(accepted: int, steps: int) -> float:
    return 1 + accepted / steps if steps else 1.0


def rate(tokens: int, milliseconds: float) -> float:
    return 1000 * tokens / milliseconds if milliseconds > 0 else 0.0


def sum_positions(counts: Iterable[tuple[int, ...] | None]) -> tuple[int, ...] | None:
    """Per-position counts of several requests added up; None as soon as one of them is not known."""
    total: list[int] = []
    for row in counts:
        if row is None:
            return None
        total += [0] * (len(row) - len(total))
        for i, n in enumerate(row):
            total[i] += n
    return tuple(total)


@dataclass(frozen=True)
class EngineInfo:
    """An engine on this machine: ``kind`` is ``embedded`` or ``llama-server``.

    ``spec_types`` lists the drafting methods it knows, ``devices`` what it reports, ``options`` the long names of
    those of llama-server's options that can be set; ``problem`` says in one sentence why it cannot be used (then the
    rest may be empty).
    """

    kind: str
    path: str | None
    build: str
    spec_types: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    problem: str | None = None
    found_by: str = field(default="", compare=False)
    options: tuple[str, ...] = field(default=(), repr=False)

    def knows(self, spec_type: str) -> bool:
        return spec_type in self.spec_types

    @property
    def name(self) -> str:
        return f"{self.kind} {self.build}".strip()
