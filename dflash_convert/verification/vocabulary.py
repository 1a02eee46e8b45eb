"""Does llama.cpp split text with the written vocabulary as the target's own tokenizer does?

The vocabulary of a GGUF is put into a model of a few kilobytes of zeros, which the engine loads and tokenizes
with; the ids are compared with those that ``tokenizers`` or ``sentencepiece`` give for the source files.
"""

from __future__ import annotations

import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_convert.container.reader import open_gguf
from dflash_convert.container.types import (
    KV,
    TensorType,
    array_length,
    f32,
    string,
    tensor_nbytes,
    u32,
)
from dflash_convert.container.writer import Entry, GgufOutput, layout
from dflash_convert.engine.session import start
from dflash_convert.engine.trace import to_split
from dflash_convert.errors import TokenizerError
from dflash_convert.vocab.files import TokenizerFiles
from dflash_convert.vocab.spm import model_file
from dflash_convert.vocab.tokens import SPACE_MARK

if TYPE_CHECKING:
    from dflash_convert.engine.trace import EngineInfo

WIDTH = 32
Tokenize = Callable[[str], Sequence[int]]
# pre-tokenizers whose expression in llama.cpp leaves out \p{M}: a word breaks at each combining mark
BREAKS_AT_MARKS = frozenset(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2", "tekken"))

# code, quotes, digits, runs of white space, marks, scripts without spaces, emoji: where splitting rules differ
PROBES = """async function load(url) { return (await fetch(url)).json(); }
\tif (n <= 0x1F && !done) {\t\treturn -1.5e-3;\t}
it's we'll THEY'VE 12 345 6789 2026-01-31
   spaces   in    runs
Über naïve façade éä Ω≈ç√
Съешь ещё этих булок, да выпей чаю
春眠不覺曉、処処聞啼鳥。 가나다라 12개
ครับ नमस्ते שלום مرحبا
🙂👍🏽👩‍💻 ½ ™ …
<|im_start|> </s> <think> [INST]
"""


@dataclass(frozen=True)
class Difference:
    """One text that the two split differently, with the ids of both.

    ``limit`` names a known limit of llama.cpp when that explains it: the vocabulary is right then.
    """

    text: str
    engine: tuple[int, ...]
    library: tuple[int, ...]
    limit: str | None = None

    def __str__(self) -> str:
        at = next((i for i, (a, b) in enumerate(zip(self.engine, self.library, strict=False)) if a != b), None)
        at = min(len(self.engine), len(self.library)) if at is None else at
        return f"{self.text!r}: from token {at} on {self.engine[at : at + 4]} instead of {self.library[at : at + 4]}"


def probe_texts(lines: str) -> list[str]:
    """Each line, each with its line end, all of them joined, and the empty text."""
    single = lines.split("\n")
    single = single[:-1] if single[-1] == "" else single
    return [*single, *(line + "\n" for line in single), lines, ""]


@dataclass(frozen=True)
class Library:
    """The target's tokenizer as its own library runs it.

    ``text`` gives the ids of plain text (no special token is added or recognized), ``prompt`` those of a
    prompt; ``prepare`` normalizes a text as the library does before it splits (llama.cpp never does).
    """

    text: Tokenize
    prompt: Tokenize
    prepare: Callable[[str], str]


def compare(engine: Tokenize, library: Tokenize, texts: Iterable[str]) -> list[Difference]:
    """The texts on which the two disagree."""
    found = []
    for text in texts:
        ours, theirs = tuple(engine(text)), tuple(library(text))
        if ours != theirs:
            found.append(Difference(text, ours, theirs))
    return found


def library_of(target: Path, *, add_bos: bool, bos: int | None) -> Library:
    """From tokenizer.json, which has its own rule for bos, else from tokenizer.model, which has none."""
    file = tokenizer_file(target)
    if file.suffix == ".json":
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(file))
        composes = tokenizer.normalizer is not None and b'"NFC"' in tokenizer.normalizer.__getstate__()

        def encode(text: str, *, plain: bool) -> list[int]:
            tokenizer.encode_special_tokens = plain
            return list(tokenizer.encode(text, add_special_tokens=not plain).ids)

        return Library(
            lambda text: encode(text, plain=True),
            lambda text: encode(text, plain=False),
            lambda text: unicodedata.normalize("NFC", text) if composes else text,
        )
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromFile(str(file))
    head = [bos] if add_bos and bos is not None else []
    return Library(
        lambda text: list(processor.EncodeAsIds(text)),
        lambda text: [*head, *processor.EncodeAsIds(text)],
        lambda text: str(processor.Normalize(text)).replace(SPACE_MARK, " ").removeprefix(" "),
    )


def tokenizer_file(target: Path) -> Path:
    """What the target's own library reads; TokenizerError where there is none."""
    file = target / "tokenizer.json"
    found = file if file.is_file() else model_file(TokenizerFiles(target))
    if found is None:
        raise TokenizerError(f"{target}: neither tokenizer.json nor a SentencePiece model, so no library can tokenize")
    return found


def vocabulary_keys(gguf: Path) -> list[KV]:
    """The keys of a file's vocabulary; TokenizerError where it has none."""
    keys = [kv for name, kv in open_gguf(gguf).keys.items() if name.startswith("tokenizer.ggml.")]
    if not any(kv.name == "tokenizer.ggml.tokens" and array_length(kv.value) for kv in keys):
        raise TokenizerError(f"{gguf}: no vocabulary in this file")
    return keys


def round_trip(
    gguf: Path, target: Path, texts: Sequence[str], engine: EngineInfo, scratch: Path | None = None
) -> list[Difference]:
    """Compares the vocabulary in ``gguf`` with the tokenizer in ``target`` on ``texts``; [] when all ids agree.

    Every text is split as plain text, the first also as a prompt (does bos come where it should?).
    ``scratch`` is a directory for the engine's file. Raises EngineError when the engine cannot load the vocabulary.
    """
    keys = vocabulary_keys(gguf)
    value = {kv.name: kv.value for kv in keys}
    add_bos = bool(value.get("tokenizer.ggml.add_bos_token", value.get("tokenizer.ggml.model") == "llama"))
    bos = value.get("tokenizer.ggml.bos_token_id")
    libraries: list[Library] = []
    with tempfile.TemporaryDirectory(prefix="dflash-vocab-", dir=scratch) as folder:
        model = Path(folder) / "vocabulary.gguf"
        write_carrier(model, keys)
        load = partial(library_of, target, add_bos=add_bos, bos=bos)  # which holds the interpreter for half a second
        with start(engine, to_split(model), lambda: libraries.append(load())) as session:
            (library,) = libraries
            found = compare(lambda text: session.tokenize(library.prepare(text), special=False), library.text, texts)
            found += compare(lambda text: session.tokenize(library.prepare(text)), library.prompt, texts[:1])
    pre = value.get("tokenizer.ggml.pre")
    return [replace(one, limit=known_limit(pre, one.text)) for one in found]


def known_limit(pre: str | None, text: str) -> str | None:
    """Why llama.cpp splits ``text`` otherwise although the vocabulary is right, or None."""
    if pre in BREAKS_AT_MARKS and any(unicodedata.category(letter).startswith("M") for letter in text):
        return f"llama.cpp's {pre} splitting breaks words at combining marks"
    return None


def write_carrier(path: Path, keys: Sequence[KV]) -> None:
    """A one-layer Llama of zeros, ``WIDTH`` wide, that carries the vocabulary ``keys``."""
    rows = len(next(kv.value for kv in keys if kv.name == "tokenizer.ggml.tokens"))
    head = [
        string("general.architecture", "llama"),
        u32("llama.block_count", 1),
        u32("llama.context_length", 256),
        u32("llama.embedding_length", WIDTH),
        u32("llama.feed_forward_length", WIDTH),
        u32("llama.attention.head_count", 1),
        f32("llama.attention.layer_norm_rms_epsilon", 1e-6),
        u32("llama.rope.dimension_count", WIDTH),
    ]
    norms = ["output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"]
    parts = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    entries = [
        Entry("token_embd.weight", (rows, WIDTH), TensorType.Q8_0),
        *(Entry(name, (WIDTH,), TensorType.F32) for name in norms),
        *(Entry(f"blk.0.{part}.weight", (WIDTH, WIDTH), TensorType.F32) for part in parts),
    ]
    plan = layout([*head, *keys], entries)
    with GgufOutput(path, entries, plan) as out:
        for entry in entries:
            out.write_at(out.offset(entry.name), bytes(tensor_nbytes(entry.type, entry.shape)))
        out.commit()
