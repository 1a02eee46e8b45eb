"""Every difference on purpose between llama.cpp's converter and ``convert --plain``, with its reason.

``docs/make_differences.py`` writes docs/differences.md from this table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from differential.variations import Variation

LABEL = "key general.size_label"  # follows from the tensors


@dataclass(frozen=True)
class Facts:
    """A case, what stopped our side and what stopped the converter."""

    case: Variation
    ours: str | None
    theirs: str | None

    def has(self, *names: str) -> bool:
        """Whether a field of one of these names has a value, at the top, in the contract or the backbone."""
        return any(self.stated(name) is not None for name in names)

    def stated(self, name: str) -> Any:
        places = (self.case.nested, self.case.backbone, self.case.config)
        return next((place[name] for place in places if place.get(name) is not None), None)

    def rope(self) -> Mapping[str, Any]:
        """All of the rope tables, flattened."""
        found: dict[str, Any] = {}
        for name in ("rope_parameters", "rope_scaling"):
            table = self.case.backbone.get(name)
            found |= table if isinstance(table, dict) else {}
        inner = found.get("full_attention")
        return found | (inner if isinstance(inner, dict) else {})

    def rope_kind(self) -> str:
        return str(self.rope().get("rope_type", self.rope().get("type", "default")))

    def known_class(self) -> bool:
        """Whether transformers has a class for the config and fills in what it lacks."""
        return self.case.backbone.get("model_type", self.case.config.get("model_type")) in TRANSFORMERS


TRANSFORMERS = ("qwen3", "llama", "gemma4_assistant", "gemma4_text", "deepseek_v4")


@dataclass(frozen=True)
class Purpose:
    """``pattern`` matches a difference's text; ``when`` says of which cases.  ``gap`` is its row of docs/gaps.md."""

    name: str
    pattern: str
    reason: str
    gap: str = ""
    when: Callable[[Facts], bool] = lambda _: True


def _spark(facts: Facts) -> bool:
    return any("Spark" in str(name) for name in facts.case.config.get("architectures") or [])


def _markov(facts: Facts) -> bool:
    return any("markov" in name for name in facts.case.tensors)


def _own_head(facts: Facts) -> bool:
    return any(name.endswith("lm_head.weight") for name in facts.case.tensors)


def _interleaved(facts: Facts) -> bool:
    names = ("is_neox_style", "rope_is_neox_style")
    return any(place.get(name) is False for place in (facts.case.nested, facts.case.config) for name in names)


def _no_half(facts: Facts) -> bool:
    kinds = [kind for kind, array in facts.case.tensors.values() if array.ndim > 1]
    return facts.case.outtype == "auto" and not {"BF16", "F16"} & set(kinds)


def _idle_window(facts: Facts) -> bool:
    kinds = facts.stated("layer_types") or []
    return "sliding_attention" not in kinds and facts.stated("use_swa") is not True


def _anchor_first(facts: Facts) -> bool:
    """A DSpark head without Markov tensors: it drafts from the anchor's own slot."""
    stated = any(place.get("sample_from_anchor") is True for place in (facts.case.nested, facts.case.config))
    return (_spark(facts) or stated) and not _markov(facts)


def _gemma_spark(facts: Facts) -> bool:
    return facts.case.family == "gemma4_dspark"


TOP = ("output_multiplier", "final_logit_softcapping", "input_embedding_scale", "attention_value_scale")
REFUSED = r"^refused: .*"

PURPOSE: tuple[Purpose, ...] = (
    Purpose(
        "a DSpark drafter's own head is kept",
        r"^tensor output\.weight: only in ours|^" + LABEL,
        "the converter drops `lm_head` when the draft vocabulary is whole; with embeddings of its own llama.cpp then "
        "takes those for the head, without them the target's head",
        "G2",
        lambda f: _spark(f) and _own_head(f),
    ),
    Purpose(
        "a head that drafts from the anchor gets Markov tensors of zeros",
        r"^tensor markov_w[12]\.weight: only in ours|^key dflash\.(sample_from_anchor|has_confidence_head): |^" + LABEL,
        "without a Markov head llama.cpp reads the file as DFlash, one slot off",
        "G16",
        _anchor_first,
    ),
    Purpose(
        "Markov tensors under the plain architecture",
        r"^key dflash\.(sample_from_anchor|has_confidence_head): .* instead of nothing",
        "the head is told by its tensors, and its two keys are written",
        "G15",
        lambda f: _markov(f) and not _spark(f),
    ),
    Purpose(
        "where drafts start",
        r"^key dflash\.sample_from_anchor: BOOL (True|False) instead of BOOL",
        "a nested field and speculators' count of tokens are read too",
        "G4, G5",
    ),
    Purpose(
        "the mask token outside the contract",
        r"^key tokenizer\.ggml\.mask_token_id: ",
        "the converter reads it in `dflash_config` alone and else keeps the target tokenizer's own, or none: then "
        "llama.cpp aborts at the first draft",
        "G10",
        lambda f: f.case.nested.get("mask_token_id") is None,
    ),
    Purpose(
        "the activation",
        r"^key dflash\.hidden_activation: .* instead of nothing",
        "llama.cpp reads the key; without it a gelu drafter runs with silu",
        "G28",
    ),
    Purpose(
        "llama3 rope of a block drafter",
        r"^tensor rope_freqs\.weight: only in ours",
        "the divisors are written; without them the drafter runs with plain rope",
        "G27",
        lambda f: f.rope_kind() == "llama3" and f.case.block_drafter,
    ),
    Purpose(
        "rope that rotates neighbours",
        r"^tensor blk\.\d+\.attn_[qk](_norm)?\.weight: other values",
        "`is_neox_style` is the same fact as `rope_is_neox_style`, and the contract counts before the top; the "
        "converter reads the latter at the top alone, and of an EAGLE-3 head neither",
        "G26",
        _interleaved,
    ),
    Purpose(
        "fields of a mixture of experts",
        r"^key \w+\.expert_(count|used_count|group_count|group_used_count|gating_func): nothing instead of",
        "copied from a target's config: the drafter has no experts, and llama.cpp refuses a count without the others",
    ),
    Purpose(
        "layer_norm_eps",
        r"^key \w+\.attention\.layer_norm_epsilon: nothing instead of",
        "the drafter's graphs have RMS norms alone and never read it",
    ),
    Purpose(
        "a window that no layer has",
        r"^key dflash\.attention\.sliding_window(_pattern)?: nothing instead of",
        "a pattern of full layers alone; the window would change nothing but the cache's kind",
        when=_idle_window,
    ),
    Purpose(
        "scales beside the contract",
        r"^key dflash\.(attention\.value_scale|logit_scale|final_logit_softcapping|embedding_scale): "
        r".* instead of nothing",
        "the converter reads `attention_value_scale` in `dflash_config` alone, and none of the scales of a Muse "
        "assistant; llama.cpp's graph applies them",
        when=lambda f: f.has(*TOP),
    ),
    Purpose(
        "transformers' defaults",
        r"^key \w+\.(rope\.freq_base|rope\.dimension_count|context_length|attention\.(key|value)_length|"
        r"rope\.dimension_sections|attention\.layer_norm_rms_epsilon|attention\.sliding_window(_pattern)?|"
        r"embedding_scale): ",
        "the converter reads the config through a class of transformers, whose defaults stand for what the config "
        "lacks or names otherwise, and change with its version; here a value comes from the checkpoint or its tensors",
        "G36",
        Facts.known_class,
    ),
    Purpose(
        "sizes of the tensors",
        r"^key \w+\.(attention\.(key|value)_length|context_length|rope\.dimension_count): ",
        "`head_dim` comes from the rows of q_proj and the context from the target, where the config has none",
        when=lambda f: not f.has("head_dim") or not f.has("max_position_embeddings"),
    ),
    Purpose(
        "llama3 rope of an EAGLE-3 head",
        r"^tensor rope_freqs\.weight: other values, at most \de-0[78] apart",
        "the divisors are computed in float64 and rounded once, the converter's in float32 by torch: up to 3 units in "
        "the last place",
        when=lambda f: f.case.family.startswith("eagle3"),
    ),
    Purpose(
        "the original context of a llama3 rope",
        r"^tensor rope_freqs\.weight: other values",
        "where the table has none, max_position_embeddings stands for it; the converter takes 8192",
        when=lambda f: f.rope_kind() == "llama3" and "original_max_position_embeddings" not in f.rope(),
    ),
    Purpose(
        "an EAGLE-3 head for a Gemma-4 target",
        r"^key tokenizer\.ggml\.(add_space_prefix|merges|model|pre|scores|token_type|tokens|\w+_token_id): ",
        "the vocabulary is written as for any drafter of that target; the converter writes a Llama's without merges, "
        "with which llama.cpp splits text otherwise",
        "G47",
        lambda f: f.case.family.startswith("eagle3") and f.case.tokenizer == "gemma",
    ),
    Purpose(
        "a rope table that transformers rebuilds",
        r"^key \w+\.rope\.scaling\.\w+: .* instead of nothing",
        "a class of transformers moves the table's fields: the older name `type` and DeepSeek-V4's table get lost, so "
        "the converter writes no scaling",
        when=lambda f: f.known_class() and ("type" in f.rope() or f.case.family.startswith("deepseek")),
    ),
    Purpose(
        "YaRN's factor",
        r"^key \w+\.rope\.scaling\.\w+: .* instead of nothing",
        "from the original and the whole context, as transformers derives it; the converter writes no scaling then",
        when=lambda f: f.rope_kind() == "yarn" and "factor" not in f.rope(),
    ),
    Purpose(
        "`auto` of a checkpoint in float32",
        r"^key general\.file_type: UINT32 0 instead of UINT32 1|^tensor .*: F32 \(.*\) instead of F16 ",
        "the converter takes F16 when no matrix is in half precision; `auto` loses nothing",
        when=_no_half,
    ),
    Purpose(
        "DeepSeek-V4's template",
        r"^key tokenizer\.chat_template: nothing instead of",
        "the converter adds one of llama.cpp's own when the target has none; a template here is the target's",
        when=lambda f: f.case.family.startswith("deepseek"),
    ),
    Purpose(
        "DeepSeek-V4's rotated dimensions",
        r"^key dflash\.rope\.dimension_count: ",
        "`qk_rope_head_dim` is the number; a partial_rotary_factor beside it changes nothing in DeepSeek's own code",
        when=lambda f: f.case.family.startswith("deepseek") and "partial_rotary_factor" in str(f.case.config),
    ),
    Purpose(
        "rope_scaling of a Gemma-4 DSpark drafter",
        r"^key dflash\.rope\.freq_base: |^tensor rope_freqs\.weight: only in theirs|^order of keys",
        "the older name of `rope_parameters`; the converter reads the newer alone and takes Gemma's default",
        when=lambda f: _gemma_spark(f) and f.has("rope_scaling"),
    ),
    # --- what the converter writes and we refuse ------------------------------------------------------------------
    Purpose(
        "refused: block_size is missing",
        REFUSED + r"block_size is missing",
        "the converter writes 16",
        "G12",
    ),
    Purpose(
        "refused: no mask token",
        REFUSED + r"mask_token_id is missing",
        "llama.cpp aborts at the first draft",
        "G10",
    ),
    Purpose(
        "refused: no taps",
        REFUSED + r"target_layer_ids is missing",
        "llama.cpp refuses the file",
        "G11",
    ),
    Purpose(
        "refused: no rope base",
        REFUSED + r"rope_theta is missing",
        "llama.cpp takes 10000, whatever the drafter was trained with; `--rope-theta` gives it",
        "G35",
    ),
    Purpose(
        "refused: a rope that the graph has not",
        REFUSED + r"(rope_type is '(longrope|dynamic with alpha|su)'|rope type \w+, which llama.cpp's DeepSeek-V4|"
        r"rope type \w+ needs divisors|factor is missing|rope type \w+; a Gemma-4 DSpark|llama.cpp cannot express it)",
        "the converter leaves the scaling out: the drafter then runs otherwise than it was trained",
    ),
    Purpose(
        "refused: a window without a size",
        REFUSED + r"sliding_window is missing",
        "layers marked as sliding would become full ones",
    ),
    Purpose(
        "refused: what the graph lacks",
        REFUSED + r"(llama.cpp runs an EAGLE-3 head with silu only|dimensions of a head are rotated; an EAGLE-3 head|"
        r"; llama.cpp runs \w+)",
        "the file would load and draft noise",
    ),
    Purpose(
        "refused: config and tensors contradict each other",
        REFUSED
        + r"(has shape \[.*config\.json implies|(max_position_embeddings|head_dim|num_key_value_heads) is missing)",
        "llama.cpp refuses the file, or reads a size that the config does not state",
    ),
)


def purpose_of(facts: Facts, difference: str) -> Purpose | None:
    """The entry that explains ``difference``; None is a failure."""
    return next((each for each in PURPOSE if re.search(each.pattern, difference) and each.when(facts)), None)
