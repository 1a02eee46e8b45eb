"""Shapes, taps and depth: what llama.cpp asserts when it loads the pair or runs its first step."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_convert import llama
from dflash_convert.drafter import Taps
from dflash_convert.pairing.finding import Finding, error, warning
from dflash_convert.pairing.view import DrafterView, TargetView

OTHER_PAIR = "this drafter was trained for another target: use the one its model card names"
SHIFT = "llama.cpp counts layer inputs, checkpoints layer outputs: target_layers = target_layer_ids + 1"


def check_geometry(drafter: DrafterView, target: TargetView) -> Iterator[Finding]:
    # an EAGLE-3 head may be narrower than its target and then says the target's width
    hidden = drafter.keys.first(drafter.own("target_hidden_size"))
    hidden = drafter.keys.first(drafter.own("embedding_length")) if hidden is None else hidden
    if hidden is not None and target.hidden is not None and hidden != target.hidden:
        yield error("hidden-size", hidden, target.hidden, OTHER_PAIR)
    taps = drafter.keys.integers(drafter.own("target_layers"))
    yield from _architecture(target)
    if not taps:
        yield error("taps-missing", taps, target.layers, "the file needs target_layers: convert the drafter again")
        return
    yield from _taps(drafter, taps, target)
    fc = drafter.tensors.get("fc.weight")
    width = len(taps) * (target.hidden or hidden or 0)
    if fc is not None and width and fc[-1] != width:
        text = f"{len(taps)} taps x {target.hidden or hidden} = {width}"
        yield error("fc-width", fc[-1], text, "the taps and the fc tensor must be of the same drafter and target")


def _architecture(target: TargetView) -> Iterator[Finding]:
    if target.architecture is None:
        yield warning(
            "target-architecture",
            None,
            target.label,
            "this model class is not known here: whether llama.cpp exports its layers was not checked",
        )
    elif target.architecture not in llama.TAPPABLE:
        yield error(
            "target-architecture",
            "needs the target's hidden states",
            target.architecture,
            f"llama.cpp {llama.BUILD} does not export the layer inputs of this architecture: another engine, "
            "or a newer build",
        )


def _taps(drafter: DrafterView, taps: list[int], target: TargetView) -> Iterator[Finding]:
    depth = target.layers
    exported = drafter.row is not None and target.architecture in drafter.row.last_layer
    deepest = depth if exported or depth is None else depth - 1
    if depth is not None and max(taps) > depth:
        yield error("taps-depth", taps, f"{depth} layers", OTHER_PAIR)
    elif deepest is not None and max(taps) > deepest:
        yield error(
            "last-layer-tap",
            max(taps),
            f"{depth} layers",
            f"llama.cpp does not export what leaves the last layer of {target.label}; it aborts at the first draft",
        )
    if min(taps) < 0:
        yield error("taps-depth", taps, f"{depth} layers", "a tap cannot be negative")
    if taps != sorted(set(taps)):
        yield warning("taps-order", taps, None, "taps usually ascend; the order must be the one of the training")
    source = drafter.keys.integers("dflash_convert.source_taps")
    if source is not None and list(Taps.from_outputs(source).inputs) != taps:
        yield error("taps-shift", taps, f"from checkpoint taps {source}", SHIFT)
