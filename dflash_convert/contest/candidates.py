"""What takes part: drafters with settings, llama.cpp's methods without a drafter, and nothing at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dflash_convert import llama
from dflash_convert.container.keys import keys_of
from dflash_convert.container.reader import open_gguf
from dflash_convert.contest.tweaks import Tweak
from dflash_convert.errors import UsageError
from dflash_convert.system import kind_of_place, tip_for
from dflash_convert.validation.pair import drafting_method

SETTINGS = {"n-max": "a whole number from 1 to 4096", "p-min": "a number from 0 to less than 1"}
EXAMPLE = "for example drafter.gguf,n-max=7,p-min=0.5, ngram-mod, or drafter.gguf+ngram-mod"


@dataclass(frozen=True)
class Candidate:
    """One way to run the target; ``methods`` empty is without drafts. ``cap`` is the most that a block drafts,
    ``size`` the drafter's bytes, ``tweaks`` what else is set."""

    name: str
    methods: tuple[str, ...] = ()
    drafter: Path | None = None
    n_max: int = 0
    p_min: float | None = None
    cap: int = 0
    size: int = 0
    tweaks: tuple[Tweak, ...] = ()

    @property
    def spec_type(self) -> str:
        return ",".join(self.methods)

    @property
    def settings(self) -> str:
        """``n-max 7, p-min 0.5``; empty without a drafter."""
        if self.drafter is None:
            return ""
        p_min = [f"p-min {self.p_min:g}"] if self.p_min else []
        return ", ".join((f"n-max {self.n_max}", *p_min, *(each.label for each in self.tweaks)))

    @property
    def extra(self) -> tuple[tuple[str, str], ...]:
        """llama-server's options that the tweaks set."""
        return tuple(pair for each in self.tweaks for pair in each.settings)

    def tweaked(self, tweak: Tweak) -> Candidate:
        """With one tweak more; it takes the place of another of its knob."""
        kept = tuple(each for each in self.tweaks if each.knob != tweak.knob)
        methods = (*self.methods, *([tweak.method] if tweak.method else []))
        return replace(self, tweaks=(*kept, tweak), methods=methods)


NOTHING = Candidate("no drafter")


def parse(text: str) -> Candidate:
    """``FILE[+METHOD…][,n-max=N][,p-min=P]`` or ``METHOD``; UsageError with an example for anything else."""
    whole, *given = text.split(",")
    pairs = [_setting(text, each) for each in given]
    settings = dict(pairs)
    if len(settings) < len(pairs):
        twice = next(name for i, (name, _) in enumerate(pairs) if name in dict(pairs[:i]))
        raise UsageError(f"{text}: {twice} is given twice", tip=EXAMPLE)
    first, *mixed = whole.split("+")
    methods = [first, *mixed] if first in llama.NGRAMS else mixed
    for name in methods:
        if name not in llama.NGRAMS:
            raise UsageError(
                f"{text}: {name!r} is not a method that works without a drafter",
                tip=f"one of {', '.join(llama.NGRAMS)}; {EXAMPLE}",
            )
    if first in llama.NGRAMS:
        if settings:
            raise UsageError(f"{text}: {next(iter(settings))} is a setting of a drafter", tip=EXAMPLE)
        return Candidate("+".join(methods), tuple(methods))
    return _drafter(Path(first), tuple(methods), settings)


def _setting(text: str, each: str) -> tuple[str, float]:
    name, _, value = each.partition("=")
    if name not in SETTINGS:
        raise UsageError(f"{text}: {each!r} is not a setting of a candidate", tip=EXAMPLE)
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    fits = 0 <= number < 1 if name == "p-min" else 1 <= number <= 4096 and number.is_integer()
    if not fits:
        raise UsageError(f"{text}: {name} is {SETTINGS[name]}, not {value!r}", tip=EXAMPLE)
    return name, number


def _drafter(path: Path, mixed: tuple[str, ...], settings: dict[str, float]) -> Candidate:
    if not path.is_file():
        kind = kind_of_place(path)
        what = f"{kind}, not a drafter's GGUF" if kind else "neither a file nor a method that works without a drafter"
        raise UsageError(f"{path}: {what}", tip=tip_for(kind, EXAMPLE))
    gguf = open_gguf(path)
    method = drafting_method(gguf, path)
    cap = depth_of(path)
    n_max = int(settings.get("n-max", min(llama.FIRST_N_MAX, cap)))
    if n_max > cap:
        raise UsageError(f"{path} drafts at most {cap} tokens, not {n_max}", tip=f"n-max={cap} is its whole block")
    name = "+".join((path.stem, *mixed))
    return Candidate(name, (method.spec_type, *mixed), path, n_max, settings.get("p-min"), cap, path.stat().st_size)


def depth_of(path: Path) -> int:
    """The most tokens that the drafter drafts in one go; 16 for one that has no block."""
    gguf = open_gguf(path)
    row = llama.drafter(gguf.architecture)
    if row is None:
        return llama.DEFAULT_BLOCK
    own = keys_of(gguf).under(gguf.architecture)
    most = row.max_drafts(gguf.tensors, own.integer("block_size", low=1), own.boolean("sample_from_anchor"))
    return llama.DEFAULT_BLOCK if most is None else most


def distinct(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """No drafter first, then the others under names that differ; UsageError for the same candidate twice."""
    found: dict[tuple[object, ...], Candidate] = {}
    names: set[str] = set()
    for each in candidates:
        key = (each.methods, each.drafter and each.drafter.resolve(), each.n_max, each.p_min)
        if key in found:
            raise UsageError(f"{each.name} ({each.settings or 'as it is'}) was named twice")
        name = each.name if each.name not in names else f"{each.name}, {each.settings}"
        names.add(name)
        found[key] = replace(each, name=name)
    return (NOTHING, *found.values())
