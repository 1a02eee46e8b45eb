"""Damaged tokenizer files end in a DflashError with a sentence, never in another exception."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash_convert.errors import DflashError
from dflash_convert.vocab import load_vocabulary
from dflash_convert.vocab.spm import _model_kind
from dflash_convert.vocab.tiktoken import pattern_in, read_ranks

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2**40),
    st.floats(allow_nan=False),
    st.text(max_size=4),
    st.lists(st.one_of(st.none(), st.integers(0, 9), st.text(max_size=2)), max_size=3),
    st.dictionaries(
        st.sampled_from(["type", "id", "content", "a"]), st.one_of(st.none(), st.text(max_size=3)), max_size=2
    ),
)
FOLDERS = {
    "bytelevel": 340,
    "gemma": 385,
    "llama-json": 380,
    "tekken": 330,
    "slow": 330,
    "spm-bpe": 384,
    "tiktoken-kimi": 576,
}
QUICK = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def paths(value: Any, depth: int = 5) -> list[tuple[Any, ...]]:
    """Paths into a JSON value; of large containers only the first and last few members."""
    found: list[tuple[Any, ...]] = [()]
    if depth and isinstance(value, (dict, list)):
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        for key in keys[:6] + keys[-6:]:
            found += [(key, *rest) for rest in paths(value[key], depth - 1)]
    return found


def replaced(value: Any, path: tuple[Any, ...], junk: Any) -> Any:
    if not path:
        return junk
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], junk)
    return copy


@pytest.mark.parametrize("name", FOLDERS)
@QUICK
@given(data=st.data())
def test_one_damaged_value(name: str, fixtures: Path, data: st.DataObject) -> None:
    source = fixtures / "tokenizers" / name
    file = data.draw(st.sampled_from(sorted(p.name for p in source.glob("*.json"))))
    content = json.loads((source / file).read_text("utf-8"))
    path = data.draw(st.sampled_from(paths(content)))
    damaged = json.dumps(replaced(content, path, data.draw(JUNK)))
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "t"
        shutil.copytree(source, target)
        (target / file).write_text(damaged, "utf-8")
        with contextlib.suppress(DflashError):
            load_vocabulary(target, vocab_size=FOLDERS[name], plain=data.draw(st.booleans()))


@QUICK
@given(data=st.binary(max_size=200))
def test_any_bytes(data: bytes, fixtures: Path) -> None:
    with contextlib.suppress(DflashError):
        read_ranks(data, "x")
    _model_kind(data)
    pattern_in(data.decode("latin-1"))


@QUICK
@given(at=st.integers(0, 2000), byte=st.integers(0, 255))
def test_a_damaged_sentencepiece_model(at: int, byte: int, fixtures: Path) -> None:
    model = bytearray((fixtures / "tokenizers" / "spm-bpe" / "tokenizer.model").read_bytes())
    model[at % len(model)] = byte
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tokenizer.model").write_bytes(model)
        with contextlib.suppress(DflashError):
            load_vocabulary(Path(folder), vocab_size=400)
