"""A fork's drafter GGUF rewritten for llama.cpp: names, keys and taps change, the weights' bytes do not."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dflash_convert import llama
from dflash_convert.container.keys import Keys
from dflash_convert.container.reader import Gguf, open_gguf
from dflash_convert.container.types import KV, TensorType, ValueType, array, array_length, boolean, f32, string, u32
from dflash_convert.container.writer import Entry, GgufOutput, layout
from dflash_convert.drafter import Overrides, Taps, TensorPlan
from dflash_convert.errors import ContainerError, FamilyError, UsageError
from dflash_convert.families.backbone import ARCH, REQUIRED
from dflash_convert.families.common import Needs, require
from dflash_convert.forks.dialects import BY_ARCHITECTURE, Dialect, dialect_of
from dflash_convert.notes import Note
from dflash_convert.output import check_output_path, check_space
from dflash_convert.quantization import tensor_plan
from dflash_convert.tensors import CONVOLUTION_LAYER, ENDS, FUSION, QWEN3_LAYER, SELECTOR, SPARK

CHUNK = 1 << 22
# a fork's tensor -> llama.cpp's
OWN = {name for table in (FUSION, ENDS, SPARK, SELECTOR) for name in table if "{}" not in name and name != "d2t"}
TENSORS = {name: name for name in (*OWN, "rope_freqs.weight")} | {
    "hidden_norm.weight": "enc.output_norm.weight",
    "lm_head.weight": "output.weight",
    "markov_head_a.weight": "markov_w1.weight",
    "markov_head_b.weight": "markov_w2.weight",
    "confidence_head.weight": "conf_proj.weight",
    "confidence_head.bias": "conf_proj.bias",
    "confidence_proj.weight": "conf_proj.weight",
    "selector_pred": "selector_predecessor.weight",
    "selector_succ": "selector_successor.weight",
    "selector_hproj.weight": "selector_hidden.weight",
}
BLOCK = (*QWEN3_LAYER, *CONVOLUTION_LAYER)
# keys that mean the same under both architectures
SAME = (
    *("block_count", "context_length", "embedding_length", "feed_forward_length"),
    *("attention.head_count", "attention.head_count_kv", "attention.causal", "attention.scale"),
    *("rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length"),
    *("rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor"),
    *("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.freq_base"),
    *("attention.layer_norm_rms_epsilon", "attention.key_length", "attention.value_length"),
    *("rope.dimension_count", "attention.value_scale", "logit_scale", "final_logit_softcapping", "embedding_scale"),
    *("attention.sliding_window", "attention.sliding_window_pattern", "hidden_activation"),
)
NEEDED = (
    *("block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count"),
    *("attention.head_count_kv", "rope.freq_base", "attention.layer_norm_rms_epsilon", "attention.key_length"),
)
UNUSED = ("vocab_size", "n_target_layers", "target_hidden", "n_target_features", "markov_rank")
SELECTOR_KEYS = {
    "conv_kernel_size": ("conv_kernel_size", "conv_taps"),
    "conv_group_size": ("conv_group_size",),
    "selector_rank": ("selector_rank",),
    "selector_top_k": ("selector_top_k",),
}


@dataclass(frozen=True)
class Migration:
    """What the new file will hold: keys and tensors in file order, each tensor with its unchanged type."""

    dialect: Dialect
    keys: tuple[KV, ...]
    tensors: tuple[tuple[TensorPlan, TensorType], ...]
    notes: tuple[Note, ...]


class _Old:
    """The fork's keys, looked up without their architecture prefix under the first spelling that is there."""

    def __init__(self, gguf: Gguf) -> None:
        self.gguf = gguf
        self.keys = Keys.of(gguf.path.name, gguf.keys.values()).under(gguf.architecture)
        self.used: set[str] = set()

    def _name(self, names: Sequence[str]) -> str:
        name = next((name for name in names if name in self.keys), names[0])
        self.used.add(self.keys.prefix + name)
        return name

    def kv(self, name: str) -> KV | None:
        return self.gguf.keys.get(self.keys.prefix + self._name((name,)))

    def value(self, *names: str) -> Any:
        return self.keys.value(self._name(names))

    def count(self, *names: str, low: int = 1) -> int | None:
        return self.keys.integer(self._name(names), low=low)

    def integers(self, *names: str) -> list[int] | None:
        return self.keys.integers(self._name(names))

    def fail(self, text: str, tip: str | None = None) -> ContainerError:
        return ContainerError(f"{self.gguf.path}: {text}", tip=tip)


def plan_migration(gguf: Gguf, vocabulary: Sequence[KV] | None, overrides: Overrides) -> Migration:
    """Everything decided, nothing written; ``vocabulary`` are tokenizer keys for a file that has none.

    UsageError for a file that is llama.cpp's own already: its taps are shifted and must not be shifted again.
    """
    dialect = dialect_of(gguf)
    if dialect is None:
        raise UsageError(
            f"{gguf.path}: architecture {gguf.architecture!r} is not a fork's dialect: nothing to rewrite",
            tip="its taps count layer inputs already: a second shift would spoil them"
            if gguf.architecture == ARCH
            else "migrate takes a drafter in a fork's dialect: " + ", ".join(BY_ARCHITECTURE),
        )
    if dialect.obstacle:
        raise FamilyError(f"{gguf.path}: {dialect.name} ({dialect.runtimes}): {dialect.obstacle}")
    old, notes = _Old(gguf), [Note("info", f"{dialect.name}, written for {dialect.runtimes}: {dialect.differs}")]
    plans = _tensors(gguf, old)
    spark = llama.DFLASH.variant([plan.name for plan, _ in plans]).anchored
    hidden = old.count("embedding_length") or 0
    taps = _taps(old, plans, hidden, overrides, notes)
    block = overrides.block_size or old.count("dflash.block_size", "dspark.block_size", "block_size", low=2)
    if block is None:
        raise old.fail("has no block_size", tip="--block-size N gives it")
    mask = overrides.mask_token_id
    if mask is None:
        mask = old.count("dflash.mask_token_id", "dspark.mask_token_id", "mask_token_id", low=0)
    keys = _keys(old, block, taps, spark, plans, notes)
    tokenizer = _tokenizer(gguf, old, vocabulary, mask, notes)
    _left_over(old, notes)
    general = [kv for name, kv in gguf.keys.items() if name.startswith("general.") and name != "general.alignment"]
    head = [string(kv.name, ARCH) if kv.name == "general.architecture" else kv for kv in general]
    origin = [
        string("dflash_convert.migrated_from", gguf.architecture),
        array("dflash_convert.source_taps", ValueType.INT32, list(taps.outputs)),
    ]
    return Migration(dialect, (*head, *keys, *tokenizer, *origin), tuple(plans), tuple(notes))


def _tensors(gguf: Gguf, old: _Old) -> list[tuple[TensorPlan, TensorType]]:
    plans: dict[str, tuple[TensorPlan, TensorType]] = {}
    for name, info in gguf.tensors.items():
        if name in ("d2t", "t2d"):
            raise FamilyError(
                f"{gguf.path}: tensor {name!r}: whether a fork's map holds ids or offsets is not known",
                tip="convert the checkpoint anew",
            )
        new = _new_name(name, gguf)
        if new is None:
            raise FamilyError(
                f"{gguf.path}: llama.cpp has no tensor for {name!r}",
                tip="the drafter has a part that llama.cpp cannot run, or a newer layout than this tool knows",
            )
        if new in plans:
            raise ContainerError(f"{gguf.path}: two tensors become {new}")
        source = tensor_plan(gguf, name)
        shape = (1, *info.shape) if new == "conf_proj.weight" and len(info.shape) == 1 else info.shape
        plans[new] = TensorPlan(new, shape, source.sources), info.type
    bias = old.value("dspark.confidence_bias")
    if "conf_proj.weight" in plans and isinstance(bias, float):
        constant = np.array([bias], dtype=np.float32)
        plans["conf_proj.bias"] = (
            TensorPlan("conf_proj.bias", (1,), transform="constant", constant=constant),
            TensorType.F32,
        )
    return list(plans.values())


def _new_name(name: str, gguf: Gguf) -> str | None:
    found = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
    if not found:
        bare = re.sub(r"^(dflash[._]|dspark\.)(dspark\.)?", "", name)
        return TENSORS.get(bare)
    prefix, part = (
        f"blk.{found.group(1)}.",
        found.group(2).replace("_conv.base", "_conv_base").replace("_conv.proj", "_conv_proj"),
    )
    if part == "post_attention_norm.weight" and prefix + "ffn_norm.weight" not in gguf.tensors:
        return prefix + "ffn_norm.weight"  # the Qwen name of the norm before the feed-forward layer
    return prefix + part if part in BLOCK else None


def _taps(
    old: _Old, plans: Sequence[tuple[TensorPlan, TensorType]], hidden: int, overrides: Overrides, notes: list[Note]
) -> Taps:
    """The nested list counts outputs, an un-nested one layer inputs: it is llama.cpp's own."""
    own = old.integers("target_layers")
    nested = old.integers(
        "dflash.target_layer_ids", "dspark.target_layers", "dspark.target_layer_ids", "target_layer_ids"
    )
    if overrides.taps is not None:
        taps = overrides.taps
    elif own is not None:
        taps = Taps.from_inputs(own)
        if nested is not None and Taps.from_outputs(nested) != taps:
            raise old.fail(f"target_layers ({taps}) are not the nested taps ({Taps.from_outputs(nested)})")
        notes.append(Note("info", "target_layers counts layer inputs already: not shifted"))
    elif nested is not None:
        taps = Taps.from_outputs(nested)
        notes.append(Note("derived", f"{taps}: {list(taps.inputs)} in the file, where llama.cpp counts layer inputs"))
    else:
        raise old.fail("has no taps", tip="--taps 1,16,31 gives the target layers whose output the drafter reads")
    if not taps.distinct:
        raise old.fail(f"the taps ({taps}) are not distinct layers")
    width = next((plan.shape[-1] for plan, _ in plans if plan.name == "fc.weight"), 0)
    stated = old.count("dflash.n_target_features") or width
    if width != len(taps) * hidden or stated != width:
        raise old.fail(
            f"{len(taps)} taps of width {hidden} do not make fc's {width} columns (n_target_features {stated})"
        )
    return taps


def _keys(
    old: _Old,
    block: int,
    taps: Taps,
    spark: bool,
    plans: Sequence[tuple[TensorPlan, TensorType]],
    notes: list[Note],
) -> list[KV]:
    keys = {name: kv for name in SAME if (kv := old.kv(name)) is not None}
    keys = {name: KV(f"{ARCH}.{name}", kv.type, kv.value, kv.item) for name, kv in keys.items()}
    keys |= _derived(old, keys, notes)
    missing = [name for name in NEEDED if name not in keys]
    if missing:
        raise old.fail(f"has no key for {', '.join(missing)}, which llama.cpp needs", tip="convert the checkpoint anew")
    result = [*keys.values(), u32(f"{ARCH}.block_size", block)]
    result.append(array(f"{ARCH}.target_layers", ValueType.INT32, list(taps.inputs)))
    names = {plan.name for plan, _ in plans}
    require([plan for plan, _ in plans], Needs(REQUIRED, int(keys["block_count"].value), "DFlash"))
    if llama.SELECTOR in names:
        for name, spellings in SELECTOR_KEYS.items():
            value = old.count(*(f"{prefix}{s}" for s in spellings for prefix in ("dflash2.", "dflash.dflash2.", "")))
            if value is None:
                raise old.fail(f"is a DFlash2 drafter without {name}")
            result.append(u32(f"{ARCH}.{name}", value))
    if spark:
        anchor = old.value("dspark.sample_from_anchor", "sample_from_anchor")
        if anchor is None:
            notes.append(Note("derived", "sample_from_anchor true: these forks draft from the anchor's own slot"))
        result.append(boolean(f"{ARCH}.sample_from_anchor", True if anchor is None else bool(anchor)))
        result.append(boolean(f"{ARCH}.has_confidence_head", "conf_proj.weight" in names))
        old.value("dspark.confidence_head", "dflash.confidence_head")
    return result


def _derived(old: _Old, keys: Mapping[str, KV], notes: list[Note]) -> dict[str, KV]:
    """What the forks leave to their loaders."""
    result: dict[str, KV] = {}
    if "attention.value_length" not in keys and "attention.key_length" in keys:
        result["attention.value_length"] = u32(f"{ARCH}.attention.value_length", keys["attention.key_length"].value)
    softcap = old.value("dflash.logit_softcap")
    if isinstance(softcap, float) and softcap > 0 and "final_logit_softcapping" not in keys:
        result["final_logit_softcapping"] = f32(f"{ARCH}.final_logit_softcapping", softcap)
    window, layers = old.count("dflash.sliding_window"), keys.get("block_count")
    if layers is not None and layers.value > llama.MAX_LAYERS:
        raise old.fail(f"says that it has {layers.value} layers, more than {llama.MAX_LAYERS}")
    if window is not None and layers is not None and "attention.sliding_window" not in keys:
        pattern = [True] * (int(layers.value) - 1) + [False]
        result["attention.sliding_window"] = u32(f"{ARCH}.attention.sliding_window", window)
        result["attention.sliding_window_pattern"] = array(
            f"{ARCH}.attention.sliding_window_pattern", ValueType.BOOL, pattern
        )
        notes.append(Note("derived", f"window {window} on all layers but the last, as the fork's loader has it"))
    width = keys.get("embedding_length")
    if old.gguf.architecture.startswith("gemma4") and width is not None and "embedding_scale" not in keys:
        result["embedding_scale"] = f32(f"{ARCH}.embedding_scale", float(width.value) ** 0.5)
        notes.append(Note("derived", f"embedding scale sqrt({width.value}): a Gemma target scales its embeddings"))
    return result


def _tokenizer(gguf: Gguf, old: _Old, vocabulary: Sequence[KV] | None, mask: int | None, notes: list[Note]) -> list[KV]:
    """The file's own vocabulary, else the target's; the mask token's id always beside it."""
    own = [kv for name, kv in gguf.keys.items() if name.startswith("tokenizer.")]
    model = gguf.get("tokenizer.ggml.model")
    name = "tokenizer.ggml.mask_token_id"
    if vocabulary is not None:
        keys = list(vocabulary)
        notes.append(Note("derived", "vocabulary from the target's tokenizer files"))
    elif isinstance(model, str) and model not in ("none", "no_vocab", ""):
        keys = own
    else:
        raise old.fail(
            "has no vocabulary, without which llama.cpp cannot draft",
            tip="--target-model-dir TARGET takes it from the target's tokenizer files",
        )
    if mask is None:
        found = next((kv.value for kv in own if kv.name == name), None)
        if not isinstance(found, int):
            raise old.fail("has no mask_token_id", tip="--mask-token-id N gives it")
        mask = found
    return [*(kv for kv in keys if kv.name != name), u32(name, mask)]


def _left_over(old: _Old, notes: list[Note]) -> None:
    """Every key of the fork is used, known to be needless, or named."""
    if old.value("dspark.log_snr_conditioning"):
        raise FamilyError(f"{old.gguf.path}: llama.cpp's DSpark has no noise-level (log-SNR) embedding")
    rest = [name for name in old.gguf.keys if name.startswith(old.keys.prefix) and name not in old.used]
    rest = [name for name in rest if not name.endswith(UNUSED)]
    if rest:
        notes.append(Note("skipped", f"{', '.join(rest)}: llama.cpp has no such key"))


def migrate_file(
    source: Path,
    output: Path,
    overrides: Overrides,
    *,
    vocabulary: Callable[[int], Sequence[KV]] | None = None,
    force: bool = False,
) -> Migration:
    """Write ``output``; ``vocabulary`` makes tokenizer keys for a vocabulary size.  On any error nothing changed."""
    gguf = open_gguf(source)
    check_output_path(output, force=force, inputs=[source])
    migration = plan_migration(gguf, vocabulary(vocabulary_size(gguf)) if vocabulary else None, overrides)
    entries = [Entry(plan.name, plan.shape, kind) for plan, kind in migration.tensors]
    places = layout(migration.keys, entries)
    check_space(output.parent, places.size)
    with GgufOutput(output, entries, places, force=force) as file:
        for plan, _ in migration.tensors:
            offset = file.offset(plan.name)
            if plan.constant is not None:
                file.write_at(offset, plan.constant.view(np.uint8).data)
                continue
            data = gguf.data(plan.sources[0].name).reshape(-1)
            for at in range(0, data.size, CHUNK):
                file.write_at(offset + at, data[at : at + CHUNK].data)
        file.commit()
    return migration


def vocabulary_size(gguf: Gguf) -> int:
    """Tokens the drafter was made for: its own key, else the rows of a table over the vocabulary."""
    stated = gguf.get(f"{gguf.architecture}.vocab_size")
    if isinstance(stated, int) and stated > 0:
        return stated
    for part in ("token_embd.weight", "output.weight", "markov_w1.weight", "markov_head_a.weight"):
        for name, info in gguf.tensors.items():
            if name.endswith(part):
                return int(info.shape[0])
    if tokens := array_length(gguf.get("tokenizer.ggml.tokens")):
        return tokens
    raise ContainerError(f"{gguf.path}: says nowhere how many tokens its vocabulary has")
