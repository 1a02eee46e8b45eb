"""The embedded engine as a process: it answers, it reports itself, and it never outlives its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dflash_convert.engine import embedded, failures, find
from dflash_convert.engine.failures import EngineRunError
from dflash_convert.engine.session import start
from dflash_convert.engine.trace import Launch, Request

pytestmark = pytest.mark.engine
pytest.importorskip("xllamacpp")

ROOT = Path(__file__).resolve().parents[2]
OWNER = """
import sys
from pathlib import Path
from dflash_convert.engine.find import choose
from dflash_convert.engine.session import start
from dflash_convert.engine.trace import Launch
with start(choose(None, None, {"PATH": ""}), Launch(Path(sys.argv[1]), ctx_size=256)) as session:
    sys.stdout.write(f"{session._process._guard.pid}\\n")
    sys.stdout.flush()
    sys.stdin.read()
"""


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture
def target(fixtures: Path) -> Path:
    return fixtures / "tiny-js" / "target-bf16.gguf"


def test_it_reports_itself() -> None:
    (info,) = find.find_engines(None, {"PATH": ""})
    assert info.kind == "embedded"
    assert info.problem is None
    assert info.build == f"xllamacpp {embedded.installed()}"
    assert {"draft-dflash", "draft-dspark", "draft-eagle3"} <= set(info.spec_types)
    assert any(device.startswith("CPU") for device in info.devices)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="reads process ids from /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_orphan(target: Path, how: signal.Signals) -> None:
    def undo_ignored() -> None:  # a test run in the background ignores SIGINT, and children inherit that
        if how is signal.SIGINT:
            signal.signal(how, signal.SIG_DFL)

    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(target)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=undo_ignored,
    ) as owner:
        assert owner.stdout is not None
        guard = int(owner.stdout.readline())
        (engine,) = children(guard)
        assert not ended(engine)
        owner.send_signal(how)
        owner.wait(60)
    deadline = time.monotonic() + 60
    while not (ended(engine) and ended(guard)):
        assert time.monotonic() < deadline, "the engine outlived its owner"
        time.sleep(0.02)


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    junk = tmp_path / "junk.gguf"
    junk.write_bytes(b"junk")
    with (
        pytest.raises(EngineRunError, match="not a GGUF") as caught,
        start(find.choose(None, None, {"PATH": ""}), Launch(junk)),
    ):
        pass
    assert caught.value.kind == failures.LOAD


def test_a_prompt_longer_than_the_context(target: Path) -> None:
    with start(find.choose(None, None, {"PATH": ""}), Launch(target, ctx_size=64)) as session:
        with pytest.raises(EngineRunError, match="exceeds the available context size") as caught:
            session.complete(Request("function f(a) {\n" * 50, 8))
        assert caught.value.kind == failures.REQUEST
        assert "--ctx-size" in str(caught.value.tip)
        assert session.complete(Request("function f(a) {\n", 8)).generated == 8


def test_killed_from_outside(target: Path) -> None:
    with start(find.choose(None, None, {"PATH": ""}), Launch(target, ctx_size=256)) as session:
        session.complete(Request("let x", 8))
        (engine,) = children(session._process._guard.pid)
        os.kill(engine, signal.SIGKILL)
        with pytest.raises(EngineRunError, match="killed from outside") as caught:
            session.complete(Request("let x", 8))
    assert caught.value.kind == failures.OUT_OF_MEMORY


def test_it_takes_the_settings_that_it_says_it_has(target: Path, tiny_drafter: Path) -> None:
    """Forced acceptance tells that they arrive: three tokens a step, whatever the drafter says."""
    (info,) = find.find_engines(None, {"PATH": ""})
    assert {"spec-draft-type-k", "spec-draft-backend-sampling", "backend-sampling", "threads"} <= set(info.options)
    every = (
        *(("spec-draft-type-k", "q8_0"), ("spec-draft-type-v", "q8_0"), ("spec-draft-ngl", "0")),
        *(("spec-draft-backend-sampling", "false"), ("backend-sampling", "true"), ("threads", "1")),
        ("spec-synth-len", "3"),
    )
    launch = Launch(target, tiny_drafter, "draft-dflash", n_max=7, settings=every)
    with start(info, launch) as session:
        forced = session.complete(Request("function", 512, ignore_eos=True))
        log = session.log()
    assert 2.5 < forced.mean_length < 3.5
    assert "synthetic acceptance: n_max = 7, mean length = 3.0" in log
    assert "K (q8_0)" in log
