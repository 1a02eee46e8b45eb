"""Drafters that are recognised and refused, each with what llama.cpp lacks for it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dflash_convert.drafter import Weight
from dflash_convert.errors import FamilyError
from dflash_convert.hparams import Config
from dflash_convert.llama import EAGLE3

# architecture string -> (name, what the runtime lacks)
ARCHITECTURES: Mapping[str, tuple[str, str]] = {
    "DFlashLagunaForCausalLM": (
        "Laguna",
        "its dflash graph has neither Laguna's attention gate nor its auxiliary feature norms",
    ),
    "Qwen35DSparkModel": ("Qwen3.5 DSpark", "its dflash graph has no gated queries and no offset norms"),
    "Qwen3_5DSparkModel": ("Qwen3.5 DSpark", "its dflash graph has no gated queries and no offset norms"),
    "DominoDraftModel": ("Domino", "it has no recurrent (GRU) draft head"),
    "KimiK3DSparkModel": ("Kimi-K3 DSpark", "its dflash graph has no latent (MLA) attention"),
    "K3DSparkModel": ("Kimi-K3 DSpark", "its dflash graph has no latent (MLA) attention"),
    "Glm5_2DSparkModel": ("GLM-5.2 DSpark", "its dflash graph has no backbone of this name"),
    "MiniMaxM3DSparkModel": ("MiniMax-M3 DSpark", "its dflash graph has no backbone of this name"),
    "DSparkMiniMaxDraftModel": ("MiniMax DSpark", "its dflash graph has no backbone of this name"),
    "PEagleDraftModel": ("P-EAGLE", "its eagle3 graph drafts one token a pass and cannot draft in parallel"),
    "PEagleSpeculator": ("P-EAGLE", "its eagle3 graph drafts one token a pass and cannot draft in parallel"),
    "DFlareDraftModel": ("DFlare", "its dflash graph has no per-layer fusion of the taps"),
}
# speculators_model_type or projector_type -> an architecture above
KINDS = {"peagle": "PEagleDraftModel", "domino": "DominoDraftModel", "dflare": "DFlareDraftModel"}
Method = tuple[str, str]  # its name, what llama.cpp lacks for it
MEDUSA: Method = ("Medusa", "it has no method that drafts with several heads on the target's last hidden state")
HYDRA = ("Hydra", "it has no method that drafts with several heads on the target's last hidden state")
MLP = ("MLP speculator", "it has no method that drafts from the last hidden state through a chain of small layers")
EAGLE = ("EAGLE-1/2", "its eagle3 graph fuses three hidden states of the target, this head reads the last one alone")
LATENT = ("EAGLE-3 with latent (MLA) attention", "its eagle3 graph has no latent (MLA) attention")
MTP: Method = (
    "prediction layer (MTP)",
    "its own converter writes such layers, inside the target's GGUF or alone (--mtp), and --spec-type draft-mtp runs "
    "them",
)
HYBRID: Method = ("H-Spec", "its dflash graph has no recurrent (Mamba) layers and borrows no keys and values")
DSPINE: Method = ("DSpine", "its dflash graph has none of the matrices that pass messages between the slots of a block")
EDSD: Method = ("EDSD", "its eagle3 graph reads three layers of the target")
LATENT_BLOCK: Method = (
    "DFlash or DSpark with latent (MLA) attention",
    "its dflash graph has grouped-query attention alone",
)
# drafting methods of other programs: what their classes are called (vLLM's and SGLang's registries, speculators)
METHODS: tuple[tuple[re.Pattern[str], Method], ...] = (
    (re.compile(r"medusa", re.IGNORECASE), MEDUSA),
    (re.compile(r"hydra", re.IGNORECASE), HYDRA),
    (re.compile(r"mlp_?speculator", re.IGNORECASE), MLP),
    (
        re.compile(r"(deepseek|kimi|mla).*eagle3|eagle3.*(deepseek|kimi|mla|longcat|glm_?moe_?dsa)", re.IGNORECASE),
        LATENT,
    ),
    (re.compile(r"eagle(?!3|\d*(?:_\d)?_?vl)|^hass", re.IGNORECASE), EAGLE),
    (re.compile(r"MTP|NextN(?![a-z])"), MTP),
    (re.compile(r"^HSpec"), HYBRID),
    (re.compile(r"^DSpine"), DSPINE),
    (re.compile(r"^Edsd", re.IGNORECASE), EDSD),
    (re.compile(r"^(?:Kimi|Deepseek(?!V4))\w*(?:DFlash|DSpark)"), LATENT_BLOCK),
)
# fields by which configs without a class of their own tell their method, and speculators_model_type's and model_type's
FIELDS = {"medusa_num_heads": MEDUSA, "medusa_heads": MEDUSA, "hydra_num_heads": HYDRA}
TYPES = {"medusa": MEDUSA, "mlp": MLP, "mlp_speculator": MLP, "eagle": EAGLE, "hass": EAGLE, "mtp": MTP, "fastmtp": MTP}
TIP = "look for a DFlash, DFlash2, DSpark or EAGLE-3 drafter of the same target"
# how a target's config counts its prediction layers
PREDICTION_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "mtp_num_layers")
# part of a tensor's name -> an architecture above, for exports that keep a common architecture string
TENSORS = {
    "prefix_gru.": "DominoDraftModel",
    "self_attn.g_proj.": "DFlashLagunaForCausalLM",
    "kv_a_proj_with_mqa.": "KimiK3DSparkModel",
}
MARKOV_TENSORS = ("markov_head.gate_proj", "markov_head.joint_proj", "markov_head.rnn")


def prediction_layers(raw: Mapping[str, Any]) -> str:
    """What to do with the prediction layers that a target has itself; empty for one without."""
    fields = Config(raw).fields
    count = next((fields[name] for name in PREDICTION_LAYERS if isinstance(fields.get(name), int) and fields[name]), 0)
    if not count:
        return ""
    return (
        f"; its own prediction layer{'s' * (count > 1)} (MTP) need no drafter: llama.cpp's converter writes them, "
        "--spec-type draft-mtp runs them"
    )


def not_run(method: Method, names: Sequence[str]) -> FamilyError:
    name, reason = method
    shown = f" ({names[0]})" if names else ""
    return FamilyError(f"config.json: a drafter of the kind {name}{shown}; llama.cpp cannot run it: {reason}", tip=TIP)


def method_of(names: Sequence[str], raw: Mapping[str, Any], known: Collection[str]) -> Method | None:
    """Of a drafter that is none of ours; ``names`` are its classes, ``known`` those that a family reads."""
    if any(name in known or name in ARCHITECTURES for name in names):
        return None
    by_field = next((method for field, method in FIELDS.items() if raw.get(field) is not None), None)
    stated = [str(raw.get(field, "")).lower() for field in ("speculators_model_type", "model_type")]
    kinds = [each for kind in stated for each in (kind, kind.rpartition("_")[2])]
    by_type = next((TYPES[kind] for kind in kinds if kind in TYPES), None)
    by_name = (method for pattern, method in METHODS if any(pattern.search(name) for name in names))
    return by_field or by_type or next(by_name, None)


def refuse(names: Sequence[str], config: Config, weights: Sequence[Weight]) -> None:
    """FamilyError when the architecture, a field or a tensor is of a drafter that llama.cpp cannot run."""
    kinds = [
        str(config.raw.get("speculators_model_type", "")).lower(),
        str(config.nested.get("projector_type", config.raw.get("projector_type", ""))).lower(),
    ]
    found = next((name for name in names if name in ARCHITECTURES), None)
    found = found or next((KINDS[kind] for kind in kinds if kind in KINDS), None)
    if found is None and config.raw.get("model_type") == "laguna":
        found = "DFlashLagunaForCausalLM"
    part = next((part for part in TENSORS if any(part in weight.name for weight in weights)), None)
    if found is None and part == "kv_a_proj_with_mqa." and _is_eagle3(names, config):
        raise not_run(LATENT, names)
    if found is None and part is not None:
        found = TENSORS[part]
    if found is not None:
        name, reason = ARCHITECTURES[found]
        raise FamilyError(f"config.json: a {name} drafter ({found}); llama.cpp cannot run it: {reason}")
    _refuse_markov(config, weights)


def _is_eagle3(names: Sequence[str], config: Config) -> bool:
    return any(EAGLE3.name in name.lower() for name in names) or "draft_vocab_size" in config.raw


def _refuse_markov(config: Config, weights: Sequence[Weight]) -> None:
    kind = config.text("dflash_config.markov_head_type", "markov_head_type") or "vanilla"
    if kind == "vanilla" and any(part in weight.name for part in MARKOV_TENSORS for weight in weights):
        kind = "gated or recurrent"
    if kind != "vanilla":
        raise FamilyError(f"config.json: markov_head_type is {kind}; llama.cpp runs a vanilla Markov head only")
