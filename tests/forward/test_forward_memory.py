"""The memory plan against what llama.cpp itself says it allocates."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_convert.container.reader import open_gguf
from dflash_convert.container.types import ValueType, array, u32
from dflash_convert.drafter import Description
from dflash_convert.engine import embedded, session
from dflash_convert.engine.trace import Launch
from dflash_convert.forward.load import DrafterSource
from dflash_convert.memory.models import model_from_keys
from dflash_convert.memory.plan import MIB, Model, Serving, plan_memory

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(embedded.installed() is None, reason="needs xllamacpp"),
]

CACHE = re.compile(r"llama_kv_cache: size = +([\d.]+) MiB \( *(\d+) cells, +(\d+) layers")
WINDOW = [
    u32("dflash.attention.sliding_window", 200),
    array("dflash.attention.sliding_window_pattern", ValueType.BOOL, [True, False, True]),
]


def model(path: Path) -> Model:
    file = open_gguf(path)
    tensors = {t.name: (t.shape, t.type) for t in file.tensors.values()}
    return model_from_keys({name: kv.value for name, kv in file.keys.items()}, tensors)


@pytest.mark.parametrize("ctx_size", [512, 1000, 4096])
def test_caches_are_what_the_engine_allocates(
    ctx_size: int, source: DrafterSource, description: Description, write_pair: Callable[..., tuple[Path, Path]]
) -> None:
    target, drafter = write_pair([*description.keys, *description.late_keys, *WINDOW], source.weights)
    plan = plan_memory(model(drafter), model(target), Serving(ctx_size, parallel=1))
    assert plan.target is not None
    info = embedded.info()
    assert info is not None
    launch = Launch(target, drafter, n_max=7, ctx_size=ctx_size, threads=1)
    with session.start(info, launch) as engine:
        log = engine.log()
    allocated = {(float(size), int(layers)) for size, _, layers in CACHE.findall(log)}
    assert allocated == {
        (round(plan.target.kv / MIB, 2), 6),
        (round(plan.drafter.kv / MIB, 2), 1),
        (round(plan.drafter.window_kv / MIB, 2), 2),
    }
