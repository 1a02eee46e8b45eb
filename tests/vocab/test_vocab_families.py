"""Special tokens of single families, told apart by what their files hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vocab_tools import document, values, variant

from dflash_convert.vocab import load_vocabulary


@pytest.fixture
def base(fixtures: Path) -> Path:
    return fixtures / "tokenizers" / "bytelevel"


def target(base: Path, folder: Path, texts: list[str], **changes: Any) -> Path:
    """The small tokenizer with added special tokens from id 324 on."""
    flags = {"special": True, "normalized": False}
    added = [{"id": 324 + n, "content": text, **flags} for n, text in enumerate(texts)]
    return variant(base, folder, tokenizer={"added_tokens": [*document(base)["added_tokens"], *added]}, **changes)


def special(path: Path, pre: str) -> dict[str, int]:
    return dict(load_vocabulary(path, vocab_size=340, pre=pre, plain=True).special)


def test_glm(base: Path, tmp_path: Path) -> None:
    """GLM-4.5 and later have <think>; the dense GLM-4 before them has other ends."""
    texts = ["[gMASK]", "<|user|>", "<|observation|>"]
    got = special(target(base, tmp_path / "moe", texts), "glm4")
    assert got == {"eos": 321, "pad": 320, "bos": 324, "eot": 325, "unk": 320, "eom": 326}
    dense = target(base, tmp_path / "dense", texts)
    tokenizer = document(dense)
    tokenizer["added_tokens"][2]["content"] = "<other>"
    variant(dense, dense.parent / "dense2", tokenizer=tokenizer)
    assert special(dense.parent / "dense2", "glm4") == {"eos": 321, "pad": 320, "eot": 325, "unk": 320, "bos": 320}
    keys = list(values(load_vocabulary(dense, vocab_size=340, pre="glm4")))
    assert keys.index("eot_token_id") < keys.index("add_bos_token")


def test_laguna(base: Path, tmp_path: Path) -> None:
    path = target(base, tmp_path, ["</assistant>"], config={"eos_token_id": [2, 324], "bos_token_id": 2})
    tokenizer = document(path)
    tokenizer["added_tokens"][-1]["special"] = False
    got = values(load_vocabulary(variant(path, tmp_path / "t", tokenizer=tokenizer), vocab_size=340, pre="laguna"))
    assert got["token_type"][324] == 3, "llama.cpp would print it"
    assert got["eot_token_id"] == 324


def test_hunyuan_dense(base: Path, tmp_path: Path) -> None:
    config = {"eod_token_id": 322, "pad_token_id": -1}
    path = target(base, tmp_path, [], config=config, generation_config={"eos_token_id": [323, 322]})
    got = values(load_vocabulary(path, vocab_size=340, pre="hunyuan-dense", plain=True))
    assert (got["eos_token_id"], got["eot_token_id"]) == (322, 323)
    assert list(got).index("eos_token_id") < list(got).index("padding_token_id"), "overwritten in its place"


def test_solar(base: Path, tmp_path: Path) -> None:
    path = target(base, tmp_path, ["<unk>", "<|startoftext|>"], tokenizer_config={"eos_token": None}, config=None)
    assert special(path, "solar-open") == {"pad": 320, "eos": 320, "eot": 320, "unk": 324, "bos": 325}


def test_muse_glimmer(base: Path, tmp_path: Path) -> None:
    path = target(base, tmp_path, ["<|eot|>"], config={"model_type": "muse_glimmer"})
    got = values(load_vocabulary(path, vocab_size=340, pre="gpt-4o", plain=True))
    assert got["eot_token_id"] == 324
    assert list(got)[-1] == "eot_token_id", "after the template"
    other = target(base, tmp_path, ["<|eot|>"], config={"model_type": "llama4"})
    assert "eot_token_id" not in values(load_vocabulary(other, vocab_size=340, pre="llama4", plain=True))
