"""Drafters that are recognised and refused, each with what llama.cpp lacks for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dflash_convert.drafter import Weight
from dflash_convert.errors import FamilyError
from dflash_convert.hparams import Config

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
# part of a tensor's name -> an architecture above, for exports that keep a common architecture string
TENSORS = {
    "prefix_gru.": "DominoDraftModel",
    "self_attn.g_proj.": "DFlashLagunaForCausalLM",
    "kv_a_proj_with_mqa.": "KimiK3DSparkModel",
}
MARKOV_TENSORS = ("markov_head.gate_proj", "markov_head.joint_proj", "markov_head.rnn")


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
    if found is None and part is not None:
        found = TENSORS[part]
    if found is not None:
        name, reason = ARCHITECTURES[found]
        raise FamilyError(f"config.json: a {name} drafter ({found}); llama.cpp cannot run it: {reason}")
    _refuse_markov(config, weights)


def _refuse_markov(config: Config, weights: Sequence[Weight]) -> None:
    kind = config.text("dflash_config.markov_head_type", "markov_head_type") or "vanilla"
    if kind == "vanilla" and any(part in weight.name for part in MARKOV_TENSORS for weight in weights):
        kind = "gated or recurrent"
    if kind != "vanilla":
        raise FamilyError(f"config.json: markov_head_type is {kind}; llama.cpp runs a vanilla Markov head only")
