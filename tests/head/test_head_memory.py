"""The memory plan counts a drafter's own head, its map and its embeddings: bytes by hand, and where they are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from head_files import TARGET, Run

from dflash_convert.container.reader import Gguf
from dflash_convert.container.types import TensorType
from dflash_convert.engine import embedded, find, session
from dflash_convert.engine.trace import Launch
from dflash_convert.head.build import Head
from dflash_convert.memory.models import model_from_keys
from dflash_convert.memory.plan import Serving, plan_memory

HIDDEN, VOCAB, ROWS = 128, 512, 300
MIB = 1 << 20
IDS = np.arange(ROWS, dtype=np.int64)


def planned(run: Run, drafter: Path) -> dict[str, Any]:
    code, out, err = run("inspect", drafter, "--target-model-dir", TARGET, "--memory", "-c", 512, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)["memory"]["drafter"]
    return found


@pytest.mark.parametrize(
    ("head", "weights", "embeddings"),
    [
        (Head(IDS), ROWS * HIDDEN * 2 + ROWS * 8, 0),
        (Head(IDS, "Q8_0"), ROWS * HIDDEN // 32 * 34 + ROWS * 8, 0),
        (Head(None), VOCAB * HIDDEN * 2, 0),
        (Head(None, "Q4_0", True, "Q8_0"), VOCAB * HIDDEN // 32 * (18 + 34), VOCAB * HIDDEN // 32 * 34),
    ],
)
def test_bytes_by_hand(
    drafter: Gguf, make: Callable[..., Gguf], head: Head, weights: int, embeddings: int, run: Run
) -> None:
    borrowed, own = planned(run, drafter.path), planned(run, make(drafter, head).path)
    assert own["weights_mib"] == pytest.approx(borrowed["weights_mib"] + weights / MIB, abs=0.011)
    assert own["embeddings_host_mib"] == round(embeddings / MIB, 2)
    for name in ("kv_mib", "swa_kv_mib", "taps_host_mib"):
        assert own[name] == borrowed[name], name


def test_logits_of_a_reduced_head_are_held_beside_those_of_every_token() -> None:
    """Allocated by llama.cpp for 151,936 tokens, 64k of them kept: 425.76 MiB, then 595.09 as without."""
    keys = {"general.architecture": "dflash", "dflash.block_count": 1, "dflash.embedding_length": 256}
    keys |= {"dflash.attention.head_count": 4, "dflash.context_length": 4096}
    head = {"output.weight": ((65536, 256), TensorType.Q4_0), "d2t": ((65536,), TensorType.I64)}
    models = [model_from_keys(keys, tensors, vocab=151936) for tensors in ({}, head)]
    whole, reduced = (plan_memory(model, None, Serving(512)).drafter for model in models)
    assert reduced.weights == 65536 * 256 // 32 * 18 + 65536 * 8
    assert reduced.compute - whole.compute == 512 * 65536 * 4
    assert reduced.compute / MIB == pytest.approx(425.76, abs=1)
    assert reduced.compute + reduced.sampling == whole.compute + whole.sampling
    assert (reduced.compute + reduced.sampling) / MIB == pytest.approx(595.09, abs=1)


@pytest.mark.engine
@pytest.mark.skipif(embedded.installed() is None, reason="needs xllamacpp")
@pytest.mark.parametrize("head", [Head(IDS), Head(None, "Q4_0", True, "Q8_0")])
def test_weights_as_the_engine_loads_them(drafter: Gguf, make: Callable[..., Gguf], head: Head, run: Run) -> None:
    """What its log says of the buffers of the second model, which is the drafter."""
    made = make(drafter, head)
    launch = Launch(TARGET, made.path, "draft-dflash", n_max=7, ctx_size=512, threads=1)
    with session.start(find.choose(None, launch), launch) as engine:
        mapped = re.findall(r"load_tensors: +CPU_Mapped model buffer size = +([\d.]+) MiB", engine.log())
    assert float(mapped[-1]) == pytest.approx(planned(run, made.path)["weights_mib"], abs=0.02)
