"""Real processes that are killed, interrupted, limited, or in each other's way."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from portable_system import environment

KILLS = int(os.environ.get("DFLASH_KILLS", "10"))
COMMAND = [sys.executable, "-m", "dflash_convert"]
FORCED = ("--force-pair",)  # the larger drafter is wider than the bundled target
HIDDEN, FFN, LAYERS = 384, 1024, 8


@pytest.fixture(scope="session")
def drafter(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter of the bundled one's kind, 30 MB: long enough in the writing to be caught at it."""
    directory = tmp_path_factory.mktemp("larger") / "drafter"
    directory.mkdir()
    config = json.loads((fixtures / "tiny-js" / "drafter" / "config.json").read_text("utf-8"))
    config |= {"hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": LAYERS, "layer_types": None}
    config |= {"head_dim": 64, "num_attention_heads": 6, "num_key_value_heads": 2}
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (HIDDEN, 3 * HIDDEN)}
    shapes |= {"hidden_norm.weight": (HIDDEN,), "norm.weight": (HIDDEN,)}
    for i in range(LAYERS):
        layer: dict[str, tuple[int, ...]] = {
            "input_layernorm": (HIDDEN,),
            "post_attention_layernorm": (HIDDEN,),
            "self_attn.q_proj": (384, HIDDEN),
            "self_attn.k_proj": (128, HIDDEN),
            "self_attn.v_proj": (128, HIDDEN),
            "self_attn.o_proj": (HIDDEN, 384),
            "self_attn.q_norm": (64,),
            "self_attn.k_norm": (64,),
            "mlp.gate_proj": (FFN, HIDDEN),
            "mlp.up_proj": (FFN, HIDDEN),
            "mlp.down_proj": (HIDDEN, FFN),
        }
        shapes |= {f"layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    noise = np.random.default_rng(1).standard_normal(at // 2, dtype=np.float32) * np.float32(0.02)
    text = json.dumps(header).encode()
    data = (noise.view(np.uint32) >> 16).astype("<u2").tobytes()
    (directory / "config.json").write_text(json.dumps(config), "utf-8")
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return directory


@pytest.fixture
def command(drafter: Path, fixtures: Path) -> list[str]:
    """A conversion with worker processes; the output's name comes last."""
    target = str(fixtures / "tiny-js" / "target")
    return [*COMMAND, str(drafter), "--target-model-dir", target, *FORCED, "-t", "q8_0", "--threads", "2", "-q", "-o"]


@pytest.fixture(scope="session")
def expected(drafter: Path, fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, float]:
    """SHA-256 of the complete file and the seconds a run takes."""
    path = tmp_path_factory.mktemp("expected") / "x.gguf"
    target = str(fixtures / "tiny-js" / "target")
    begin = time.monotonic()
    args = [str(drafter), "--target-model-dir", target, *FORCED, "-t", "q8_0", "--threads", "2", "-q", "-o", str(path)]
    subprocess.run([*COMMAND, *args], check=True, stdout=subprocess.DEVNULL)
    return sha256(path), time.monotonic() - begin


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def names(directory: Path) -> list[str]:
    return sorted(p.name for p in directory.iterdir())


def workers_of(directory: Path) -> list[int]:
    """Processes that hold a file of ``directory`` open (Linux)."""
    processes = [int(process.name) for process in Path("/proc").glob("[0-9]*")]
    return [process for process in processes if process != os.getpid() and holds(process, directory)]


def holds(process: int, directory: Path) -> bool:
    with contextlib.suppress(OSError):  # it has ended meanwhile
        return any(str(fd.readlink()).startswith(str(directory)) for fd in Path(f"/proc/{process}/fd").iterdir())
    return False


def nobody_left(directory: Path, patience: float = 60) -> bool:
    deadline = time.monotonic() + patience
    while workers_of(directory):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("portable", [False, True], ids=["Linux", "Windows"])
def test_kill_at_random_moments(
    portable: bool,
    command: list[str],
    expected: tuple[str, float],
    tmp_path_factory: pytest.TempPathFactory,
    count: Callable[[str, int], None],
) -> None:
    """kill -9: the output is absent, the old file or a complete new one, and no worker outlives its parent."""
    tmp_path = tmp_path_factory.mktemp("outputs")
    env = environment(tmp_path_factory.mktemp("site")) if portable else None
    digest, seconds = expected
    output = tmp_path / "x.gguf"
    dice = random.Random(20)
    killed = finished = stray = 0
    for number in range(KILLS):
        old = number % 2 == 1
        if old:
            output.write_bytes(b"the old file")
        process = subprocess.Popen([*command, str(output), "--force"], stdout=subprocess.DEVNULL, env=env)
        if number % 3 == 0:
            time.sleep(dice.uniform(0.2, 1.0) * seconds)
        else:  # from the moment the output is open to the moment it is published
            while not holds(process.pid, tmp_path) and process.poll() is None:
                time.sleep(0.002)
            time.sleep(dice.uniform(0, 0.1) * seconds)
        process.kill()
        status = process.wait()
        killed += status == -signal.SIGKILL
        finished += status == 0
        if status == 0:  # the machine is quicker than it was: the next kill has to come sooner
            seconds *= 0.8
        left = names(tmp_path)
        hidden = [name for name in left if name.startswith(".")]
        stray += len(hidden)
        assert len(hidden) <= 1
        assert set(left) - set(hidden) <= {"x.gguf"}
        if output.exists():
            assert sha256(output) == digest or (old and status != 0 and output.read_bytes() == b"the old file")
        else:
            assert not old
            assert status != 0
        assert nobody_left(tmp_path), "a worker outlived its parent"
        output.unlink(missing_ok=True)
    assert killed > KILLS // 3
    subprocess.run([*command, str(output), "--force"], check=True, stdout=subprocess.DEVNULL, env=env)
    assert names(tmp_path) == ["x.gguf"]  # the next run sweeps what a kill between link and rename leaves
    assert sha256(output) == digest
    count("conversions killed", killed)
    count("conversions finished before the kill", finished)
    count("hidden files left and swept", stray)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_interrupted(how: signal.Signals, command: list[str], tmp_path: Path) -> None:
    output, slow = tmp_path / "x.gguf", ["q4_k_m" if word == "q8_0" else word for word in command]
    for _ in range(20):  # a conversion may be faster than the signal
        process = subprocess.Popen(
            [*slow, str(output)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        while not holds(process.pid, tmp_path) and process.poll() is None:
            time.sleep(0.001)
        if process.poll() is None:
            os.killpg(process.pid, how)  # as a terminal does: the whole group
        _, err = process.communicate(timeout=60)
        if process.returncode:
            break
        output.unlink()
    assert process.returncode in (130 if how is signal.SIGINT else -how, -how)  # to a shell, -SIGINT is 130 too
    assert "Traceback" not in err
    assert names(tmp_path) == []
    assert nobody_left(tmp_path)


def run(args: list[str], **given: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(args, capture_output=True, text=True, check=False, timeout=60, **given)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_file_size_limit(share: float, command: list[str], tmp_path: Path, drafter: Path) -> None:
    limit = int(share * (drafter / "model.safetensors").stat().st_size * 0.3)

    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done = run([*command, str(tmp_path / "x.gguf")], preexec_fn=lower)
    assert (done.returncode, names(tmp_path)) == (9, [])
    assert "x.gguf cannot be written: File too large" in done.stderr
    assert "ulimit -f" in done.stderr


def test_read_only_directory(unprivileged: Callable[[], None], fixtures: Path, tmp_path: Path) -> None:
    """Told in one sentence, before the work."""
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0o555)
    pair = fixtures / "tiny-js"
    args = [str(pair / "drafter"), "--target-model-dir", str(pair / "target"), "-o", str(closed / "x.gguf")]
    done = run([*COMMAND, *args], preexec_fn=unprivileged)
    assert (done.returncode, names(closed)) == (9, [])
    assert "cannot be written: Permission denied" in done.stderr
    assert "TIP" in done.stderr
    closed.chmod(0o755)  # the same call succeeds where writing is allowed
    assert run([*COMMAND, *args], preexec_fn=unprivileged).returncode == 0


@pytest.mark.parametrize("place", ["/proc", "/dev/full", "/dev/null", "/dev/null/x.gguf"])
def test_places_that_take_no_files(place: str, command: list[str]) -> None:
    path = Path(place) / "x.gguf" if place == "/proc" else Path(place)
    if not Path(place.removesuffix("/x.gguf")).exists():
        pytest.skip(f"no {place} here")
    before = Path("/dev/null").stat()
    done = run([*command, str(path), "--force"])
    assert done.returncode == 9
    assert done.stderr.startswith("ERROR ")
    assert "Traceback" not in done.stderr
    assert Path("/dev/null").stat().st_ino == before.st_ino  # a device is not replaced by a file


@pytest.mark.parametrize("force", [False, True], ids=["plain", "force"])
def test_two_runs_on_one_output(force: bool, command: list[str], expected: tuple[str, float], tmp_path: Path) -> None:
    output = tmp_path / "x.gguf"
    line = [*command, str(output), *(["--force"] if force else [])]
    both = [subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate(timeout=60)[1] for process in both]
    codes = sorted(process.returncode for process in both)
    assert codes == ([0, 0] if force else [0, 9]), errors
    assert force or any("exists already" in text for text in errors)
    assert names(tmp_path) == ["x.gguf"]
    assert sha256(output) == expected[0]


def test_a_worker_that_dies_is_an_error(command: list[str], tmp_path: Path) -> None:
    """The workers' interpreter imports a sitecustomize that ends them at their first write."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import os, sys\nif 'dflash_convert.encode.worker' in str(sys.orig_argv): os.pwrite = lambda *a: os._exit(77)\n"
    )
    out = tmp_path / "out"
    out.mkdir()
    done = run([*command, str(out / "x.gguf")], env={**os.environ, "PYTHONPATH": str(site)})
    assert (done.returncode, names(out)) == (1, [])
    assert "a worker process ended unexpectedly (exit status 77)" in done.stderr


@pytest.mark.parametrize(("call", "code"), [("pwrite", 9), ("preadv", 3)])
def test_an_error_inside_a_worker_is_the_programs(call: str, code: int, command: list[str], tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import errno, os, sys\n"
        "def fail(*a): raise OSError(errno.EIO, os.strerror(errno.EIO))\n"
        f"if 'dflash_convert.encode.worker' in str(sys.orig_argv): os.{call} = fail\n"
    )
    out = tmp_path / "out"
    out.mkdir()
    done = run([*command, str(out / "x.gguf")], env={**os.environ, "PYTHONPATH": str(site)})
    assert (done.returncode, names(out)) == (code, [])
    assert "Input/output error" in done.stderr
    assert "Traceback" not in done.stderr
