"""What single families do to their special tokens (conversion/*.py of llama.cpp), told apart by content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dflash_convert.container.types import KV, u32
from dflash_convert.hparams import text_config
from dflash_convert.notes import Note
from dflash_convert.vocab.assemble import Asked
from dflash_convert.vocab.files import content, is_int
from dflash_convert.vocab.pre import Pre
from dflash_convert.vocab.special import KINDS, Specials
from dflash_convert.vocab.tokens import TokenTable
from dflash_convert.vocab.types import SPECIAL_KEY, TokenType

GLM_DENSE = {"eos": "<|endoftext|>", "eot": "<|user|>", "unk": "<|endoftext|>", "bos": "<|endoftext|>"}
GLM_MOE = {"bos": "[gMASK]", "eot": "<|user|>", "unk": "<|endoftext|>", "eom": "<|observation|>"}
SOLAR = {"eos": "<|endoftext|>", "eot": "<|endoftext|>", "unk": "<unk>", "bos": "<|startoftext|>"}
# texts that llama.cpp ends a generation at without being told (src/llama-vocab.cpp)
ENDS_ANYWAY = frozenset(
    [
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<｜end▁of▁sentence｜>",
    ]
)


def adjust_specials(request: Asked, pre: Pre, ids: Mapping[str, int], specials: Specials) -> list[KV]:
    """Adds the ids that a family's own converter adds; returns keys that come after the template."""
    rule = _rule(pre, ids)
    for kind, text in rule.items():
        if text in ids:
            specials.ids.setdefault(kind, ids[text])
    if pre.name == "laguna":
        return _end_of_turn(request.model_config.get("eos_token_id"), request.model_config.get("bos_token_id"))
    if pre.name in ("hunyuan", "hunyuan-dense"):
        return _hunyuan(request, ids)
    if str(request.model_config.get("model_type")).startswith("muse_glimmer") and "<|eot|>" in ids:
        return [u32(SPECIAL_KEY["eot"], ids["<|eot|>"])]
    return []


def _rule(pre: Pre, ids: Mapping[str, int]) -> Mapping[str, str]:
    if pre.name == "glm4" and "[gMASK]" in ids:
        return GLM_MOE if "<think>" in ids else GLM_DENSE  # GLM-4.5 and later think
    return SOLAR if pre.name == "solar-open" else {}


def _end_of_turn(eos: object, bos: object) -> list[KV]:
    """Laguna: the eos list is [eos = bos, end of turn]."""
    extra = [tid for tid in eos if is_int(tid) and tid != bos] if isinstance(eos, list) else []
    return [u32(SPECIAL_KEY["eot"], extra[0])] if extra else []


def _hunyuan(request: Asked, ids: Mapping[str, int]) -> list[KV]:
    """Hunyuan's config.json names the wrong bos and eos: its own tokens and eod_token_id are right."""
    keys = []
    config = {**request.model_config, **text_config(request.model_config)}
    if "<|bos|>" in ids and not request.files.has("tokenizer.json"):
        keys.append(u32(SPECIAL_KEY["bos"], ids["<|bos|>"]))
    if is_int(config.get("eod_token_id")):
        keys.append(u32(SPECIAL_KEY["eos"], config["eod_token_id"]))
    eos = request.generation.get("eos_token_id")
    if isinstance(eos, list) and len(eos) >= 2 and is_int(eos[0]):
        keys.append(u32(SPECIAL_KEY["eot"], eos[0]))
    return keys


def adjust_types(pre: Pre, table: TokenTable) -> None:
    """Laguna flags its end of turn as ordinary text; llama.cpp would print it."""
    if pre.name == "laguna" and "</assistant>" in table.texts:
        table.types[table.texts.index("</assistant>")] = TokenType.CONTROL


def resolve_leftovers(request: Asked, ids: Mapping[str, int], texts: Sequence[str], specials: Specials) -> None:
    """What the reference loses: names that are only in the vocabulary, and the further ids of an eos list."""
    for kind in KINDS:
        name = content(request.config.get(f"{kind}_token"))
        if name is not None and name in ids and kind in SPECIAL_KEY and kind not in specials.ids:
            specials.ids[kind] = ids[name]
            specials.notes.append(Note("derived", f"{kind} {ids[name]}: tokenizer_config.json names {name!r}"))
    listed: list[object] = []
    for config in (request.model_config, request.generation):
        value = config.get("eos_token_id")
        listed += value if isinstance(value, list) else []
    extra = [tid for tid in dict.fromkeys(t for t in listed if isinstance(t, int)) if 0 <= tid < len(texts)]
    if extra and "eos" not in specials.ids:
        specials.ids["eos"] = extra[0]
        specials.notes.append(Note("derived", f"eos {extra[0]}: the first of the eos_token_id list"))
    for tid in extra:
        free = next((kind for kind in ("eot", "eom") if kind not in specials.ids), None)
        if free and tid not in specials.ids.values() and texts[tid] not in ENDS_ANYWAY:
            specials.ids[free] = tid
            specials.notes.append(Note("derived", f"{free} {tid}: a further id of the eos_token_id list"))
