"""What can be set beside depth and ``p-min``: one tweak a name, those alone that the engine at hand has."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from dflash_convert import llama
from dflash_convert.engine.settings import DRAFT_CACHE, Settings
from dflash_convert.engine.trace import EngineInfo, Launch

MIXED = "ngram-mod"
# llama-server's other names of the same (common/arg.cpp)
SHORT = {
    "spec-draft-type-k": ("-ctkd", "--cache-type-k-draft"),
    "spec-draft-type-v": ("-ctvd", "--cache-type-v-draft"),
    "spec-draft-ngl": ("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft"),
    "spec-draft-device": ("-devd", "--device-draft"),
    "backend-sampling": ("-bs",),
    "threads": ("-t",),
}


@dataclass(frozen=True)
class Tweak:
    """Settings that go together; ``knob`` is what they turn, of which only one value holds at a time, ``short`` what
    fits a table. ``method`` drafts beside the drafter. ``shared``: it changes runs without a drafter too."""

    knob: str
    label: str
    short: str
    settings: Settings = ()
    method: str = ""
    shared: bool = False


CACHE = Tweak("cache", "draft cache q8_0", "draft kv q8_0", tuple((name, "q8_0") for name in DRAFT_CACHE))
HOST_SAMPLED = Tweak(
    "draft sampling", "drafts sampled on the host", "host-sampled", (("spec-draft-backend-sampling", "false"),)
)
BACKEND_SAMPLING = Tweak(
    "target sampling", "backend sampling", "backend sampling", (("backend-sampling", "true"),), shared=True
)
PROBABILISTIC = Tweak("draft choice", "drafts drawn", "drafts drawn", (("spec-draft-sampling", "probabilistic"),))
NGRAM = Tweak("mixed in", f"with {MIXED}", MIXED, method=MIXED)
ON_CPU = Tweak("place", "drafter on the CPU", "drafter on CPU", (("spec-draft-ngl", "0"),))


def tweaks(engine: EngineInfo, launch: Launch, methods: Sequence[str], *, sampled: bool) -> tuple[Tweak, ...]:
    """For drafters of ``methods``; nothing that ``launch`` says already is tried again."""
    said = {word.split("=")[0] for word in launch.extra_args}
    cards = [name.split(":")[0] for name in engine.devices if not name.startswith("CPU")]
    found = [CACHE, HOST_SAMPLED, BACKEND_SAMPLING]
    if cards and not launch.draft_device:
        found += [ON_CPU, *map(_on, cards[1:])]
    if not cards and launch.threads is None:
        found += _threads()
    if sampled and set(methods) & llama.PROBABILISTIC:
        found.append(PROBABILISTIC)
    if MIXED not in methods and engine.knows(MIXED):
        found.append(NGRAM)
    return tuple(each for each in found if _possible(each, engine, said))


def _on(card: str) -> Tweak:
    """The drafter on another card than the target's first."""
    return Tweak("place", f"drafter on {card}", f"drafter on {card}", (("spec-draft-device", card),))


def _threads() -> list[Tweak]:
    """Half of the cores: two threads of one core often share what decoding needs."""
    half = (os.cpu_count() or 1) // 2
    text = f"{half} thread{'s' * (half > 1)}"
    return [Tweak("threads", text, text, (("threads", str(half)),), shared=True)] if half else []


def _possible(each: Tweak, engine: EngineInfo, said: set[str]) -> bool:
    names = {name for name, _ in each.settings}
    return names <= set(engine.options) and not said & {form for name in names for form in _forms(name)}


def _forms(name: str) -> set[str]:
    return {f"--{name}", f"--no-{name}", *SHORT.get(name, ())}
