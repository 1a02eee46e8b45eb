"""The entry: pick the route by the files that are there and what is in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dflash_convert.errors import TokenizerError, UsageError
from dflash_convert.notes import Note
from dflash_convert.vocab import hfbpe, jsonroute, spm
from dflash_convert.vocab.adjust import resolve_leftovers
from dflash_convert.vocab.assemble import Asked, specials_of, trailing_entries, vocabulary
from dflash_convert.vocab.cache import remembered
from dflash_convert.vocab.files import EXPECTED, TokenizerFiles, collector_paused, content
from dflash_convert.vocab.pre import Pre
from dflash_convert.vocab.slowbpe import slow_document
from dflash_convert.vocab.tekken import load_tekken
from dflash_convert.vocab.tiktoken import load_tiktoken, looks_like_ranks
from dflash_convert.vocab.types import Vocabulary

LARGE = 1 << 15  # tokens from which the cache is used
MAX_SIZE = 1 << 21  # tokens; the largest vocabulary in the field has 262,208


def load_vocabulary(
    target: Path,
    *,
    vocab_size: int,
    pre: str | None = None,
    tokenizer_model: Path | None = None,
    plain: bool = False,
    eagle3: bool = False,
    fresh: bool = False,
) -> Vocabulary:
    """The vocabulary of the target in the directory ``target``.

    ``vocab_size`` is the drafter's: padding runs to it.  ``pre`` overrides the pre-tokenizer,
    ``tokenizer_model`` stands in for a missing tokenizer.model.  ``plain`` gives exactly the reference's
    keys; without it, what the reference loses is added.  ``eagle3`` adds what the reference's Llama route
    adds.  ``fresh`` passes over the cache (vocab/cache.py).  Raises TokenizerError for files that cannot be
    used, UsageError for an unknown ``pre``.
    """
    check_size(vocab_size)
    files = TokenizerFiles(target)
    request = Asked(files, vocab_size, pre, tokenizer_model, plain, eagle3)
    if fresh or vocab_size < LARGE or tokenizer_model is not None:
        return _load(request)
    return remembered(files, (vocab_size, pre, plain, eagle3), lambda: _load(request))


def _load(request: Asked) -> Vocabulary:
    with collector_paused():
        return _by_files(request)


def _by_files(request: Asked) -> Vocabulary:
    files = request.files
    request.config = files.optional_json("tokenizer_config.json")
    request.model_config = files.optional_json("config.json")
    if files.has("tokenizer.json"):
        return _from_json(request)
    model = _model_file(request)
    if model is not None:
        return _from_model(request, model)
    if files.has("tekken.json"):
        return load_tekken(request)
    for name in ["tiktoken.model", *(path.name for path in files.glob("*.tiktoken"))]:
        if files.has(name):
            return load_tiktoken(request, name, files.read(name))
    if files.has("vocab.json") and files.has("merges.txt"):
        document = slow_document(request)
        return jsonroute.load_byte_level(request, document, request.where("vocab.json"), from_json=False)
    raise TokenizerError(
        f"{files.directory}: no tokenizer files; found {files.names()}, expected one of {EXPECTED}",
        tip="Fetch the target's tokenizer files into this directory, or name the target's Hub repository instead; "
        "a SentencePiece model from elsewhere goes with --tokenizer-model FILE or REPOSITORY.",
    )


def check_size(vocab_size: int) -> None:
    """TokenizerError for a size that no vocabulary has, before anything is made of it."""
    if not 0 < vocab_size <= MAX_SIZE:
        raise TokenizerError(f"the drafter's vocab_size is {vocab_size}; it must be from 1 to {MAX_SIZE}")


def _from_json(request: Asked) -> Vocabulary:
    where = request.where("tokenizer.json")
    document = request.files.json("tokenizer.json")
    jsonroute.check_document(document, where)
    kind = jsonroute.describe_kind(document)
    if kind == "byte-level":
        if request.tokenizer_model is not None:
            raise UsageError(f"--tokenizer-model does not apply: {where} is a byte-level BPE tokenizer")
        return jsonroute.load_byte_level(request, document, where)
    model = _model_file(request)
    if kind == "gemma" and (model is None or hfbpe.has_visible_tokens(document)):
        if request.tokenizer_model is not None:
            request.notes.append(Note("info", f"{request.tokenizer_model} is not needed: tokenizer.json holds it all"))
        return jsonroute.load_gemma(request, document, where)
    if model is not None and kind in ("gemma", "llama", "unigram"):
        return _from_model(request, model, document)
    if kind == "llama":
        return jsonroute.load_llama_json(request, document, where)
    if kind == "unigram":
        return jsonroute.load_unigram(request, document, where)
    raise TokenizerError(f"{where}: a {kind} tokenizer; llama.cpp's drafters need BPE or SentencePiece")


def _model_file(request: Asked) -> Path | None:
    """The SentencePiece model: the one given, else the target's own."""
    if request.tokenizer_model is not None:
        return request.tokenizer_model
    return spm.model_file(request.files, request.notes)


def _from_model(request: Asked, path: Path, document: dict[str, Any] | None = None) -> Vocabulary:
    inside = path.parent == request.files.directory
    data = (request.files if inside else TokenizerFiles(path.parent)).read(path.name)
    if not spm.is_sentencepiece(data):
        if inside and document is None and looks_like_ranks(data):
            return load_tiktoken(request, path.name, data)
        raise TokenizerError(f"{path}: not a SentencePiece model", tip="Fetch the file again.")
    pieces = spm.read_pieces(data, path)
    if request.tokenizer_model is not None:
        check_stand_in(request, pieces, document)
    elif document is not None:
        _compare(request, pieces, document)
    table = spm.sentencepiece_tokens(pieces, request.files, request.config, request.size)
    listed = {e["content"]: e["id"] for e in reversed((document or {}).get("added_tokens") or [])}
    specials = specials_of(request, request.size, listed, document, strict=not request.plain)
    after = trailing_entries(request, pieces.space_prefix)
    if not request.plain:
        resolve_leftovers(request, {text: i for i, text in enumerate(table.texts)}, table.texts, specials)
        specials.fill(pieces.special, request.size, path.name)
        if pieces.unigram:
            table.notes.append(
                Note("warning", "unigram tokenizer: llama.cpp's llama model merges greedily and may split differently")
            )
    return vocabulary(request, "llama", Pre("default", "SentencePiece has none"), table, specials, after=after)


def check_stand_in(request: Asked, pieces: spm.Pieces, document: dict[str, Any] | None) -> None:
    """A tokenizer.model from elsewhere must have the target's pieces and fill its vocabulary, or it is refused."""
    path, count = request.tokenizer_model, len(pieces.texts)
    if count > request.size or count < request.size * 0.95:
        raise TokenizerError(
            f"{path}: {count} pieces, but the vocabulary has {request.size} tokens; it is another tokenizer's",
            tip="Name the tokenizer.model of a model with the same vocabulary.",
        )
    decoder = request.config.get("added_tokens_decoder")
    pairs = decoder.items() if isinstance(decoder, dict) else ()
    known = {int(key): content(entry) for key, entry in pairs if key.isdecimal()}
    if document is not None and isinstance(document["model"].get("vocab"), dict):
        known |= {tid: text for text, tid in document["model"]["vocab"].items()}
    for tid, text in known.items():
        if tid < count and text != pieces.texts[tid]:
            raise TokenizerError(
                f"{path}: piece {tid} is {pieces.texts[tid]!r}, but the target's token {tid} is {text!r}",
                tip="Name the tokenizer.model of a model with the same vocabulary.",
            )


def _compare(request: Asked, pieces: spm.Pieces, document: dict[str, Any]) -> None:
    """tokenizer.model is used; tokenizer.json is only checked against it."""
    vocab = document["model"].get("vocab")
    if not isinstance(vocab, dict):
        return
    for text, tid in vocab.items():
        if isinstance(tid, int) and tid < len(pieces.texts) and pieces.texts[tid] != text:
            both = f"{pieces.texts[tid]!r} in tokenizer.model, which is used, and {text!r} in tokenizer.json"
            request.notes.append(Note("warning", f"token {tid} is {both}"))
            return
    if len(vocab) != len(pieces.texts):
        note = f"tokenizer.model holds {len(pieces.texts)} pieces, tokenizer.json {len(vocab)}; the former is used"
        request.notes.append(Note("warning", note))
