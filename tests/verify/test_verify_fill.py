"""Bytes of a file that belong to nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import gguf_builder as gb
import pytest

from dflash_convert.container.reader import open_gguf
from dflash_convert.notes import Note
from dflash_convert.verification.fill import compare_fill
from dflash_convert.verification.tensors import verify

TWO = gb.gguf([gb.ARCH], [gb.tensor("a", [3]), gb.tensor("b", [2], offset=32)], b"\1" * 12 + bytes(20) + b"\1" * 8)


@pytest.mark.parametrize("padded", [0, 24], ids=["to its last tensor", "to the alignment"])
def test_every_byte_belongs_to_something_or_is_zero(padded: int, tmp_path: Path) -> None:
    path, whole = tmp_path / "x.gguf", TWO + bytes(padded)
    path.write_bytes(whole)
    assert len(whole) - len(TWO) == padded
    notes: list[Note] = []
    assert compare_fill(open_gguf(path), notes) == []
    assert notes == []
    found = open_gguf(path)
    data = {i for info in found.tensors.values() for i in range(info.offset, info.offset + info.nbytes)}
    before = len(gb.gguf([gb.ARCH], [gb.tensor("a", [3]), gb.tensor("b", [2], offset=32)], alignment=1))
    assert before < found.data_offset
    fill = [i for i in range(before, len(whole)) if i not in data]
    assert len(fill) == found.data_offset - before + 20 + padded
    for at in fill:
        path.write_bytes(whole[:at] + b"\x10" + whole[at + 1 :])
        (text,) = compare_fill(open_gguf(path), notes)
        assert text.startswith(f"byte {at} is 16 ")
    assert notes == []


@pytest.mark.parametrize(("more", "differs"), [(bytes(8), False), (bytes(7) + b"\1", True)])
def test_what_follows_the_last_tensor(
    more: bytes, differs: bool, converted: Callable[[str], Path], fixtures: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copy(converted("Q8_0"), tmp_path / "dflash-target-Q8_0.gguf"))
    end = path.stat().st_size
    with path.open("ab") as file:
        file.write(more)
    found = verify(path, fixtures / "tiny-js" / "drafter")
    assert found.differences == ((f"byte {end + 7} is 1 where no key and no tensor is; writers leave 0",) * differs)
    assert any("8 bytes of zeros follow the last tensor" in note.text for note in found.notes) is not differs
