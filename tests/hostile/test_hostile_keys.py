"""GGUF files that keep the format and break its meaning: no key's value makes a command crash or speak twice."""

from __future__ import annotations

import contextlib
import io
import time
from pathlib import Path
from typing import Any

import pytest

from dflash_convert.cli import main
from dflash_convert.container.reader import Gguf, open_gguf
from dflash_convert.container.types import KV, ValueType, array, boolean, f32, string, u32, u64
from dflash_convert.container.writer import Entry, GgufOutput, layout

# what a key may be instead; every key of the drafter gets the first and a quarter of the others, of the target all
REMOVED, HUGE = None, u32("", 2**32 - 1)
OTHERS: tuple[KV | None, ...] = (
    u32("", 0),
    u32("", 2**31),
    u64("", 2**63),
    KV("", ValueType.INT32, -1),
    f32("", float("nan")),
    f32("", float("-inf")),
    string("", ""),
    string("", "\x1b[2Jx"),
    boolean("", True),
    array("", ValueType.UINT32, []),
    array("", ValueType.INT32, [-1, 2**31 - 1]),
    array("", ValueType.STRING, ["", "\x1b]0;x\x07"]),
    array("", ValueType.FLOAT32, [float("nan")]),
    array("", ValueType.BOOL, [True] * 5000),
    REMOVED,
)


def rewrite(source: Gguf, path: Path, name: str, value: KV | None) -> None:
    keys = [kv for kv in source.keys.values() if kv.name != name]
    if value is not None:
        keys.append(KV(name, value.type, value.value, value.item))
    entries = [Entry(t.name, t.shape, t.type) for t in source.tensors.values()]
    with GgufOutput(path, entries, layout(keys, entries), force=True) as out:
        for tensor in source.tensors:
            out.write_at(out.offset(tensor), source.data(tensor).tobytes())
        out.commit()


def run(args: list[Any]) -> tuple[int, str]:
    """Exit code, and everything printed."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main([str(a) for a in args])
    code = ended.value.code
    return code if isinstance(code, int) else 1, out.getvalue() + err.getvalue()


@pytest.fixture(scope="module")
def drafter(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "dflash-target-BF16.gguf"
    pair = fixtures / "tiny-js"
    code, text = run([pair / "drafter", "--target-model-dir", pair / "target", "-o", path, "-q"])
    assert code == 0, text
    return path


def commands(side: str, changed: Path, drafter: Path, pair: Path, out: Path) -> list[list[Any]]:
    target, gguf = pair / "target", pair / "target-bf16.gguf"
    memory = ["--memory", "--ctx-size", 4096, "--target-model-dir"]
    if side == "target":
        return [["inspect", changed], ["inspect", drafter, *memory, changed], ["check", drafter, changed]]
    return [
        ["inspect", changed, *memory, target],
        ["check", changed, gguf],
        ["verify", changed, pair / "drafter", "--target-model-dir", target],
        ["diff", changed, drafter],
        ["quantize", changed, out, "q4_0", "--force", "-q"],
        ["migrate", changed, out, "--force"],
    ]


@pytest.mark.parametrize("side", ["drafter", "target"])
def test_any_key_with_any_value(
    side: str, drafter: Path, fixtures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dflash_convert.engine.embedded.info", lambda: None)  # verify would start it each time
    pair = fixtures / "tiny-js"
    source = open_gguf(drafter if side == "drafter" else pair / "target-bf16.gguf")
    changed = tmp_path / "dflash-changed-BF16.gguf"
    bad: list[str] = []
    ran = 0
    for number, name in enumerate(source.keys):
        turns = OTHERS[number % 4 :: 4] if side == "drafter" else OTHERS
        for value in (HUGE, *turns):
            rewrite(source, changed, name, value)
            for args in commands(side, changed, drafter, pair, tmp_path / "out.gguf"):
                begin = time.process_time()
                code, text = run(args)
                ran += 1
                wrong = code not in (0, 2, 3, 4, 5, 9) or "unexpected" in text or "Traceback" in text or "\x1b" in text
                if wrong or time.process_time() - begin > 5:
                    bad.append(f"{args[0]} with {name} = {value}: exit {code}, {text[-200:]}")
    assert ran > 100
    assert not bad, "\n".join(bad)
