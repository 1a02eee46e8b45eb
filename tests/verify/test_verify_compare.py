"""Comparing tensors: figures, equal bytes, and workers that find what one process finds."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from verify_files import Keys, Tensors, rewrite

import dflash_convert.verification.compare as comparing
from dflash_convert.checkpoint import SourceTensor
from dflash_convert.drafter import TensorPlan
from dflash_convert.encode import pieces as encode_pieces
from dflash_convert.encode.pieces import Piece, Place, make_pieces
from dflash_convert.errors import ContainerError, DflashError
from dflash_convert.processes import Workers
from dflash_convert.target import Target
from dflash_convert.verification.compare import Comparer, Outcome, compare, merged
from dflash_convert.verification.figures import PIECE, Figures, Meter
from dflash_convert.verification.tensors import verify

Convert = Callable[[str], Path]
SUMS, ONE = 1e-6, 1e-7  # what float32 leaves of a sum, and of one difference


def pairs(rows: int, columns: int, seed: int = 0) -> tuple[Any, Any]:
    r = np.random.default_rng(seed)
    x = r.standard_normal((rows, columns)).astype(np.float32)
    return x, x + (r.standard_normal(x.shape) * 0.01).astype(np.float32)


@pytest.mark.parametrize(
    ("rows", "columns", "block"),
    [
        (3, 96, 32),
        (700, 512, 32),
        (5, PIECE + 512, 256),
        (9, 30, 30),
        (7, 33, 11),
        (4, 100, 32),
        (1, 1, 1),
        (0, 32, 32),
    ],
)
def test_figures_are_what_their_names_say(rows: int, columns: int, block: int) -> None:
    x, y = pairs(rows, columns)
    if rows > 1:
        x[0], y[1] = 0, x[1]  # a row of zeros that are not, and one without error
    found = Figures()
    Meter().add(found, x, y, block, 1e-3)
    a, b = x.astype(np.float64), y.astype(np.float64)
    gap = np.abs(a - b)
    assert (found.count, found.finite) == (x.size, True)
    close = {"error": (gap**2).sum(), "signal": (a**2).sum(), "value": (b**2).sum(), "product": (a * b).sum()}
    for name, expected in close.items():
        assert getattr(found, name) == pytest.approx(expected, rel=SUMS), name
    assert found.maximum == pytest.approx(gap.max(initial=0.0), rel=ONE)
    worst = 0.0
    if columns % block == 0:
        tops, gaps = (each.reshape(-1, block).max(axis=1) for each in (np.abs(a), gap))
        over = np.maximum(gaps - 1e-3, 0)
        worst = max((g / t if t else math.inf if g else 0.0 for g, t in zip(over, tops, strict=True)), default=0.0)
    assert found.worst == pytest.approx(worst, rel=1e-4)  # what is left of the gap above the slack


@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e19, 1e30])
def test_squares_that_float32_cannot_hold(scale: float) -> None:
    x, y = (side * np.float32(scale) for side in pairs(64, 512))
    found = Figures()
    Meter().add(found, x, y, 32)
    a, b = x.astype(np.float64), y.astype(np.float64)
    sums = {"error": ((a - b) ** 2).sum(), "signal": (a**2).sum(), "value": (b**2).sum(), "product": (a * b).sum()}
    for name, expected in sums.items():
        assert getattr(found, name) == pytest.approx(expected, rel=1e-12, abs=0), name
    assert found.maximum == np.abs(a - b).max()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_of_what_is_not_finite_only_the_count_is_added(bad: float, side: int) -> None:
    both = pairs(2, PIECE)
    both[side][1, 5] = bad
    found, before = Figures(), Figures()
    meter = Meter()
    for figures in (found, before):
        meter.add(figures, *pairs(2, 64), 32)
    meter.add(found, *both, 32)
    assert not found.finite
    assert (found.error, found.signal, found.maximum) == (before.error, before.signal, before.maximum)
    assert found.count == before.count + 2 * PIECE


def test_the_largest_float32_values_are_finite() -> None:
    x = np.full((1, 64), np.finfo(np.float32).max)
    found = Figures()
    Meter().add(found, x, -x, 32)
    assert found.finite
    assert found.maximum == 2 * float(np.finfo(np.float32).max)


def test_workers_find_what_one_process_finds(fixtures: Path, converted: Convert) -> None:
    pair = fixtures / "tiny-js"
    for outtype in ("BF16", "F16", "Q8_0", "Q4_K_M"):
        alone = verify(converted(outtype), pair / "drafter", Target.read(pair / "target"), threads=1)
        shared = verify(converted(outtype), pair / "drafter", Target.read(pair / "target"), threads=2)
        assert alone == shared, outtype
        assert alone.passed


def test_progress_comes_to_the_total(fixtures: Path, converted: Convert) -> None:
    for threads in (1, 2):
        total: list[int] = []
        steps: list[int] = []
        call = {"begin": total.append, "progress": steps.append, "threads": threads}
        verify(converted("Q8_0"), fixtures / "tiny-js" / "drafter", **call)  # type: ignore[arg-type]
        assert total == [sum(steps)]
        assert len(steps) > 10


def test_equal_bytes_are_never_decoded(fixtures: Path, converted: Convert, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(comparing, "dequantizer", refuse)
    for outtype in ("BF16", "F32"):
        result = verify(converted(outtype), fixtures / "tiny-js" / "drafter", threads=1)
        assert {t.status for t in result.tensors} == {"equal"}
        assert {(t.rmse, t.max_error, t.cosine, t.block_error, t.snr_db) for t in result.tensors} == {
            (0, 0, 1, 0, None)
        }


@pytest.mark.parametrize("threads", [1, 2])
def test_one_other_byte_has_all_of_its_tensor_decoded(
    threads: int, fixtures: Path, converted: Convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the tensor is one piece or many: the figures are those of all its values."""

    def change(keys: Keys, tensors: Tensors) -> None:
        shape, kind, content = tensors["fc.weight"]
        values = bytearray(content)
        values[20_001] ^= 0x40
        tensors["fc.weight"] = (shape, kind, bytes(values))

    path = rewrite(converted("BF16"), tmp_path / "x.gguf", change)

    def report() -> Any:
        found = verify(path, fixtures / "tiny-js" / "drafter", threads=threads)
        return next(t for t in found.tensors if t.name == "fc.weight")

    whole = report()
    monkeypatch.setattr(encode_pieces, "PIECE_ELEMENTS", 4096)
    split = report()
    assert whole.status == split.status == "different"
    assert 0 < whole.cosine < 1
    for name in ("rmse", "max_error", "snr_db", "cosine", "block_error"):
        assert getattr(split, name) == pytest.approx(getattr(whole, name), rel=1e-12), name


@contextmanager
def job_of(tmp_path: Path, source: Any, dtype: str, found: Any, kind: str, **plan: Any) -> Iterator[Piece]:
    """A tensor of raw bytes at both ends."""
    ends = []
    for name, data in (("source", source), ("file", found)):
        ends.append(tmp_path / name)
        ends[-1].write_bytes(data.tobytes())
    rows = plan.pop("shape", source.shape)
    tensor = SourceTensor("t", ends[0], dtype, source.shape, 0, source.nbytes)
    fd = os.open(ends[1], os.O_RDONLY)
    try:
        (piece,) = make_pieces(TensorPlan("t", rows, (tensor,), **plan), (Place(fd, 0, kind),))
        yield piece
    finally:
        os.close(fd)


@pytest.mark.parametrize(("bits", "dtype"), [(0x7FC0, "BF16"), (0xFF80, "BF16"), (0x7C00, "F16"), (0xFE01, "F16")])
def test_equal_bytes_that_are_no_numbers(bits: int, dtype: str, tmp_path: Path) -> None:
    values = np.zeros((4, 32), np.uint16)
    values[2, 3] = bits
    with job_of(tmp_path, values, dtype, values, dtype) as piece, Comparer() as comparer:
        found = comparer.run(piece)
    assert (found.equal, found.decoded, found.figures.finite) == (True, True, False)


@pytest.mark.parametrize(("exponent", "decoded"), [(127, False), (252, False), (253, True), (255, True)])
def test_mxfp4_is_decoded_where_its_scale_could_overflow(exponent: int, decoded: bool, tmp_path: Path) -> None:
    """Codes 7 are the largest value: 12 times half the scale."""
    blocks = np.full((2, 17), 0x77, np.uint8)
    blocks[:, 0] = exponent
    codes, scales = np.full((2, 16), 0x77, np.uint8), np.full((2, 1), exponent, np.uint8)
    for name, data in (("codes", codes), ("scales", scales), ("file", blocks)):
        (tmp_path / name).write_bytes(data.tobytes())
    sources = tuple(
        SourceTensor(name, tmp_path / name, "U8", data.shape, 0, data.nbytes)
        for name, data in (("codes", codes), ("scales", scales))
    )
    with (tmp_path / "file").open("rb") as file, Comparer() as comparer:
        plan = TensorPlan("t", (1, 2, 32), sources, transform="stack", scheme="mxfp4", block=(1, 32))
        (piece,) = make_pieces(plan, (Place(file.fileno(), 0, "MXFP4"),))
        found = comparer.run(piece)
    assert found.equal
    assert (found.decoded, found.figures.finite) == (decoded, not decoded)


def test_outcomes_survive_the_way_from_a_worker() -> None:
    figures = Figures(3, 1 / 3, 2e300, 0.1, -0.0, 5e-324, math.inf, finite=False)
    outcome = Outcome(False, True, figures)
    assert comparing.outcome_from_json(outcome.json()) == outcome
    assert merged([]) == Outcome(True, False, Figures())


@pytest.mark.parametrize("count", [0, 1])
def test_a_file_that_becomes_shorter_is_an_error(count: int, tmp_path: Path) -> None:
    values = np.zeros((4, 32), np.uint16)
    with (
        job_of(tmp_path, values, "BF16", values[:3], "BF16") as piece,
        Workers("verification.worker", count) as workers,
        pytest.raises(ContainerError, match="tensor 't' ends early"),
    ):
        compare([piece], lambda _: None, workers if count else None)


def test_a_worker_that_dies_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'dflash_convert.verification.worker' in str(sys.orig_argv): os.preadv = lambda *a: os._exit(77)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(site))
    values = np.zeros((4, 32), np.uint16)
    with (
        job_of(tmp_path, values, "BF16", values, "BF16") as piece,
        Workers("verification.worker", 1) as workers,
        pytest.raises(DflashError, match=r"ended unexpectedly \(exit status 77\)"),
    ):
        compare([piece], lambda _: None, workers)
