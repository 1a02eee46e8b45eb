"""One reading for every exporter's spelling: tensor names, taps, block, mask token, anchor rule.

Who writes what (public loaders and exporters): z-lab nests the contract in ``dflash_config``; DeepSpec and
Muse keep it at the top; speculators nests the backbone in ``transformer_layer_config`` and counts layer inputs;
ModelOpt keeps Markov tensors at the root; early SpecForge prefixes them with ``logit_head.``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dflash_convert.drafter import Overrides, Taps, Weight
from dflash_convert.errors import ConfigError, FamilyError
from dflash_convert.families.tokens import token_id
from dflash_convert.hparams import Config
from dflash_convert.notes import Note
from dflash_convert.target import Target

RENAMED = (
    (re.compile(r"^model\."), ""),
    (re.compile(r"^logit_head\."), ""),
    (re.compile(r"^markov_(w[12])(\.weight)?$"), r"markov_head.markov_\1.weight"),
    (re.compile(r"^(?:markov_head\.)?confidence_proj\."), "confidence_head.proj."),
    (re.compile(r"^confidence_head\.(weight|bias)$"), r"confidence_head.proj.\1"),
    (re.compile(r"^(candidate_selector\.\w+_codebook)\.weight$"), r"\1"),
)
# one fact under three names, the first that is stated counts: vLLM and SGLang call it query_zero_predicts_next; a
# shifted label (SpecForge, ModelOpt) makes the slot at k predict token k + 1, so that the anchor's slot drafts too
ANCHOR = (
    "sample_from_anchor",
    "dflash_config.sample_from_anchor",
    "query_zero_predicts_next",
    "dflash_config.query_zero_predicts_next",
    "shift_label",
    "dflash_config.shift_label",
)
MAX_BLOCK = 4096  # tokens per draft; published drafters have 4 to 32
TAP_TIP = "the drafter's taps are needed: --taps 1,9,17 gives the target layers whose output it reads"


def canonical(weights: Sequence[Weight]) -> list[Weight]:
    """Every weight under its canonical name; order and sources stay."""
    return [weight._replace(name=canonical_name(weight.name)) for weight in weights]


def canonical_name(name: str) -> str:
    for pattern, replacement in RENAMED:
        name = pattern.sub(replacement, name)
    return name


def exporter(config: Config, weights: Sequence[Weight]) -> str:
    """Who wrote the checkpoint, as far as its shape tells."""
    names = {weight.sources[0].name.removeprefix("model.") for weight in weights}
    if {"speculators_model_type", "speculators_config", "transformer_layer_config"} & set(config.raw):
        return "speculators"
    if any(name.startswith(("markov_w1", "confidence_proj")) for name in names) or "quant_algo" in config.raw:
        return "ModelOpt"
    if any(name.startswith("logit_head.") for name in names) or "projector_type" in config.nested:
        return "SpecForge"
    if config.nested:
        return "z-lab"
    return "DeepSpec" if "target_layer_ids" in config.raw and "num_anchors" in config.raw else "unknown"


def proposed_target(raw: Mapping[str, Any]) -> str | None:
    """The repository that a speculators config names as its verifier."""
    inner = raw.get("speculators_config")
    verifier = inner.get("verifier") if isinstance(inner, dict) else None
    name = verifier.get("name_or_path") if isinstance(verifier, dict) else None
    return name if isinstance(name, str) and name else None


def read_block(config: Config, overrides: Overrides) -> int:
    if overrides.block_size is not None:
        return overrides.block_size
    block = config.integer("dflash_config.block_size", "block_size", low=2, high=MAX_BLOCK)
    return config.need(block, "block_size", tip="--block-size N gives it; the reference converter would take 16")


def read_mask(config: Config, target: Target, vocab: int, overrides: Overrides, notes: list[Note]) -> int:
    """The mask token's id: a number nested or at the top, else a string that the target's tokenizer knows."""
    mask = overrides.mask_token_id
    if mask is None:
        mask = config.integer("dflash_config.mask_token_id", "mask_token_id")
    if mask is None:
        text = config.text("dflash_config.mask_token", "mask_token")
        if text is not None:
            mask = token_id(target, text)
            if mask is None:
                raise ConfigError(
                    f"{config.file}: mask_token is {text!r}, which the target's tokenizer does not name",
                    tip="--mask-token-id N gives its id",
                )
            notes.append(Note("derived", f"mask token id {mask} of {text!r} from the target's tokenizer"))
    mask = config.need(mask, "dflash_config.mask_token_id", tip="--mask-token-id N gives it")
    if mask >= vocab:
        where = f"{config.file}: mask_token_id" if overrides.mask_token_id is None else "--mask-token-id"
        raise ConfigError(f"{where} {mask} is outside the vocabulary of {vocab}")
    for field in ("eos_token_id", "pad_token_id"):
        value = target.stated.fields.get(field)
        if mask in (value if isinstance(value, list) else [value]):
            notes.append(Note("warning", f"mask token {mask} is the target's {field}: an exporter's fallback?"))
    return mask


def read_taps(
    config: Config, target: Config, weights: Sequence[Weight], hidden: int, overrides: Overrides, notes: list[Note]
) -> Taps:
    """The target layers that the drafter taps: ``target_layer_ids`` count outputs, ``aux_hidden_state_layer_ids`` and
    ``eagle_aux_hidden_state_layer_ids`` inputs."""
    where = f"{config.file}: target_layer_ids" if overrides.taps is None else "--taps"
    if overrides.taps is not None:
        taps = overrides.taps
    else:
        stated = _stated_taps(config)
        if stated:
            (source, taps), *others = stated
            for name, other in others:
                if other != taps:
                    text = f"{source} and {name} name different layers; {source} counts"
                    notes.append(Note("warning", text, True))
        else:
            raise _no_taps(config, weights, hidden)
    if not taps.distinct:
        raise ConfigError(f"{where} {list(taps.outputs)} are not distinct layers")
    if not taps.ascending:
        notes.append(Note("warning", f"the taps are not in ascending order ({taps}); the order is kept"))
    _check_fc(config, weights, hidden, taps, where)
    _check_depth(config, target, taps, notes, where)
    return taps


def _stated_taps(config: Config) -> list[tuple[str, Taps]]:
    """Every list of taps in the config, the one that counts first."""
    found = []
    for name, counted in (
        ("dflash_config.target_layer_ids", Taps.from_outputs),
        ("dflash_config.layer_ids", Taps.from_outputs),
        ("aux_hidden_state_layer_ids", Taps.from_inputs),
        ("target_layer_ids", Taps.from_outputs),
        ("eagle_aux_hidden_state_layer_ids", Taps.from_inputs),
    ):
        ids = config.integers(name)
        if ids:
            found.append((name, counted(ids)))
    return found


def fc_columns(weights: Sequence[Weight]) -> int | None:
    """Columns of the feature fusion matrix, None when there is none."""
    shape = next((w.shape for w in weights if w.name in ("fc.weight", "encoder.fc.weight")), ())
    return shape[1] if len(shape) == 2 else None


def _no_taps(config: Config, weights: Sequence[Weight], hidden: int) -> ConfigError:
    """The spacing rules that loaders fall back to disagree with most published lists, so none is taken."""
    columns = fc_columns(weights)
    made = f" (fc.weight is made for {columns // hidden})" if columns and columns % hidden == 0 else ""
    return ConfigError(f"{config.file}: target_layer_ids is missing{made}", tip=TAP_TIP)


def _check_fc(config: Config, weights: Sequence[Weight], hidden: int, taps: Taps, where: str) -> None:
    """The loader wants [hidden, taps x hidden]; a target of another width cannot be expressed."""
    columns, other = fc_columns(weights), config.integer("target_hidden_size", low=1)
    if columns is None or (columns == len(taps) * hidden and other in (None, hidden)):
        return
    if columns == len(taps) * hidden:
        raise ConfigError(
            f"{config.file}: target_hidden_size is {other}, but fc.weight reads {len(taps)} states of {hidden}",
            tip="config.json and the weights are not of the same drafter",
        )
    if columns % len(taps) == 0 and (other == columns // len(taps) or columns % hidden):
        raise FamilyError(
            f"{config.file}: the drafter reads target states of width {columns // len(taps)} but its own hidden_size "
            f"is {hidden}; llama.cpp's dflash needs the two to be equal"
        )
    raise ConfigError(
        f"{where} names {len(taps)} taps, but fc.weight is made for {columns / hidden:g}",
        tip="--taps gives the right list, one layer for each hidden_size of columns",
    )


def _check_depth(config: Config, target: Config, taps: Taps, notes: list[Note], where: str) -> None:
    depth = config.integer("dflash_config.num_target_layers", "num_target_layers", low=1)
    real = target.integer("num_hidden_layers", low=1)
    deepest = max(taps.outputs)
    if depth is not None and deepest >= depth:
        raise ConfigError(
            f"{where}: tap {deepest} is outside a target of {depth} layers", tip="taps count layers from 0"
        )
    last = real or depth
    if last is not None and deepest == last - 1:
        notes.append(
            Note(
                "warning",
                f"tap {deepest} is the target's last layer: llama.cpp exports what leaves the last layer of few "
                "architectures only (check says which) and aborts on the others",
            )
        )


def read_anchor(config: Config, block: int, spark: bool, overrides: Overrides, notes: list[Note]) -> bool:
    """Whether drafting starts in the anchor's own slot: a stated value, else the exporter's or family's rule."""
    if overrides.sample_from_anchor is not None:
        return overrides.sample_from_anchor
    stated = [(name, value) for name in ANCHOR if (value := config.boolean(name)) is not None]
    if stated:
        (source, anchor), *others = stated
        for name, other in others:
            if other != anchor:
                notes.append(Note("warning", f"{source} and {name} name different slot rules; {source} counts", True))
        if source.split(".")[-1] != "sample_from_anchor":
            text = f"sample_from_anchor {str(anchor).lower()}: {source} says the same in its trainer's words"
            notes.append(Note("derived", text))
        return anchor
    start = config.integer("logits_start", high=1)
    if start is not None:
        notes.append(Note("derived", f"sample_from_anchor {str(start == 0).lower()}: logits_start is {start}"))
        return start == 0
    tokens = _proposed_tokens(config)
    if tokens in (block, block - 1):
        anchor = tokens == block
        notes.append(
            Note("derived", f"sample_from_anchor {str(anchor).lower()}: {tokens} speculative tokens, block {block}")
        )
        return anchor
    if tokens is not None:
        text = f"speculative_tokens {tokens} fits neither slot rule of a block of {block}; ignored"
        notes.append(Note("warning", text, True))
    # plain DFlash never; EAGLE-style DSpark drafts after a bonus anchor, the DFlash lineage from the anchor itself
    return spark and not {"transformer_layer_config", "aux_hidden_state_layer_ids"} & set(config.raw)


def _proposed_tokens(config: Config) -> int | None:
    """speculative_tokens of the default proposal method (speculators)."""
    outer = config.table("speculators_config") or {}
    methods = outer.get("proposal_methods")
    if not isinstance(methods, list):
        return None
    tables = [m for m in methods if isinstance(m, dict)]
    default = outer.get("default_proposal_method")
    chosen = next((m for m in tables if m.get("proposal_type") == default), tables[0] if tables else {})
    return Config(chosen, f"{config.file}: proposal_methods").integer("speculative_tokens")
