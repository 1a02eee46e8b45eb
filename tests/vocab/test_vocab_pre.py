"""Finding the pre-tokenizer: by the probe hash, by the split expressions, by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from vocab_tools import document, notes, variant

from dflash_convert.errors import TokenizerError, UsageError
from dflash_convert.vocab import load_vocabulary
from dflash_convert.vocab.pre import identify_pre, known_hashes
from dflash_convert.vocab.probe import hash_ids, probe_hashes, reduced_tokenizer
from dflash_convert.vocab.structure import known_pre, match_structure, split_signature, structure_of

REAL = ["qwen3", "qwen3_6", "llama3_1", "gptoss", "deepseek_v4"]


@pytest.fixture
def base(fixtures: Path) -> Path:
    return fixtures / "tokenizers" / "bytelevel"


def test_the_tables() -> None:
    text, hashes = known_hashes()
    assert text.startswith("\n \n\n \n\n\n \t")
    assert len(hashes) == 96, "98 entries of the reference, two of them repeated"
    assert hashes["d4540891389ea895b53b399da6ac824becc30f2fba0e9ddbb98f92e55ca0e97c"] == "qwen2"
    assert set(hashes.values()) - {"bert-bge", "bert-bge-large", "jina-v2-en"} <= set(known_pre())


@pytest.mark.shared
@pytest.mark.parametrize("name", REAL)
def test_the_reduced_tokenizer_gives_the_ids_of_the_whole(name: str, shared: Path) -> None:
    from tokenizers import Tokenizer

    path = shared / "tokenizers" / name / "tokenizer.json"
    text, _ = known_hashes()
    whole = Tokenizer.from_file(str(path)).encode(text).ids
    tokenizer = json.loads(path.read_bytes())
    assert reduced_tokenizer(tokenizer, text)[0].encode(text).ids == whole
    assert next(probe_hashes(tokenizer, text)) == (hash_ids(whole), "")


@pytest.mark.shared
@pytest.mark.parametrize("name", REAL)
def test_the_structure_agrees_with_the_hash(name: str, shared: Path) -> None:
    """Names with one behaviour count as one: joyai-llm splits as deepseek-v3 does."""
    tokenizer = json.loads((shared / "tokenizers" / name / "tokenizer.json").read_bytes())
    found = match_structure(
        split_signature(tokenizer["pre_tokenizer"]), ignore_merges=bool(tokenizer["model"].get("ignore_merges"))
    )
    by_hash = identify_pre(tokenizer, name).name
    assert found == {"joyai-llm": "deepseek-v3"}.get(by_hash, by_hash)


@pytest.mark.shared
def test_an_added_token_in_the_probe_text(shared: Path) -> None:
    """A fine-tune whose new token occurs in the probe text has another hash; without added tokens it is known."""
    tokenizer = json.loads((shared / "tokenizers" / "qwen3" / "tokenizer.json").read_bytes())
    tokenizer["added_tokens"].append({"id": 151669, "content": "apple", "special": False, "normalized": False})
    for flag in ("single_word", "lstrip", "rstrip"):
        tokenizer["added_tokens"][-1][flag] = False
    found = identify_pre(tokenizer, "x")
    assert (found.name, found.source) == ("qwen2", "probe hash without the added tokens")


@pytest.mark.shared
def test_a_leading_bos_does_not_hide_the_hash(shared: Path) -> None:
    tokenizer = json.loads((shared / "tokenizers" / "llama3_1" / "tokenizer.json").read_bytes())
    assert identify_pre(tokenizer, "x").source == "probe hash"
    template = tokenizer["post_processor"]["processors"][1]
    other = json.dumps(template).replace("<|begin_of_text|>", "<|end_of_text|>").replace("128000", "128001")
    tokenizer["post_processor"] = json.loads(other)
    found = identify_pre(tokenizer, "x")
    assert (found.name, found.source) == ("llama-bpe", "probe hash with a leading special token")
    tokenizer["post_processor"] = None
    assert identify_pre(tokenizer, "x").name == "smaug-bpe", "the reference's table knows these ids under that name"


def test_a_small_vocabulary_is_found_by_its_expressions(base: Path) -> None:
    vocabulary = load_vocabulary(base, vocab_size=340)
    assert vocabulary.pre_source == "split expressions"
    assert notes(vocabulary, "derived") == [
        "pre-tokenizer qwen2: found by the split expressions (the probe hash is unknown)"
    ]


def split(expression: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    "name", ["qwen2", "qwen35", "deepseek-v3", "tekken", "gpt-4o", "kimi-k2", "bailingmoe2", "laguna"]
)
def test_expressions_of_targets_in_the_field(name: str) -> None:
    expressions = structure_of(name)
    assert expressions is not None
    level = {"type": "ByteLevel", "use_regex": False}
    steps = {"type": "Sequence", "pretokenizers": [*map(split, expressions), level]}
    assert match_structure(split_signature(steps), ignore_merges=False) == name


def test_spellings_of_one_expression() -> None:
    llama3 = structure_of("llama-bpe")
    assert llama3 is not None
    spelled = llama3[0].replace(
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)", "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    )
    raw = spelled.replace(r"\r", "\r").replace(r"\n", "\n")
    for expression in (spelled, raw):
        assert match_structure(split_signature(split(expression)), ignore_merges=True) == "llama-bpe"
    assert match_structure(split_signature(split(raw)), ignore_merges=False) == "smaug-bpe"


def test_steps_other_than_split() -> None:
    byte_level, digits = {"type": "ByteLevel"}, {"type": "Digits", "individual_digits": True}
    assert match_structure(split_signature(byte_level), ignore_merges=False) == "gpt-2"
    both = {"type": "Sequence", "pretokenizers": [digits, byte_level]}
    assert match_structure(split_signature(both), ignore_merges=False) == "starcoder"
    assert split_signature(None) == ()
    assert split_signature({"type": "Metaspace"}) == ("Metaspace",)


def test_an_unknown_expression_is_an_error_that_shows_it(base: Path, tmp_path: Path) -> None:
    step = document(base)["pre_tokenizer"]["pretokenizers"]
    change = {"type": "Sequence", "pretokenizers": [split(r"\p{N}{1,4}|\p{L}+"), step[1]]}
    target = variant(base, tmp_path, tokenizer={"pre_tokenizer": change})
    with pytest.raises(TokenizerError) as caught:
        load_vocabulary(target, vocab_size=340)
    assert str(caught.value).endswith(r"unknown pre-tokenizer, its split expressions are: \p{N}{1,4}|\p{L}+")
    assert caught.value.tip is not None
    assert caught.value.tip.startswith("The closest one that llama.cpp knows is ")
    assert load_vocabulary(target, vocab_size=340, pre="qwen35").pre == "qwen35"


def test_a_tokenizer_json_that_the_library_cannot_read(base: Path, tmp_path: Path) -> None:
    """A newer file format: the split expressions still decide."""
    target = variant(base, tmp_path, tokenizer={"normalizer": {"type": "InventedLater"}})
    vocabulary = load_vocabulary(target, vocab_size=340)
    assert (vocabulary.pre, vocabulary.pre_source) == ("qwen2", "split expressions")
    assert any("the probe hash could not be computed" in text for text in notes(vocabulary))


def test_a_name_that_llama_cpp_does_not_know(base: Path) -> None:
    with pytest.raises(UsageError, match=r"--pre qwen22: llama\.cpp knows no pre-tokenizer of that name") as caught:
        load_vocabulary(base, vocab_size=340, pre="qwen22")
    assert caught.value.tip is not None
    assert "qwen2" in caught.value.tip


def test_no_bos_is_said_where_llama_cpp_would_add_one(base: Path, tmp_path: Path) -> None:
    target = variant(base, tmp_path, tokenizer={"post_processor": None}, tokenizer_config={"add_bos_token": None})
    assert not [k for k in load_vocabulary(target, vocab_size=340, pre="qwen2").keys(None) if "add_bos" in k.name]
    (key,) = [k for k in load_vocabulary(target, vocab_size=340, pre="llama-bpe").keys(None) if "add_bos" in k.name]
    assert key.value is False
    plain = load_vocabulary(target, vocab_size=340, pre="llama-bpe", plain=True)
    assert not [k for k in plain.keys(None) if "add_bos" in k.name]
