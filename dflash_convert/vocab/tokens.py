"""The token list: ids to texts and types, padded, checked for what would stop llama.cpp."""

from __future__ import annotations

from array import array as packed
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash_convert.container.types import KV, ValueType, array
from dflash_convert.errors import TokenizerError
from dflash_convert.notes import Note
from dflash_convert.vocab.files import content, is_int
from dflash_convert.vocab.types import TokenType

SPACE_MARK = "▁"  # the lower-eighth block that stands for a space
TOGETHER = 1 << 14  # merges that are joined at a time


@dataclass
class TokenTable:
    """Texts, types and (for some models) scores, one per id."""

    texts: list[str]
    types: packed[int]
    scores: packed[Any] | None = None  # typecode f, or i where the reference writes integers
    notes: list[Note] = field(default_factory=list)

    def entries(self) -> list[KV]:
        """tokens, scores when there are any, token_type."""
        keys = [array("tokenizer.ggml.tokens", ValueType.STRING, self.texts)]
        if self.scores is not None:
            kind = ValueType.INT32 if self.scores.typecode == "i" else ValueType.FLOAT32
            keys.append(array("tokenizer.ggml.scores", kind, self.scores))
        return [*keys, array("tokenizer.ggml.token_type", ValueType.INT32, self.types)]

    def make_unique(self) -> None:
        """llama.cpp aborts when two ids share a text: later ones become unused placeholders."""
        if len(set(self.texts)) == len(self.texts):
            return
        seen: dict[str, int] = {}
        for tid, text in enumerate(self.texts):
            first = seen.setdefault(text, tid)
            if first != tid:
                self.texts[tid] = f"[DUP{tid}]"
                self.types[tid] = TokenType.UNUSED
                self.notes.append(
                    Note("warning", f"token {tid} repeats the text {text!r} of token {first}; marked unused")
                )


def looks_special(text: str) -> bool:
    """Markers that some repositories forget to flag as special (the reference's list)."""
    return (
        text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
        or (text.startswith("<|") and text.endswith("|>"))
        or (text.startswith("<｜") and text.endswith("｜>"))
        or (text.startswith("<unused") and text.endswith(">"))
    )


def placeholders(size: int) -> TokenTable:
    """``size`` unused tokens named after their ids."""
    return TokenTable([f"[PAD{i}]" for i in range(size)], packed("i", [TokenType.UNUSED]) * size)


def place_normal(table: TokenTable, vocab: Mapping[str, int]) -> None:
    """Every token of ``vocab`` (text -> id) as an ordinary one."""
    texts, types, normal = table.texts, table.types, int(TokenType.NORMAL)
    for text, tid in vocab.items():
        texts[tid] = text
        types[tid] = normal


def check_vocab(vocab: object, where: str) -> dict[str, int]:
    """A text -> id object with sane ids, or a TokenizerError."""
    if not isinstance(vocab, dict) or not vocab:
        raise TokenizerError(f"{where}: model.vocab is missing or empty")
    if set(map(type, vocab.values())) != {int} or min(vocab.values()) < 0:
        text, tid = next((text, tid) for text, tid in vocab.items() if not is_int(tid) or tid < 0)
        raise TokenizerError(f"{where}: token {text!r} has the id {tid!r}; ids are integers from 0 on")
    return vocab


def check_size(highest: int, size: int, where: str) -> None:
    """The drafter's vocabulary must hold every id of the target's tokenizer."""
    if highest >= size:
        raise TokenizerError(
            f"{where}: token id {highest} does not fit the drafter's vocab_size {size}",
            tip="Is this the target that the drafter was trained for? Its config.json should have the same vocab_size.",
        )


def merge_lines(merges: object, where: str) -> list[str]:
    """Merges as ``left right``; pairs may hold spaces, which become the byte-level mark for a space.

    A list of pairs is turned into lines where it is: half a million pairs take 100 MB, and their lines 50 more.
    """
    if not isinstance(merges, list):
        raise TokenizerError(f"{where}: model.merges is missing or not a list")
    try:
        if not merges or isinstance(merges[0], str):
            usable = all(map(_is_line, merges))
        else:
            usable = set(map(type, merges)) <= {list, tuple} and set(map(len, merges)) == {2}
            for at in range(0, len(merges) if usable else 0, TOGETHER):
                merges[at : at + TOGETHER] = _joined(merges[at : at + TOGETHER])
    except (TypeError, ValueError, AttributeError):
        usable = False
    if not usable:
        raise TokenizerError(f"{where}: model.merges holds an entry that is neither a pair nor 'left right'")
    return merges


def _joined(pairs: Sequence[Sequence[str]]) -> list[str]:
    lines = list(map(" ".join, pairs))
    if "".join(lines).count(" ") == len(lines):
        return lines
    mark = chr(ord(" ") + 256)
    return [f"{a.replace(' ', mark)} {b.replace(' ', mark)}" for a, b in pairs]


def _is_line(merge: object) -> bool:
    return isinstance(merge, str) and merge.count(" ") == 1


def special_names(config: Mapping[str, Any]) -> list[str]:
    """Texts that tokenizer_config.json names as special, whichever of its spellings it uses."""
    kinds = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
    entries: list[object] = [config.get(f"{kind}_token") for kind in kinds]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        more = config.get(key)
        if isinstance(more, Mapping):
            entries += more.values()
        elif isinstance(more, Sequence) and not isinstance(more, str):
            entries += more
    return list(dict.fromkeys(text for entry in entries if (text := content(entry))))
