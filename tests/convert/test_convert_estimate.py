"""How long a conversion will take, told before it begins: from a sample, for what is worth telling."""

from __future__ import annotations

import pytest

from dflash_convert.container.types import TensorType
from dflash_convert.container.writer import Entry
from dflash_convert.encode import estimate


def entry(rows: int, kind: TensorType) -> Entry:
    return Entry("blk.0.ffn_up.weight", (rows, 4096), kind)


def test_a_moment_s_work_is_not_worth_a_line() -> None:
    assert estimate.seconds([[entry(64, TensorType.Q8_0)]], 2) is None


def test_costs_add_up_and_workers_share_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "_cost", {"Q8_0": 1e-8, "IQ4_XS": 1e-6, "F32": 0.0}.__getitem__)
    monkeypatch.setattr(estimate, "DISK", 1e30)  # of no account here
    fast, slow = [entry(10_000, TensorType.Q8_0)], [entry(10_000, TensorType.IQ4_XS)]
    assert estimate.seconds([fast], 1) == pytest.approx(0.4096)
    assert estimate.seconds([slow], 1) == pytest.approx(40.96)
    assert estimate.seconds([fast, slow], 4) == pytest.approx((0.4096 + 40.96) / 4)
    assert estimate.seconds([slow], 0) == estimate.seconds([slow], 1), "no workers: this process does it"


def test_a_sample_costs_something() -> None:
    assert all(estimate._cost(kind) > 0 for kind in ("Q8_0", "Q4_K", "F16"))
