"""Depth, width and taps: what llama.cpp asserts when it loads the pair or runs its first step."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_convert import llama
from dflash_convert.drafter import Taps
from dflash_convert.hparams import TEXT_CONFIGS
from dflash_convert.pairing.finding import Finding, error, warning
from dflash_convert.pairing.view import UNKNOWN, DrafterView, TargetView

SHIFT = "llama.cpp counts layer inputs, checkpoints layer outputs: target_layers = target_layer_ids + 1"
# keys that state the target's width where it is not the drafter's own: EAGLE-3 heads and MTP assistants are narrower
WIDTHS = ("target_hidden_size", "embedding_length_out", "embedding_length")


def wrong_target(drafter: DrafterView) -> str:
    """The likeliest cause of most findings, with the right target's name where the drafter tells it."""
    if drafter.made_for:
        return f"most likely the wrong target: this drafter says it was made for {drafter.made_for[0]}"
    return "most likely the wrong target: take the one that the drafter's model card names"


def check_stated(drafter: DrafterView, target: TargetView) -> Iterator[Finding]:
    """A target's config that says neither depth nor width leaves two rules without a say."""
    stated = {"num_hidden_layers": target.layers, "hidden_size": target.hidden}
    missing = [name for name, value in stated.items() if value is None]
    if target is not UNKNOWN and missing:
        where = "block_count or embedding_length" if target.is_gguf else f"the top level and {', '.join(TEXT_CONFIGS)}"
        cure = f"depth or width was not checked: the target does not state it (read: {where})"
        yield warning("target-config", None, f"no {' and no '.join(missing)}", cure)


def check_depth(drafter: DrafterView, target: TargetView) -> Iterator[Finding]:
    """A drafter reads single layers of one model; in a deeper or shallower one they mean something else."""
    if drafter.depth is not None and target.layers is not None and drafter.depth != target.layers:
        made_for = f"made for {drafter.depth} layers"
        yield error("target-depth", made_for, f"{target.layers} layers", wrong_target(drafter))


def check_width(drafter: DrafterView, target: TargetView) -> Iterator[Finding]:
    hidden = target_width(drafter)
    if hidden is not None and target.hidden is not None and hidden != target.hidden:
        yield error("hidden-size", hidden, target.hidden, wrong_target(drafter))


def target_width(drafter: DrafterView) -> int | None:
    """Width of the target's hidden states that the drafter reads."""
    found = (drafter.keys.first(drafter.own(name)) for name in WIDTHS)
    return next((width for width in found if width is not None), None)


def check_tapping(drafter: DrafterView, target: TargetView) -> Iterator[Finding]:
    """Taps within the depth, exported by the target's graph, as many as ``fc`` is made for."""
    if target is not UNKNOWN:
        yield from _architecture(target)
    taps = drafter.keys.integers(drafter.own("target_layers"))
    if not taps and drafter.problem is not None:
        return
    if not taps:
        cure = f"the file needs {drafter.own('target_layers')}: convert the drafter again; --taps gives the layers"
        yield error("taps-missing", taps, target.layers, cure)
        return
    yield from _taps(drafter, Taps.from_inputs(taps), target)
    fc = drafter.tensors.get("fc.weight")
    hidden = target.hidden or target_width(drafter) or 0
    if fc is not None and hidden and fc[-1] != len(taps) * hidden:
        text = f"{len(taps)} taps x {hidden} = {len(taps) * hidden}"
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
            f"llama.cpp {llama.BUILD} does not export the layer inputs of this architecture: another engine, or a "
            "newer build",
        )


def _taps(drafter: DrafterView, taps: Taps, target: TargetView) -> Iterator[Finding]:
    depth, shown = target.layers, str(taps)
    if depth is not None and max(taps.outputs) >= depth:
        yield error("taps-depth", shown, f"{depth} layers", wrong_target(drafter))
    elif depth is not None and max(taps.outputs) == depth - 1:
        yield from _last_layer(drafter, depth, target)
    if min(taps.inputs) < 0:
        yield error("taps-depth", shown, f"{depth} layers", "a tap cannot be negative: convert the drafter again")
    if not taps.ascending or len(set(taps.outputs)) != len(taps):
        yield warning("taps-order", shown, None, "taps usually ascend; the order must be the one of the training")
    source = drafter.keys.integers("dflash_convert.source_taps")
    if source is not None and Taps.from_outputs(source) != taps:
        yield error("taps-shift", shown, f"the checkpoint has {Taps.from_outputs(source)}", SHIFT)


def _last_layer(drafter: DrafterView, depth: int, target: TargetView) -> Iterator[Finding]:
    """What leaves the last layer is exported by few graphs, and to EAGLE-3 by others than to DFlash."""
    row = drafter.row
    if row is None or target.architecture is None or target.architecture in row.last_layer:
        return
    block = "it aborts at the first draft" if row.block else "the drafts are noise"
    known = ", ".join(sorted(row.last_layer))
    cure = f"llama.cpp {llama.BUILD} gives a {row.name} drafter the last layer's output of {known} only: {block}"
    yield error("last-layer-tap", f"output of target layer {depth - 1}", f"{depth} layers of {target.label}", cure)


def check_host(drafter: DrafterView, target: TargetView) -> Iterator[Finding]:
    """Gemma-4 assistants attend to the keys and values of a Gemma 4 and nothing else."""
    if drafter.row is llama.GEMMA4_ASSISTANT and target.architecture not in (None, "gemma4"):
        yield error("target-architecture", "reads Gemma 4's keys and values", target.label, wrong_target(drafter))
