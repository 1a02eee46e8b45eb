"""The engine's ids against the library's, for the small tokenizers and for the real ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from vocab_tools import variant

from dflash_convert.container.types import KV
from dflash_convert.engine import embedded
from dflash_convert.engine.trace import EngineInfo
from dflash_convert.errors import TokenizerError
from dflash_convert.verification.vocabulary import (
    Difference,
    known_limit,
    library_of,
    probe_texts,
    round_trip,
    write_carrier,
)
from dflash_convert.vocab import load_vocabulary

TEXTS = probe_texts(
    "const total = items.map(x => x);\n  Größe, naïve\t café 你好，世界 1234\n\u200b👩\u200d👧 e\u030b\n"
)


@pytest.fixture
def engine() -> EngineInfo:
    found = embedded.info()
    if found is None:
        pytest.skip("needs the engine (pip install xllamacpp)")
    return found


def written(target: Path, size: int, path: Path, pre: str | None = None) -> Path:
    write_carrier(
        path, [k for k in load_vocabulary(target, vocab_size=size, pre=pre).keys(5) if "template" not in k.name]
    )
    return path


@pytest.mark.engine
@pytest.mark.parametrize(("name", "size"), [("bytelevel", 340), ("gemma", 385), ("spm-bpe", 384), ("llama-json", 380)])
def test_small_tokenizers(name: str, size: int, fixtures: Path, tmp_path: Path, engine: EngineInfo) -> None:
    target = fixtures / "tokenizers" / name
    gguf = written(target, size, tmp_path / "v.gguf")
    assert [str(one) for one in round_trip(gguf, target, TEXTS, engine)] == []


@pytest.mark.engine
def test_ranks_give_the_ids_of_the_same_tokenizer_json(fixtures: Path, tmp_path: Path, engine: EngineInfo) -> None:
    """qwen.tiktoken and vocab.json hold bytelevel's tokens; its library tokenizer is the oracle for both."""
    plain = {"normalizer": {"type": "NFC"}, "added_tokens": []}
    oracle = variant(fixtures / "tokenizers" / "bytelevel", tmp_path / "oracle", tokenizer=plain)
    for name, size in (("tiktoken-qwen", 540), ("slow", 330)):
        gguf = written(fixtures / "tokenizers" / name, size, tmp_path / f"{name}.gguf")
        assert [str(one) for one in round_trip(gguf, oracle, TEXTS, engine)] == []


@pytest.mark.engine
def test_a_wrong_vocabulary_is_noticed(fixtures: Path, tmp_path: Path, engine: EngineInfo) -> None:
    """The same tokens with another pre-tokenizer: only the ids tell."""
    target = fixtures / "tokenizers" / "bytelevel"
    gguf = written(target, 340, tmp_path / "v.gguf", pre="gpt-2")
    found = round_trip(gguf, target, ["add(left, 1)", "abc"], engine)
    assert [one.text for one in found] == ["add(left, 1)", "add(left, 1)"]
    assert found[0].engine != found[0].library


REAL = {
    "qwen3": 151936,
    "qwen3_6": 248320,
    "llama3_1": 128256,
    "gptoss": 201088,
    "deepseek_v4": 129280,
    "gemma4": 262144,
    "spm_tiny": 2048,
}


@pytest.mark.engine
@pytest.mark.shared
@pytest.mark.parametrize("name", REAL)
def test_real_tokenizers(name: str, shared: Path, tmp_path: Path, engine: EngineInfo) -> None:
    """All ids agree, except where llama.cpp's gpt-4o expression is known to break words at combining marks."""
    target = shared / "tokenizers" / name
    texts = probe_texts((shared / "tokenizers" / "probes.txt").read_text("utf-8"))
    gguf = written(target, REAL[name], tmp_path / "v.gguf")
    found = round_trip(gguf, target, texts, engine)
    assert [str(one) for one in found if one.limit is None] == []
    assert len(found) == (3 if name == "gptoss" else 0)


def test_probe_texts() -> None:
    assert probe_texts("a\n\tb \n") == ["a", "\tb ", "a\n", "\tb \n", "a\n\tb \n", ""]


def test_how_a_difference_reads() -> None:
    assert str(Difference("ab", (1, 2, 3), (1, 4))) == "'ab': from token 1 on (2, 3) instead of (4,)"
    assert str(Difference("", (), (1,))) == "'': from token 0 on () instead of (1,)"


def test_known_limits() -> None:
    assert known_limit("gpt-4o", "สวัสดี") == "llama.cpp's gpt-4o splitting breaks words at combining marks"
    assert known_limit("gpt-4o", "plain") is None
    assert known_limit("qwen2", "สวัสดี") is None


def test_no_source_to_compare_with(fixtures: Path, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"neither tokenizer\.json nor a SentencePiece model"):
        library_of(fixtures / "tokenizers" / "tekken", add_bos=False, bos=None)


def test_a_file_without_a_vocabulary(tmp_path: Path, fixtures: Path, engine: EngineInfo) -> None:
    from dflash_convert.container.types import string
    from dflash_convert.container.writer import GgufOutput, layout

    keys: list[KV] = [string("general.architecture", "dflash")]
    with GgufOutput(tmp_path / "x.gguf", [], layout(keys, [])) as out:
        out.commit()
    with pytest.raises(TokenizerError, match="no vocabulary in this file"):
        round_trip(tmp_path / "x.gguf", fixtures / "tokenizers" / "bytelevel", [""], engine)


def test_prepared_texts_of_sentencepiece(fixtures: Path) -> None:
    library = library_of(fixtures / "tokenizers" / "spm-bpe", add_bos=True, bos=1)
    assert library.prepare("a  b") == "a  b"
    assert next(iter(library.prompt("a"))) == 1
    assert list(library.prompt("a"))[1:] == list(library.text("a"))
    assert json.loads((fixtures / "tokenizers" / "spm-bpe" / "tokenizer_config.json").read_text())["add_bos_token"]
