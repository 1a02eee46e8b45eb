"""GPT-2's older layout: vocab.json and merges.txt without a tokenizer.json."""

from __future__ import annotations

from typing import Any

from dflash_convert.errors import TokenizerError
from dflash_convert.notes import Note
from dflash_convert.vocab.assemble import Asked
from dflash_convert.vocab.structure import structure_of

# transformers' classes that read this layout -> a name with their split expressions
SPLIT_OF_CLASS = {
    "Qwen2Tokenizer": "qwen2",
    "GPT2Tokenizer": "gpt-2",
    "GPT2TokenizerFast": "gpt-2",
    "Qwen2TokenizerFast": "qwen2",
}


def slow_document(request: Asked) -> dict[str, Any]:
    """The tokenizer that vocab.json, merges.txt and added_tokens.json describe, in tokenizer.json's terms."""
    lines = request.files.text("merges.txt").split("\n")
    if lines and lines[0].startswith("#version"):
        lines = lines[1:]
    merges = [line.strip() for line in lines if line.strip()]
    bad = next((n for n, line in enumerate(merges, 1) if line.count(" ") != 1), None)
    if bad is not None:
        raise TokenizerError(
            f"{request.where('merges.txt')}: merge {bad} is not 'left right': {merges[bad - 1]!r}"[:300]
        )
    added = [
        {"content": text, "id": tid, "special": False, "normalized": False}
        for text, tid in request.files.optional_json("added_tokens.json").items()
        if text not in _decoded(request)
    ]
    return {
        "model": {"type": "BPE", "vocab": request.files.json("vocab.json"), "merges": merges, "unk_token": None},
        "added_tokens": added,
        **_splitter(request),
    }


def _decoded(request: Asked) -> set[str]:
    """Texts in added_tokens_decoder, whose entries say more than added_tokens.json does."""
    decoder = request.config.get("added_tokens_decoder")
    entries = decoder.values() if isinstance(decoder, dict) else ()
    return {entry["content"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("content"), str)}


def _splitter(request: Asked) -> dict[str, Any]:
    kind = request.config.get("tokenizer_class")
    name = SPLIT_OF_CLASS.get(str(kind))
    if name is None:
        if request.pre is None:
            raise TokenizerError(
                f"{request.files.directory}: vocab.json and merges.txt do not say how {kind or 'it'} splits text",
                tip="Add the target's tokenizer.json, or name the pre-tokenizer with --pre NAME.",
            )
        return {"pre_tokenizer": None}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": name == "gpt-2"}
    request.notes.append(Note("derived", f"split expression: the one of {kind} (there is no tokenizer.json)"))
    if name == "gpt-2":
        return {"pre_tokenizer": level}
    pattern = {"Regex": (structure_of(name) or ("",))[0]}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    return {"normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]}}
