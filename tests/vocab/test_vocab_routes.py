"""Each layout of tokenizer files, with the values its route must give."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from vocab_tools import document, notes, values, variant

from dflash_convert.errors import TokenizerError, UsageError
from dflash_convert.vocab import load_vocabulary
from dflash_convert.vocab.bytelevel import to_letters
from dflash_convert.vocab.tiktoken import merges_of, pattern_in, read_ranks


@pytest.fixture
def small(fixtures: Path) -> Path:
    return fixtures / "tokenizers"


def test_fixtures_are_what_the_generator_writes(small: Path, tmp_path: Path) -> None:
    make = runpy.run_path(str(small / "make.py"))
    make["main"](tmp_path)
    own = ("llama-json", "gemma")  # made from a trained SentencePiece model, whose floats differ between builds
    for path in sorted(p for p in tmp_path.rglob("*.json") if p.parent.name not in own):
        assert path.read_bytes() == (small / path.relative_to(tmp_path)).read_bytes(), path.name


def test_byte_level(small: Path) -> None:
    vocabulary = load_vocabulary(small / "bytelevel", vocab_size=340)
    got = values(vocabulary, 330)
    assert list(got) == [
        *("model", "pre", "tokens", "token_type", "merges", "eos_token_id", "padding_token_id"),
        *("add_bos_token", "add_eos_token", "mask_token_id"),
    ]
    assert (got["model"], got["pre"], vocabulary.pre_source) == ("gpt2", "qwen2", "split expressions")
    assert got["tokens"][318:327] == [
        *(got["tokens"][318:320]),
        *("<|endoftext|>", "<|im_end|>", "<think>", "<|looks_special|>", "[PAD324]", "[PAD325]", "[PAD326]"),
    ]
    assert got["token_type"][319:325] == [1, 3, 3, 4, 3, 5]
    assert len(got["tokens"]) == len(got["token_type"]) == vocabulary.size == 340
    assert got["merges"] == [" ".join(pair) for pair in document(small / "bytelevel")["model"]["merges"]]
    assert vocabulary.special == {"eos": 321, "pad": 320}
    assert (got["eos_token_id"], got["padding_token_id"], got["mask_token_id"]) == (321, 320, 330)
    assert got["add_bos_token"] is False


def test_mask_id_of_the_drafter_wins_in_place(small: Path) -> None:
    vocabulary = load_vocabulary(small / "gemma", vocab_size=385)
    names = list(values(vocabulary, 7))
    assert values(vocabulary, 7)["mask_token_id"] == 7
    assert values(vocabulary)["mask_token_id"] == 4
    assert names.index("mask_token_id") < names.index("add_bos_token"), "where the target's own stood"


def test_gemma(small: Path) -> None:
    vocabulary = load_vocabulary(small / "gemma", vocab_size=390)
    got = values(vocabulary)
    assert vocabulary.model == "gemma4"
    assert vocabulary.pre is None
    assert "pre" not in got
    texts = dict(zip(got["tokens"], got["token_type"], strict=True))
    assert [texts[t] for t in ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")] == [3, 3, 3, 3, 3]
    assert (texts["<|channel>"], texts["<channel|>"], texts["<|turn>"]) == (4, 4, 1)
    assert (texts["<0x0A>"], texts["▁"]) == (6, 1)
    assert set(got["scores"]) == {-1000.0}
    assert got["tokens"][385:] == [f"[PAD{i}]" for i in range(385, 390)], "padded to the drafter's rows"
    assert got["token_type"][385:] == [5] * 5
    assert len(values(load_vocabulary(small / "gemma", vocab_size=390, plain=True))["tokens"]) == 385
    assert (got["add_space_prefix"], got["add_bos_token"], got["add_sep_token"]) == (False, True, False)
    assert list(got)[-1] == "add_space_prefix"


def test_gemma_needs_no_sentencepiece_model(small: Path, tmp_path: Path) -> None:
    """A Gemma 4 target whose directory happens to hold a tokenizer.model takes its native route all the same."""
    target = variant(small / "gemma", tmp_path / "target")
    (target / "tokenizer.model").write_bytes((small / "spm-bpe" / "tokenizer.model").read_bytes())
    assert load_vocabulary(target, vocab_size=385).model == "gemma4"
    stand_in = load_vocabulary(small / "gemma", vocab_size=385, tokenizer_model=small / "spm-bpe" / "tokenizer.model")
    assert stand_in.model == "gemma4"
    assert any("is not needed" in text for text in notes(stand_in))


def test_gemma_3_takes_its_sentencepiece_model(small: Path, tmp_path: Path) -> None:
    """The same tokenizer.json without Gemma 4's markers, and a tokenizer.model: SentencePiece."""
    tokenizer = document(small / "gemma")
    renamed = {t.replace("channel", "image"): i for t, i in tokenizer["model"]["vocab"].items()}
    added = [{**e, "content": e["content"].replace("channel", "image")} for e in tokenizer["added_tokens"]]
    change = {"model": {**tokenizer["model"], "vocab": renamed}, "added_tokens": added}
    target = variant(small / "gemma", tmp_path / "target", tokenizer=change)
    assert load_vocabulary(target, vocab_size=385).model == "gemma4", "without the model file: still native"
    (target / "tokenizer.model").write_bytes((small / "spm-bpe" / "tokenizer.model").read_bytes())
    assert load_vocabulary(target, vocab_size=385).model == "llama"


def test_sentencepiece(small: Path) -> None:
    got = values(load_vocabulary(small / "spm-bpe", vocab_size=384))
    assert (got["model"], got["pre"]) == ("llama", "default")
    assert got["tokens"][:4] == ["<unk>", "<s>", "</s>", "<0x00>"]
    assert got["token_type"][:4] == [2, 4, 3, 6], "added_tokens.json repeats <s>, which makes it user-defined there"
    assert got["tokens"][380:] == ["<|mask|>", "two words", "[PAD382]", "[PAD383]"]
    assert got["token_type"][380:] == [3, 4, 5, 5]
    assert got["scores"][380:] == [-1000.0, -1000.0, -10000.0, -10000.0]
    assert (got["bos_token_id"], got["eos_token_id"], got["unknown_token_id"]) == (1, 2, 0)
    assert (got["add_bos_token"], got["add_eos_token"]) == (True, False)
    plain = values(load_vocabulary(small / "spm-bpe", vocab_size=384, plain=True))
    assert "eos_token_id" not in plain, "the reference loses the ids of a target without tokenizer.json"
    assert plain == {k: v for k, v in got.items() if k not in ("bos_token_id", "eos_token_id", "unknown_token_id")}


def test_unigram_model(small: Path) -> None:
    vocabulary = load_vocabulary(small / "spm-unigram", vocab_size=350)
    assert vocabulary.model == "llama"
    assert any("unigram" in text for text in notes(vocabulary, "warning"))
    assert vocabulary.special == {"bos": 1, "eos": 2, "unk": 0}


def test_unigram_json(small: Path, tmp_path: Path) -> None:
    pieces = [["<unk>", 0.0], ["<s>", 0.0], ["▁a", -1.5], ["<0x41>", -9.0]]
    model = {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": True}
    added = [{"id": 1, "content": "<s>", "special": True}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": model, "added_tokens": added}), "utf-8")
    got = values(load_vocabulary(tmp_path, vocab_size=5))
    assert got["tokens"] == ["<unk>", "<s>", "▁a", "<0x41>", "[PAD4]"]
    assert got["token_type"] == [2, 3, 1, 6, 5]
    assert got["scores"] == [0.0, 0.0, -1.5, -9.0, -10000.0]


def test_llama_json_without_its_model(small: Path) -> None:
    got = values(load_vocabulary(small / "llama-json", vocab_size=380))
    assert got["model"] == "llama"
    scores = dict(zip(got["tokens"], got["scores"], strict=True))
    first, *_, last = document(small / "llama-json")["model"]["merges"]
    assert scores["".join(first)] == 0.0
    assert scores["".join(last)] < scores["".join(first)]
    assert scores["<s>"] == -1000.0
    plain = values(load_vocabulary(small / "llama-json", vocab_size=380, plain=True))
    assert set(plain["scores"]) == {-1000.0}, "as the reference writes it"
    assert got["bos_token_id"] == 1
    assert got["add_bos_token"] is True


def test_model_and_json_that_disagree(small: Path, tmp_path: Path) -> None:
    target = variant(small / "llama-json", tmp_path / "target")
    (target / "tokenizer.model").write_bytes((small / "spm-unigram" / "tokenizer.model").read_bytes())
    vocabulary = load_vocabulary(target, vocab_size=380)
    assert len([t for t in values(vocabulary)["tokens"] if not t.startswith("[PAD")]) == 350, "the model is used"
    assert any("in tokenizer.model, which is used" in text for text in notes(vocabulary, "warning"))


def test_tiktoken_of_qwen(small: Path) -> None:
    got = values(load_vocabulary(small / "tiktoken-qwen", vocab_size=540))
    same = document(small / "bytelevel")["model"]
    assert (got["model"], got["pre"]) == ("gpt2", "qwen2")
    assert got["tokens"][:320] == list(same["vocab"])
    assert got["merges"] == [" ".join(pair) for pair in same["merges"]]
    assert got["tokens"][320:324] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|extra_0|>"]
    assert (got["tokens"][527], got["tokens"][528]) == ("<|extra_204|>", "[PAD528]")
    assert got["token_type"][319:322] == [1, 3, 3]
    assert (got["bos_token_id"], got["eos_token_id"], got["unknown_token_id"]) == (320, 320, 320)


def test_tiktoken_of_kimi(small: Path) -> None:
    """The repository's Python raises when it is run; its split expression is read from its text."""
    vocabulary = load_vocabulary(small / "tiktoken-kimi", vocab_size=576)
    got = values(vocabulary)
    assert (vocabulary.pre, vocabulary.pre_source) == ("kimi-k2", "split expressions")
    assert got["tokens"][320:323] == ["[BOS]", "[EOS]", "<|reserved_token_322|>"]
    assert got["tokens"][575] == "<|reserved_token_575|>"
    assert (got["bos_token_id"], got["eos_token_id"]) == (320, 321)


def test_tiktoken_of_hunyuan(small: Path, tmp_path: Path) -> None:
    (tmp_path / "hy.tiktoken").write_bytes((small / "tiktoken-qwen" / "qwen.tiktoken").read_bytes())
    (tmp_path / "config.json").write_text('{"bos_token_id": 1, "eod_token_id": 323}', "utf-8")
    vocabulary = load_vocabulary(tmp_path, vocab_size=530, pre="hunyuan")
    got = values(vocabulary)
    assert got["tokens"][320:325] == ["<|endoftext|>", "<|startoftext|>", "<|bos|>", "<|eos|>", "<|pad|>"]
    assert (got["bos_token_id"], got["eos_token_id"]) == (322, 323), "not config.json's bos"


def test_tiktoken_without_its_code(small: Path, tmp_path: Path) -> None:
    data = (small / "tiktoken-qwen" / "qwen.tiktoken").read_bytes()
    (tmp_path / "qwen.tiktoken").write_bytes(data)
    assert any("its family is known for" in n for n in notes(load_vocabulary(tmp_path, vocab_size=540), "derived"))
    (tmp_path / "qwen.tiktoken").rename(tmp_path / "other.tiktoken")
    with pytest.raises(TokenizerError, match=r"no tokenization_\*\.py beside it"):
        load_vocabulary(tmp_path, vocab_size=540)


@pytest.mark.parametrize("bad", [b"not base64 at all\n", b"YQ== x\n", b"YQ==\n", b"\xff\xfe 1\n", b"\n"])
def test_bad_ranks(bad: bytes) -> None:
    with pytest.raises(TokenizerError):
        read_ranks(bad, "x.tiktoken")


def test_patterns_are_read_never_run() -> None:
    assert pattern_in('PAT_STR = r"a" \\\n r"b"') == "ab"
    assert pattern_in('PAT_STR = "a" + "b"') == "ab"
    assert pattern_in('class T:\n    pat_str = "|".join(["a", "b"])') == "a|b"
    assert pattern_in('PAT_STR = __import__("os").getcwd()') is None
    assert pattern_in("PAT_STR = (") is None


def test_merges_from_ranks() -> None:
    ranks = {b"a": 0, b"b": 1, b"c": 2, b"ab": 3, b"abc": 4, b"cba": 5}
    assert merges_of(ranks) == (["a b", "ab c"], 1), "no merge leads to cba"


def test_tekken(small: Path) -> None:
    got = values(load_vocabulary(small / "tekken", vocab_size=330))
    listed = json.loads((small / "tekken" / "tekken.json").read_text("utf-8"))
    used = listed["config"]["default_vocab_size"] - 8
    assert list(got)[:7] == [
        "model",
        "pre",
        "merges",
        "bos_token_id",
        "eos_token_id",
        "unknown_token_id",
        "padding_token_id",
    ]
    assert (got["model"], got["pre"]) == ("gpt2", "tekken")
    assert got["tokens"][:9] == [
        "<unk>",
        "<s>",
        "</s>",
        "[INST]",
        "[/INST]",
        "<SPECIAL_5>",
        "<SPECIAL_6>",
        "<SPECIAL_7>",
        "Ā",
    ]
    assert got["token_type"][7:9] == [3, 1]
    assert len([t for t in got["tokens"] if not t.startswith("[PAD")]) == used + 8
    assert (got["bos_token_id"], got["eos_token_id"], got["padding_token_id"]) == (1, 2, 2)
    assert (got["add_bos_token"], got["add_eos_token"]) == (True, False)
    assert got["merges"][0].replace(" ", "", 1) == got["tokens"][8 + 256]


def test_tekken_without_special_tokens(small: Path, tmp_path: Path) -> None:
    target = variant(small / "tekken", tmp_path / "t", tekken={"special_tokens": None})
    assert values(load_vocabulary(target, vocab_size=330))["tokens"][:3] == ["<unk>", "<s>", "</s>"]
    target = variant(small / "tekken", tmp_path / "t", tekken={"special_tokens": [{"rank": 99, "token_str": "x"}]})
    with pytest.raises(TokenizerError, match="special_tokens holds a bad entry"):
        load_vocabulary(target, vocab_size=330)


def test_vocab_json_with_merges_txt(small: Path) -> None:
    vocabulary = load_vocabulary(small / "slow", vocab_size=330)
    got, same = values(vocabulary), document(small / "bytelevel")["model"]
    assert vocabulary.pre == "qwen2"
    assert got["tokens"][:320] == list(same["vocab"])
    assert got["merges"] == [" ".join(pair) for pair in same["merges"]]
    assert (got["tokens"][320], got["token_type"][320], got["eos_token_id"]) == ("<|im_end|>", 3, 320)


def test_vocab_json_of_an_unknown_class(small: Path, tmp_path: Path) -> None:
    target = variant(small / "slow", tmp_path / "t", tokenizer_config={"tokenizer_class": "OwnTokenizer"})
    with pytest.raises(TokenizerError, match="do not say how OwnTokenizer splits text") as caught:
        load_vocabulary(target, vocab_size=330)
    assert caught.value.tip is not None
    assert "--pre" in caught.value.tip
    assert load_vocabulary(target, vocab_size=330, pre="qwen2").pre_source == "given with --pre"


def test_eagle3_and_llama_targets_write_the_space_prefix(small: Path, tmp_path: Path) -> None:
    config = {"tokenizer_config": {"add_prefix_space": False}}
    target = variant(small / "bytelevel", tmp_path / "t", **config)
    assert next(iter(values(load_vocabulary(target, vocab_size=340, eagle3=True)))) == "add_space_prefix"
    assert "add_space_prefix" not in values(load_vocabulary(target, vocab_size=340))
    variant(small / "bytelevel", target, **config, config={"architectures": ["LlamaForCausalLM"]})
    assert next(iter(values(load_vocabulary(target, vocab_size=340)))) == "add_space_prefix"


@pytest.mark.parametrize("name", ["Qwen3MoeForCausalLM", "Qwen3VLMoeForConditionalGeneration", "NeverSeenForCausalLM"])
def test_the_architecture_does_not_matter(small: Path, tmp_path: Path, name: str) -> None:
    target = variant(small / "bytelevel", tmp_path / "t", config={"architectures": [name]})
    assert values(load_vocabulary(target, vocab_size=340)) == values(
        load_vocabulary(small / "bytelevel", vocab_size=340)
    )


def test_nemotron_rounds_up(small: Path, tmp_path: Path) -> None:
    target = variant(small / "bytelevel", tmp_path / "t", config={"model_type": "nemotron_h"})
    assert load_vocabulary(target, vocab_size=341).size == 344


def test_a_model_file_for_a_byte_level_target_is_a_mistake(small: Path) -> None:
    with pytest.raises(UsageError, match="--tokenizer-model does not apply"):
        load_vocabulary(small / "bytelevel", vocab_size=340, tokenizer_model=small / "spm-bpe" / "tokenizer.model")


def test_byte_letters() -> None:
    assert to_letters(b" \n!\xff\x00") == "ĠĊ!ÿĀ"
