"""Mistral's own tokenizer files, out of mistral-common: llama.cpp must give that library's ids for our vocabularies."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from test_vocab_roundtrip import written

from dflash_convert.engine import embedded
from dflash_convert.engine.session import start
from dflash_convert.engine.trace import to_split
from dflash_convert.verification.vocabulary import compare, known_limit, probe_texts
from dflash_convert.vocab import load_vocabulary

mistral_common = pytest.importorskip("mistral_common", reason="needs mistral-common, as `make test` installs it")
DATA = Path(mistral_common.__file__).parent / "data"
SIZES = {
    "tokenizer.model.v1": 32000,
    "mistral_instruct_tokenizer_240216.model.v2": 32768,
    "mistral_instruct_tokenizer_240323.model.v3": 32768,
    "mistral_instruct_tokenizer_241114.model.v7": 32768,
    "mistral_instruct_tokenizer_241114.model.v7m1": 32768,
    "tekken_240718.json": 131072,
    "tekken_240911.json": 131072,
}
TEXTS = probe_texts(
    "const total = items.map(x => x);\n  Größe, naïve\t café 你好，世界 1234\nIT'S WE'LL fooBAR HTTPServer\n"
    "สวัสดี e\u030b क्षेत्र\n    def f(x):\n\treturn [x]*3  # no\n👩\u200d👧 Съешь ещё\n"
)


def target(name: str, folder: Path) -> Path:
    """A directory as Mistral publishes it: its own file beside config.json, no tokenizer.json."""
    folder.mkdir()
    shutil.copy(DATA / name, folder / ("tekken.json" if name.endswith(".json") else name))
    config = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "vocab_size": SIZES[name]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def library(name: str) -> Callable[[str], list[int]]:
    """mistral-common's ids of plain text."""
    if name.endswith(".json"):
        from mistral_common.tokens.tokenizers.tekken import Tekkenizer

        tekken = Tekkenizer.from_file(DATA / name)
        return lambda text: tekken.encode(text, bos=False, eos=False)
    from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer

    pieces = SentencePieceTokenizer(DATA / name)
    return lambda text: pieces.encode(text, bos=False, eos=False)


def test_all_are_tried() -> None:
    files = {path.name for path in DATA.iterdir() if path.name.startswith("tekken") or ".model." in path.name}
    assert files == SIZES.keys()


@pytest.mark.engine
@pytest.mark.parametrize("name", SIZES)
def test_ids_are_mistral_commons(name: str, tmp_path: Path) -> None:
    engine = embedded.info()
    if engine is None:
        pytest.skip("needs the engine (pip install xllamacpp)")
    gguf = written(target(name, tmp_path / "target"), SIZES[name], tmp_path / "v.gguf")
    with start(engine, to_split(gguf)) as session:
        found = compare(lambda text: session.tokenize(text, special=False), library(name), TEXTS)
    pre = "tekken" if name.endswith(".json") else "default"
    assert [str(one) for one in found if known_limit(pre, one.text) is None] == []
    assert len(found) < len(TEXTS) / 2


def test_the_newest_of_several_is_used(tmp_path: Path) -> None:
    folder = target("mistral_instruct_tokenizer_241114.model.v7m1", tmp_path / "target")
    for name in ("tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"):
        shutil.copy(DATA / name, folder / name)
    (folder / "notes.model.v9").write_text("no model")
    vocabulary = load_vocabulary(folder, vocab_size=32768)
    (note,) = [each.text for each in vocabulary.notes if "newest" in each.text]
    assert "241114.model.v7m1, the newest beside tokenizer.model.v1, mistral_instruct_tokenizer_240323.model.v3" in note
