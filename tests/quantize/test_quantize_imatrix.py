"""Importance matrices: read from llama-imatrix's GGUF form and handed to the kernels tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import quant
from dflash_convert import conversion as convert
from dflash_convert.container.reader import open_gguf
from dflash_convert.container.types import TensorType, ValueType, array, string, u32
from dflash_convert.container.writer import Entry, GgufOutput, layout
from dflash_convert.encode.imatrix import open_imatrix
from dflash_convert.errors import InputError
from dflash_convert.plan import TypeOptions
from dflash_convert.quantization import quantize_file
from dflash_convert.target import Target

PAIR = Path(__file__).resolve().parents[2] / "fixtures" / "tiny-js"
KEYS = [
    string("general.type", "imatrix"),
    array("imatrix.datasets", ValueType.STRING, ["calibration.txt"]),
    u32("imatrix.chunk_count", 7),
    u32("imatrix.chunk_size", 512),
]


def write_imatrix(path: Path, sums: Mapping[str, np.ndarray], count: float = 4.0) -> Path:
    data = {f"{name}.in_sum2": values for name, values in sums.items()}
    data |= {f"{name}.counts": np.array([count], np.float32) for name in sums}
    entries = [Entry(name, (1, values.size), TensorType.F32) for name, values in data.items()]
    with GgufOutput(path, entries, layout(KEYS, entries)) as output:
        for name, values in data.items():
            output.write_at(output.offset(name), np.ascontiguousarray(values, "<f4"))
        output.commit()
    return path


@pytest.fixture
def bf16(tmp_path: Path) -> Path:
    path = tmp_path / "bf16.gguf"
    conversion = convert.prepare(convert.Source(PAIR / "drafter"), Target.read(PAIR / "target"), convert.Options())
    convert.write(conversion, [path])
    return path


def random_sums(path: Path) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    matrices = [t for t in open_gguf(path).tensors.values() if len(t.shape) == 2]
    return {t.name: (rng.random(t.shape[1], dtype=np.float32) + 0.01) * 40 for t in matrices}


@pytest.mark.parametrize("outtype", ["q4_0", "q5_1", "iq4_nl"])
def test_each_tensor_is_weighed_by_its_own_entry(bf16: Path, tmp_path: Path, outtype: str) -> None:
    sums = random_sums(bf16)
    del sums["fc.weight"]
    options = TypeOptions(imatrix=write_imatrix(tmp_path / "i.gguf", sums))
    quantize_file(bf16, tmp_path / "out.gguf", outtype, options)
    before, after = open_gguf(bf16), open_gguf(tmp_path / "out.gguf")
    differing = 0
    for name, info in after.tensors.items():
        if info.type is TensorType.F32:
            continue
        rows = np.array(before.data(name)).view("<u2")
        weights = sums[name] / np.float32(4) if name in sums else None
        assert np.array_equal(after.data(name), quant.quantize(rows, info.type.name, imatrix=weights)), name
        differing += not np.array_equal(after.data(name), quant.quantize(rows, info.type.name))
    assert differing > 10
    assert after.get("quantize.imatrix.file") == "i.gguf"
    assert after.get("quantize.imatrix.dataset") == "calibration.txt"
    assert after.get("quantize.imatrix.entries_count") == len(sums)
    assert after.get("quantize.imatrix.chunks_count") == 7


def test_the_checkpoint_itself_takes_an_imatrix(bf16: Path, tmp_path: Path) -> None:
    options = TypeOptions(imatrix=write_imatrix(tmp_path / "i.gguf", random_sums(bf16)))
    quantize_file(bf16, tmp_path / "out.gguf", "q4_0", options)
    straight = convert.Options(outtypes=("q4_0",), types=options)
    conversion = convert.prepare(convert.Source(PAIR / "drafter"), Target.read(PAIR / "target"), straight)
    convert.write(conversion, [tmp_path / "straight.gguf"], threads=2)
    a, b = open_gguf(tmp_path / "out.gguf"), open_gguf(tmp_path / "straight.gguf")
    assert all(np.array_equal(a.data(name), b.data(name)) for name in a.tensors)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_matrix_that_was_made_anew_is_read_anew(bf16: Path, tmp_path: Path, threads: int) -> None:
    """By every process that shares the work, this one among them."""
    sums = random_sums(bf16)
    written = []
    for number, part in enumerate((sums, {name: values[::-1].copy() for name, values in sums.items()})):
        (tmp_path / "i.gguf").unlink(missing_ok=True)
        options = TypeOptions(imatrix=write_imatrix(tmp_path / "i.gguf", part))
        out = tmp_path / f"{number}.gguf"
        quantize_file(bf16, out, "q4_0", options, threads=threads)
        written.append(open_gguf(out))
        rows = np.array(open_gguf(bf16).data("fc.weight")).view("<u2")
        wanted = quant.quantize(rows, "Q4_0", imatrix=part["fc.weight"] / np.float32(4))
        assert np.array_equal(written[-1].data("fc.weight"), wanted)
    assert not np.array_equal(*(each.data("fc.weight") for each in written))


def test_unused_tensors_weigh_alike(tmp_path: Path) -> None:
    sums = {"a": np.zeros(64, np.float32), "b": np.arange(64, dtype=np.float32)}
    assert np.array_equal(open_imatrix(write_imatrix(tmp_path / "i.gguf", sums)).weights("a", 64), np.ones(64))
    never = open_imatrix(write_imatrix(tmp_path / "j.gguf", sums, count=0.0))
    assert np.array_equal(never.weights("b", 64), np.ones(64))
    assert never.weights("c", 64) is None


@pytest.mark.parametrize(
    ("values", "columns", "text"),
    [
        (np.ones(64), 96, "a has 64 weights, its rows have 96 elements"),
        (np.full(64, np.nan), 64, "negative or not finite"),
        (-np.ones(64), 64, "negative or not finite"),
    ],
)
def test_wrong_weights(tmp_path: Path, values: np.ndarray, columns: int, text: str) -> None:
    with pytest.raises(InputError, match=text):
        open_imatrix(write_imatrix(tmp_path / "i.gguf", {"a": values.astype(np.float32)})).weights("a", columns)


def test_another_gguf_is_no_imatrix() -> None:
    with pytest.raises(InputError, match=r"target-bf16\.gguf: not an importance matrix"):
        open_imatrix(PAIR / "target-bf16.gguf")
