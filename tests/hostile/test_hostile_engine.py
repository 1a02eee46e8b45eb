"""Model files that crash llama.cpp, or lie to it: only the child dies, the verdict says so, nothing is left running."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_convert.container.reader import open_gguf
from dflash_convert.container.types import KV, ValueType, array, u32
from dflash_convert.container.writer import Entry, GgufOutput, layout
from dflash_convert.engine import find
from dflash_convert.engine.failures import EngineRunError
from dflash_convert.engine.session import start
from dflash_convert.engine.trace import Launch, Request

pytestmark = pytest.mark.engine
pytest.importorskip("xllamacpp")

Change = Callable[[dict[str, KV]], None]


def rewritten(source: Path, path: Path, change: Change) -> Path:
    """The bundled target with other keys: a well-formed GGUF with ill-chosen contents."""
    gguf = open_gguf(source)
    keys = dict(gguf.keys)
    change(keys)
    entries = [Entry(t.name, t.shape, t.type) for t in gguf.tensors.values()]
    with GgufOutput(path, entries, layout(list(keys.values()), entries)) as out:
        for name in gguf.tensors:
            out.write_at(out.offset(name), gguf.data(name).tobytes())
        out.commit()
    return path


def same_text_for_all(keys: dict[str, KV]) -> None:
    tokens = keys["tokenizer.ggml.tokens"]
    keys[tokens.name] = array(tokens.name, ValueType.STRING, ["x"] * len(tokens.value))


def no_heads(keys: dict[str, KV]) -> None:
    keys["qwen3.attention.head_count"] = u32("qwen3.attention.head_count", 0)


def many_layers(keys: dict[str, KV]) -> None:
    keys["qwen3.block_count"] = u32("qwen3.block_count", 2**31)


def few_types(keys: dict[str, KV]) -> None:
    keys["tokenizer.ggml.token_type"] = array("tokenizer.ggml.token_type", ValueType.INT32, [1])


@pytest.mark.parametrize("change", [same_text_for_all, no_heads, many_layers, few_types], ids=lambda c: c.__name__)
def test_a_hostile_model_kills_only_the_child(change: Change, fixtures: Path, tmp_path: Path) -> None:
    model = rewritten(fixtures / "tiny-js" / "target-bf16.gguf", tmp_path / "x.gguf", change)
    engine = find.choose(None, None, {"PATH": ""})
    with (
        pytest.raises(EngineRunError) as caught,
        start(engine, Launch(model, ctx_size=64, start_timeout=30)) as session,
    ):
        session.complete(Request("let x", 4))
    assert caught.value.exit_code == 7
    with start(engine, Launch(fixtures / "tiny-js" / "target-bf16.gguf", ctx_size=64)) as session:
        assert session.complete(Request("let x", 4)).generated == 4  # this program is unharmed


def test_validate_ends_in_one_sentence(fixtures: Path, tmp_path: Path) -> None:
    tiny = fixtures / "tiny-js"
    model = rewritten(tiny / "target-bf16.gguf", tmp_path / "x.gguf", same_text_for_all)
    run = [sys.executable, "-m", "dflash_convert"]
    drafter = tmp_path / "d.gguf"
    convert = [*run, str(tiny / "drafter"), "--target-model-dir", str(tiny / "target"), "-q", "-o", str(drafter)]
    subprocess.run(convert, check=True, stdout=subprocess.DEVNULL)
    args = [
        *run,
        "validate",
        "--force-pair",
        str(drafter),
        str(model),
        "--prompts",
        str(tiny / "prompts.jsonl"),
        "--quick",
    ]
    done = subprocess.run(
        args, capture_output=True, text=True, check=False, timeout=120, env={**os.environ, "PATH": ""}
    )
    assert done.returncode == 7, done.stderr + done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads the listeners from /proc")
def test_the_listener_is_on_loopback_with_a_key(fixtures: Path) -> None:
    """Bound to 127.0.0.1 alone; requests without the key, or with another, are refused."""
    import http.client

    with start(
        find.choose(None, None, {"PATH": ""}), Launch(fixtures / "tiny-js" / "target-bf16.gguf", ctx_size=64)
    ) as s:
        port = s._client.port
        rows = [line.split() for name in ("tcp", "tcp6") for line in _lines(Path("/proc/net") / name)]
        listeners = {row[1].split(":")[0] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == port}
        assert listeners == {"0100007F"}
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("POST", "/completion", json.dumps({"prompt": "x"}), headers)
            assert connection.getresponse().status == 401
            connection.close()
    deadline = time.monotonic() + 60
    while _listens(port):
        assert time.monotonic() < deadline, "the listener outlived its session"
        time.sleep(0.05)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()[1:] if path.exists() else []


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_key_is_in_no_command_line(fixtures: Path) -> None:
    """It travels in the environment: other users can read a command line, not an environment."""
    with start(
        find.choose(None, None, {"PATH": ""}), Launch(fixtures / "tiny-js" / "target-bf16.gguf", ctx_size=64)
    ) as s:
        key = s._client._headers["Authorization"].removeprefix("Bearer ")
        assert len(key) >= 32
        lines = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                lines.append(path.read_bytes())
            except OSError:
                continue
        assert lines
        assert not any(key.encode() in line for line in lines)
