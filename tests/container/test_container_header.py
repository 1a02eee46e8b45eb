"""A header from its first bytes is the file's own, and nothing behind it is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_convert.container import header
from dflash_convert.container.header import read_header
from dflash_convert.container.reader import open_gguf
from dflash_convert.errors import ContainerError


@pytest.mark.parametrize("first", [24, 100, 4096, 1 << 20])
def test_any_first_request_gives_the_same_header(fixtures: Path, monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    path = fixtures / "tiny-js" / "target-bf16.gguf"
    data, whole = path.read_bytes(), open_gguf(path)
    monkeypatch.setattr(header, "FIRST", first)
    asked: list[tuple[int, int]] = []

    def read(start: int, end: int) -> bytes:
        asked.append((start, end))
        return data[start:end]

    found = read_header(path, len(data), read)
    assert found.keys == whole.keys
    assert found.tensors == whole.tensors
    assert not found.whole
    assert asked[-1][1] <= max(2 * whole.data_offset, first)
    assert [start for start, _ in asked[1:]] == [end for _, end in asked[:-1]], "no byte twice"
    with pytest.raises(ContainerError, match="only its header is at hand"):
        found.data("token_embd.weight")


def test_a_damaged_or_endless_header_is_refused(fixtures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fixtures / "tiny-js" / "target-bf16.gguf"
    data = path.read_bytes()
    with pytest.raises(ContainerError, match="are too few"):
        read_header(path, 10, lambda start, end: data[start:end])
    with pytest.raises(ContainerError, match=r"100 of \d+ bytes came"):
        read_header(path, len(data), lambda start, end: data[start : start + 100])
    with pytest.raises(ContainerError, match="ends at byte"):
        read_header(path, 400_000, lambda start, end: data[start:end])
    monkeypatch.setattr(header, "FIRST", 24)
    monkeypatch.setattr(header, "MOST", 4096)
    with pytest.raises(ContainerError, match="longer than"):
        read_header(path, len(data), lambda start, end: data[start:end])
