"""tiktoken-style repositories (Qwen ``*.tiktoken``, Kimi ``tiktoken.model``, Hunyuan ``hy.tiktoken``).

Their tokenizer is Python code in the repository, which is never run: the ranks are data, the split expression is
read from the code's text, and the special tokens follow rules that are published facts of each family.
"""

from __future__ import annotations

import ast
import base64
import binascii
from collections.abc import Mapping
from typing import Any

from dflash_convert.errors import TokenizerError
from dflash_convert.notes import Note
from dflash_convert.vocab.adjust import adjust_specials, resolve_leftovers
from dflash_convert.vocab.assemble import Asked, say_no_bos, specials_of, vocabulary
from dflash_convert.vocab.bytelevel import added_tokens, to_letters
from dflash_convert.vocab.pre import given_pre, identify_pre
from dflash_convert.vocab.structure import structure_of
from dflash_convert.vocab.tokens import check_size, placeholders
from dflash_convert.vocab.types import TokenType, Vocabulary

MAX_TOKEN = 4096  # bytes of one token
PATTERN_NAMES = ("PAT_STR", "pat_str")
QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205))]
HUNYUAN = ["<|endoftext|>", "<|startoftext|>", "<|bos|>", "<|eos|>", "<|pad|>", *(f"<|extra_{i}|>" for i in range(205))]
KIMI_RESERVED = 256


def read_ranks(data: bytes, where: str) -> dict[bytes, int]:
    """Lines of ``base64 rank``; ranks count from 0, a repeated token keeps its first rank."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            text, rank = line.split()
            token = base64.b64decode(text, validate=True)
            value = int(rank)
        except (ValueError, binascii.Error):
            raise TokenizerError(f"{where}: line {number} is not 'base64 rank'") from None
        if not token or len(token) > MAX_TOKEN or value < 0:
            raise TokenizerError(f"{where}: line {number} holds an empty or absurdly long token, or a negative rank")
        ranks.setdefault(token, value)
    if not ranks:
        raise TokenizerError(f"{where}: no tokens")
    return ranks


def looks_like_ranks(data: bytes) -> bool:
    """The first line is ``base64 number``."""
    parts = data[: MAX_TOKEN * 2].split(b"\n", 1)[0].split()
    return len(parts) == 2 and parts[1].isdigit()


def merge_parts(ranks: Mapping[bytes, int], token: bytes, limit: int) -> list[bytes]:
    """What ``token`` falls into when only merges below the rank ``limit`` are applied, lowest first."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        best, at = limit, -1
        for i in range(len(parts) - 1):
            rank = ranks.get(parts[i] + parts[i + 1], limit)
            if rank < best:
                best, at = rank, i
        if at < 0:
            break
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def merges_of(ranks: Mapping[bytes, int]) -> tuple[list[str], int]:
    """Merges in rank order as ``left right`` letters, and how many tokens no merge leads to."""
    lines, lost = [], 0
    for token, rank in ranks.items():
        if len(token) == 1:
            continue
        parts = merge_parts(ranks, token, rank)
        if len(parts) == 2:
            lines.append(f"{to_letters(parts[0])} {to_letters(parts[1])}")
        else:
            lost += 1
    return lines, lost


def load_tiktoken(request: Asked, name: str, data: bytes) -> Vocabulary:
    """llama.cpp's ``gpt2`` model from the ranks file ``name``."""
    where = request.where(name)
    ranks = read_ranks(data, where)
    lines, lost = merges_of(ranks)
    special = special_tokens(request, name, len(ranks))
    check_size(max([*ranks.values(), *special.values()]), request.size, where)
    table = placeholders(request.size)
    for token, rank in ranks.items():
        table.texts[rank], table.types[rank] = to_letters(token), TokenType.NORMAL
    for text, tid in special.items():
        if table.types[tid] == TokenType.NORMAL:
            raise TokenizerError(f"{where}: token id {tid} is both a ranked token and {text!r}")
        table.texts[tid], table.types[tid] = text, TokenType.CONTROL
    table.make_unique()
    if lost:
        table.notes.append(Note("warning", f"{name}: {lost} tokens cannot be reached by any merge"))
    document = as_document(table.texts, ranks, lines, _pattern(request, name))
    pre = given_pre(request.pre) if request.pre else identify_pre(document, where)
    specials = specials_of(request, request.size, {}, None)
    ids = {**special, **{text: tid for tid, text in enumerate(table.texts) if table.types[tid] == TokenType.CONTROL}}
    if name.startswith("qwen"):
        end = special["<|endoftext|>"]
        if not specials.ids:
            specials.ids.update(bos=end, eos=end)
        specials.ids.setdefault("unk", end)
    after = adjust_specials(request, pre, ids, specials)
    if not request.plain:
        resolve_leftovers(request, ids, table.texts, specials)
    say_no_bos(request, pre, specials)
    return vocabulary(request, "gpt2", pre, table, specials, merges=lines, after=after)


def special_tokens(request: Asked, name: str, first: int) -> dict[str, int]:
    """Text -> id of the tokens beyond the ranks; those that tokenizer_config.json names keep their names."""
    named = {token.id: token.text for token in added_tokens({}, request.config, name)[0] if token.id >= first}
    if name.startswith(("qwen", "hy")):
        fixed = QWEN if name.startswith("qwen") else HUNYUAN
        listed = dict(enumerate(fixed, first))
    elif name == "tiktoken.model":
        listed = {i: f"<|reserved_token_{i}|>" for i in range(first, first + KIMI_RESERVED)}
    else:
        listed = {}
    listed = {tid: text for tid, text in listed.items() if tid < request.size}
    return {text: tid for tid, text in {**listed, **named}.items()}


def as_document(texts: list[str], ranks: Mapping[bytes, int], merges: list[str], pattern: str) -> dict[str, Any]:
    """The same tokenizer as a tokenizer.json would describe it."""
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    vocab = {texts[rank]: rank for rank in ranks.values()}
    return {
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, "unk_token": None},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "added_tokens": [],
    }


def _pattern(request: Asked, name: str) -> str:
    """The split expression: from the repository's Python text, else the one its family is known for."""
    for path in request.files.glob("tokenization_*.py"):
        pattern = pattern_in(request.files.text(path.name))
        if pattern is not None:
            return pattern
    family = "kimi-k2" if name == "tiktoken.model" else "qwen2" if name.startswith(("qwen", "hy")) else None
    known = structure_of(family) if family else None
    if known is None:
        if request.pre:
            return r"\s+"
        raise TokenizerError(
            f"{request.where(name)}: no tokenization_*.py beside it that gives the split expression",
            tip="Fetch the repository's tokenization_*.py (it is only read, never run), or name it with --pre NAME.",
        )
    request.notes.append(Note("derived", f"split expression of {name}: the one its family is known for"))
    return known[0]


def pattern_in(source: str) -> str | None:
    """The value assigned to PAT_STR or pat_str: string literals, their sum, or ``"|".join([...])``; nothing is run."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id in PATTERN_NAMES for t in node.targets
        ):
            return _literal(node.value)
    return None


def _literal(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _joined("", [_literal(node.left), _literal(node.right)])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "join":
        glue = _literal(node.func.value)
        items = node.args[0] if len(node.args) == 1 else None
        if glue is not None and isinstance(items, (ast.List, ast.Tuple)):
            return _joined(glue, [_literal(item) for item in items.elts])
    return None


def _joined(glue: str, parts: list[str | None]) -> str | None:
    texts = [part for part in parts if part is not None]
    return glue.join(texts) if len(texts) == len(parts) else None
