"""The result of a validation: frozen dataclasses that become one JSON document and come back from it.

The document (``validate --json``)::

    {"schema": 1, "kind": "validation", "verdict": "healthy", "exit_code": 0, "reasons": [...], "warnings": [...],
     "gain": "faster", "speed": {...} or null, "stopped_early": false, "failure": null, "engine": {...},
     "drafter": {...}, "target": {...}, "thresholds": {...}, "settings": {...},
     "total": FIGURES, "prompts": [FIGURES + text of the prompt and of both runs, ...],
     "runs": [{"label", "n_max", "thinking", "context", "temperature", "total": FIGURES, "prompts": [...]}, ...],
     "sweep": {...} or null, "reference": {...} or null, "beside": {...} or null, "retries": [...]}

``verdict`` judges the pair (acceptance, text), ``gain`` what it is worth on this machine, with the figures of
:class:`~dflash_convert.validation.gain.SpeedReport` in ``speed``. ``total`` and ``prompts`` hold the main run: every
prompt once, in file order, greedy, with the first n-max. Repeated rounds never enter them. Warm-up, sampled runs, the
other thinking mode, the long context and the sweep are under ``runs``. Acceptance is a fraction (0.481), times are
milliseconds, rates tokens per second; None (null) means not measured.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from dflash_convert.engine.trace import EngineInfo, Trace, mean_length, rate, sum_positions
from dflash_convert.errors import ConfigError, EngineError, ValidationError
from dflash_convert.measure.speed import NOT_MEASURED, Gain
from dflash_convert.validation.gain import SpeedReport
from dflash_convert.validation.net import Net

SCHEMA = 1
KIND = "validation"

Verdict = Literal["healthy", "weak", "broken", "engine-failure"]
HEALTHY: Verdict = "healthy"
WEAK: Verdict = "weak"
BROKEN: Verdict = "broken"
ENGINE_FAILURE: Verdict = "engine-failure"

T = TypeVar("T")


@dataclass(frozen=True)
class Figures:
    """Counts and speeds of one prompt, or of several added up.

    ``mean_length`` is the tokens that one verification step yields (1 = no draft was of use);
    ``acceptance_by_position[i]`` the share of steps that kept the draft at block position i + 1; ``identical``
    whether the greedy text is the same without the drafter (None for sampled runs). The rates are those of one
    pass; ``speedup`` is given only where it was measured in repeated rounds, else None.
    """

    prompt_tokens: int
    generated: int
    prompt_ms: float
    generation_ms: float
    prompt_tokens_per_second: float
    tokens_per_second: float
    baseline_tokens_per_second: float | None
    speedup: float | None
    drafted: int
    accepted: int
    steps: int
    acceptance: float
    mean_length: float
    accepted_per_position: tuple[int, ...] | None
    acceptance_by_position: tuple[float, ...] | None
    identical: bool | None


@dataclass(frozen=True)
class Divergence:
    """Where two greedy texts part: index of the token (None when ids are not known) and of the character.

    ``gap`` is how much likelier (nats) the target finds its own choice than the other token; ``near_tie`` says
    that the gap lies within the noise of batched arithmetic.
    """

    token: int | None
    character: int
    expected: str
    found: str
    gap: float | None = None
    near_tie: bool = False


@dataclass(frozen=True)
class PromptResult:
    """One prompt of a run: where it comes from, both texts, the figures.

    ``prompt`` is the last message or the plain text, ``sent`` what the engine got (a rendered chat; empty when
    token ids were sent), ``tokens`` the generated ids.
    """

    name: str
    set: str
    prompt: str
    n_predict: int
    seed: int | None
    sent: str
    tokens: tuple[int, ...]
    text: str
    baseline_text: str | None
    divergence: Divergence | None
    figures: Figures


@dataclass(frozen=True)
class RunResult:
    """One run of prompts: ``label`` is main, sampled, thinking, long-context or sweep."""

    label: str
    n_max: int
    thinking: bool | None
    context: int
    temperature: float
    total: Figures
    prompts: tuple[PromptResult, ...]


@dataclass(frozen=True)
class SweepPoint:
    """One n-max; ``speedup`` with its spread ``low`` to ``high`` from repeated rounds, else None."""

    n_max: int
    acceptance: float
    mean_length: float
    tokens_per_second: float
    speedup: float | None
    low: float | None = None
    high: float | None = None
    gain: Gain = NOT_MEASURED


@dataclass(frozen=True)
class Sweep:
    """The n-max values tried on the same ``prompts`` requests, and the one to use: the smallest of those within 2 %
    of the fastest. ``pays``: it is faster than no drafter; ``clear``: it beats every other n-max beyond noise
    (both None where that was not measured)."""

    points: tuple[SweepPoint, ...]
    recommended: int
    pays: bool | None
    clear: bool | None = None
    prompts: int = 0


@dataclass(frozen=True)
class FileFacts:
    """A GGUF as its header describes it; ``size`` in bytes over all shards; ``sha256`` one digest a shard."""

    path: str
    size: int
    architecture: str
    name: str | None
    file_type: str | None
    block_size: int | None = None
    spec_type: str | None = None
    sha256: tuple[str, ...] = ()


@dataclass(frozen=True)
class Thresholds:
    """What a pair must reach. The four floors decide healthy, weak or broken when nothing else is asked for;
    a pair falls below a floor only when acceptance *and* mean length do, because acceptance alone depends on
    n-max. The ``min_`` values are requirements: one that is missed ends with exit code 6.
    """

    broken_acceptance: float = 0.10
    broken_mean_length: float = 1.15
    weak_acceptance: float = 0.30
    weak_mean_length: float = 1.60
    near_tie: float = 0.1
    min_acceptance: float | None = None
    min_mean_length: float | None = None
    min_speedup: float | None = None
    min_tokens_per_second: float | None = None
    tolerance: float = 0.02
    recorded_at: str = ""

    @property
    def required(self) -> dict[str, float]:
        """The requirements that were given, by the name of the figure."""
        names = ("acceptance", "mean_length", "speedup", "tokens_per_second")
        values = ((name, getattr(self, f"min_{name}")) for name in names)
        return {name: value for name, value in values if value is not None}


@dataclass(frozen=True)
class Settings:
    """How the runs were made; contexts in tokens, ``started_at`` in UTC; ``load`` the machine's busy cores (its average
    over a minute) before the run, of ``cores`` that this process may use."""

    n_max: int
    n_max_requested: tuple[int, ...]
    n_max_cap: int | None
    context: int
    long_context: int | None
    temperature: float
    top_p: float
    top_k: int
    seed: int
    thinking: str | None
    prompt_sets: tuple[str, ...]
    threads: int | None
    gpu_layers: int | None
    device: str | None
    draft_device: str | None
    extra_args: tuple[str, ...]
    draft_cache_type: str
    started_at: str
    seconds: float
    rounds: int = 1
    cores: int | None = None
    load: float | None = None


@dataclass(frozen=True)
class Failure:
    """Why the engine failed: ``kind`` as in :mod:`dflash_convert.engine.failures`, the end of its log."""

    kind: str
    message: str
    tip: str | None
    log: str


@dataclass(frozen=True)
class ReferenceComparison:
    """This run against a stored one: ``drop`` in acceptance (a fraction), the prompts whose text differs."""

    path: str
    engine: str
    acceptance: float
    drop: float
    tolerance: float
    differing: tuple[str, ...]
    same_drafter: bool
    same_target: bool
    passed: bool


@dataclass(frozen=True)
class ValidationResult:
    """Everything a validation found. ``exit_code`` is what the command ends with.

    ``verdict`` is about the pair, ``gain`` about its worth on this machine, with the figures in ``speed``;
    ``stopped_early``: the main run showed the pair to be broken and nothing else was run. ``beside``: against the
    other drafter of the same rounds.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    exit_code: int
    engine: EngineInfo
    drafter: FileFacts
    target: FileFacts
    thresholds: Thresholds
    settings: Settings
    total: Figures
    prompts: tuple[PromptResult, ...] = ()
    runs: tuple[RunResult, ...] = ()
    sweep: Sweep | None = None
    reference: ReferenceComparison | None = None
    failure: Failure | None = None
    retries: tuple[str, ...] = ()
    gain: Gain = NOT_MEASURED
    speed: SpeedReport | None = None
    stopped_early: bool = False
    beside: Net | None = None
    schema: int = field(default=SCHEMA)

    def raise_for_status(self) -> None:
        """Raise the error that belongs to ``exit_code``; nothing when it is 0."""
        if self.failure:
            raise EngineError(self.failure.message, tip=self.failure.tip)
        if self.exit_code:
            missed = self.verdict == HEALTHY  # the pair is well, a requirement of its speed is missed
            subject = "a requirement is missed" if missed else f"the pair is {self.verdict}"
            raise ValidationError(f"{subject}: {'; '.join(self.reasons)}")

    def json(self) -> dict[str, Any]:
        """The document of this module's docstring: plain dicts, lists and numbers."""
        document: dict[str, Any] = {"schema": self.schema, "kind": KIND, **_plain(self)}
        document["prompts"] = [_flat(p) for p in self.prompts]
        for run, data in zip(self.runs, document["runs"], strict=True):
            data["prompts"] = [_flat(p) for p in run.prompts]
        return document


def from_json(document: Mapping[str, Any], source: str = "the document") -> ValidationResult:
    """Read what :meth:`ValidationResult.json` wrote; :class:`ConfigError` when it is something else."""
    if not isinstance(document, Mapping) or document.get("kind") != KIND:
        raise ConfigError(
            f"{source} is not a validation result", tip="write one with: dflash-convert validate … --save RUN.json"
        )
    if document.get("schema") != SCHEMA:
        raise ConfigError(f"{source}: schema {document.get('schema')!r} is not {SCHEMA}", tip="validate again")
    try:
        data = dict(document)
        data["prompts"] = [_nested(p) for p in data["prompts"]]
        data["runs"] = [dict(run, prompts=[_nested(p) for p in run["prompts"]]) for run in data["runs"]]
        return build(ValidationResult, data)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{source} is damaged: {error}") from None


def figures(
    traces: Sequence[Trace], baselines: Sequence[Trace] | None = None, identical: bool | None = None
) -> Figures:
    """Add up traces, and the traces of the same requests without a drafter."""
    generated, generation_ms = sum(t.generated for t in traces), sum(t.generation_ms for t in traces)
    prompt_tokens, prompt_ms = sum(t.prompt_tokens for t in traces), sum(t.prompt_ms for t in traces)
    drafted, accepted = sum(t.drafted for t in traces), sum(t.accepted for t in traces)
    steps = sum(t.known_steps for t in traces)
    positions = sum_positions(t.accepted_per_position if t.drafted else () for t in traces)
    speed = rate(generated, generation_ms)
    base = rate(sum(t.generated for t in baselines), sum(t.generation_ms for t in baselines)) if baselines else None
    return Figures(
        prompt_tokens=prompt_tokens,
        generated=generated,
        prompt_ms=round(prompt_ms, 3),
        generation_ms=round(generation_ms, 3),
        prompt_tokens_per_second=round(rate(prompt_tokens, prompt_ms), 2),
        tokens_per_second=round(speed, 2),
        baseline_tokens_per_second=None if base is None else round(base, 2),
        speedup=None,
        drafted=drafted,
        accepted=accepted,
        steps=steps,
        acceptance=round(accepted / drafted, 6) if drafted else 0.0,
        mean_length=round(mean_length(accepted, steps), 4),
        accepted_per_position=positions,
        acceptance_by_position=tuple(round(n / steps, 4) for n in positions) if positions and steps else None,
        identical=identical,
    )


NO_FIGURES = figures(())


def total_of(prompts: Iterable[PromptResult], traces: Sequence[Trace], baselines: Sequence[Trace] | None) -> Figures:
    """The sum over a run; identical only when every prompt is."""
    known = [p.figures.identical for p in prompts]
    identical = None if not known or None in known else all(known)
    return figures(traces, baselines, identical)


def build(kind: type[T], data: Any) -> T:
    """A dataclass from plain data, by its annotations; TypeError or KeyError when they do not fit."""
    hints = typing.get_type_hints(kind)
    names = {f.name for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values = {name: _value(hints[name], data[name]) for name in names if name in data}
    return kind(**values)


def _value(hint: Any, data: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if data is None and type(None) in args:
            return None
        return _value(next(a for a in args if a is not type(None)), data)
    if origin is tuple:
        if not isinstance(data, (list, tuple)):
            raise TypeError(f"a list was expected, not {type(data).__name__}")
        return tuple(_value(args[0], item) for item in data)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return build(hint, data)
    if origin is Literal:
        if data not in args:
            raise ValueError(f"{data!r} is not one of {', '.join(args)}")
        return data
    wanted = (int, float) if hint is float else hint
    if not isinstance(data, wanted) or (isinstance(data, bool) and hint is not bool):
        raise TypeError(f"{data!r} is not {hint.__name__}")
    return data


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


FIGURE_NAMES = frozenset(f.name for f in dataclasses.fields(Figures))


def _flat(prompt: PromptResult) -> dict[str, Any]:
    """A prompt with its figures beside its text: the contract wants the same field names as in ``total``."""
    data: dict[str, Any] = _plain(prompt)
    return {**{k: v for k, v in data.items() if k != "figures"}, **data["figures"]}


def _nested(data: Mapping[str, Any]) -> dict[str, Any]:
    rest = {k: v for k, v in data.items() if k not in FIGURE_NAMES}
    return rest | {"figures": {k: v for k, v in data.items() if k in FIGURE_NAMES}}
