"""config.json: as raw JSON, and as one of the families' own with fields replaced, up to the finished key list."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import FIXTURES, scratch

VALUES: tuple[Any, ...] = (None, True, False, 0, -1, 1, 2, 3, 7, 2**31 - 1, 2**32, 2**63, 2**70, 10**400, 0.5, -1e-5)
VALUES += (
    1e39,
    1e308,
    "",
    "x",
    "\x1b[31m",
    "\ud800",
    "sliding_attention",
    "full_attention",
    "yarn",
    "llama3",
    "linear",
)
VALUES += ([], [1], [-1], [2**40], [[1]], ["x"], [None], [0] * 64, {}, {"x": 1}, {"rope_type": "yarn", "factor": 0})


def fields(config: dict[str, Any]) -> list[tuple[str, ...]]:
    """Paths of all fields, two levels deep."""
    inner = [(k, kk) for k, v in config.items() if isinstance(v, dict) for kk in v]
    return [(k,) for k in config] + inner


def changed(config: dict[str, Any], data: bytes) -> dict[str, Any]:
    """Three bytes a change: which field, which value, and what to do with it."""
    result = json.loads(json.dumps(config))
    paths = fields(config)
    for at in range(0, len(data) - 2, 3):
        path = paths[data[at] % len(paths)]
        where = result if len(path) == 1 else result.get(path[0])
        if not isinstance(where, dict):
            continue
        if data[at + 2] % 8 == 0:
            where.pop(path[-1], None)
        elif data[at + 2] % 8 == 1:
            where[path[-1]] = [VALUES[data[at + 1] % len(VALUES)], data[at + 2]]
        elif data[at + 2] % 8 == 2:
            where[path[-1]] = data[at + 1]
        else:
            where[path[-1]] = VALUES[data[at + 1] % len(VALUES)]
    return result


def reader() -> Callable[[bytes], object]:
    import make_checkpoints

    from dflash_convert.checkpoint import Checkpoint, open_checkpoint
    from dflash_convert.container.writer import layout
    from dflash_convert.families.detect import describe
    from dflash_convert.jsonfile import parse_json, read_json
    from dflash_convert.plan import TypeOptions, plan_file
    from dflash_convert.target import Target

    root = scratch()
    cases: list[tuple[Checkpoint, dict[str, Any]]] = []
    for name, make in make_checkpoints.CASES.items():
        drafter, target = make_checkpoints.write_case(make(), root / name)
        cases.append((open_checkpoint(drafter), read_json(target / "config.json")))
    cases.append((open_checkpoint(FIXTURES / "drafter"), read_json(Path(FIXTURES / "target" / "config.json"))))

    def read(data: bytes) -> None:
        if len(data) < 3:
            return
        checkpoint, target = cases[data[1] % len(cases)]
        config = parse_json(data[2:], "config.json") if data[0] % 4 == 0 else changed(checkpoint.config, data[2:])
        if data[0] % 4 == 1:
            target = changed(target, data[2:])
            config = checkpoint.config
        found = describe(Checkpoint(checkpoint.directory, config, checkpoint.tensors), Target(target))
        plan = plan_file(found, "Q8_0", (), (), (), TypeOptions())
        layout(plan.keys, plan.entries)

    return read
