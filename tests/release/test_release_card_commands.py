"""The card's commands run as they are written, and the preset names what is there."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from release_tools import ROOT

FAKE = ROOT / "tests" / "engine" / "fake_llama_server.py"
KEY = "a-key-of-the-test"


def commands(card: str) -> list[str]:
    return re.findall(r"```sh\n(.*?)```", card, re.DOTALL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_llama_server_command(package: Path, target_gguf: Path, tmp_path: Path) -> None:
    """The block is given to a shell unchanged; the server must load both files and draft seven tokens a step."""
    (package / target_gguf.name).symlink_to(target_gguf)
    port = free_port()
    (tmp_path / "bin").mkdir()
    record = tmp_path / "arguments"
    check = 'for file in "$2" "$4"; do test -f "$file" || exit 3; done; printf "%s\\n" "$@" > ' + f'"{record}"\n'
    run = f'exec "{sys.executable}" -S -E "{FAKE}" normal "$@" --port {port}\n'
    executable(tmp_path / "bin" / "llama-server", "#!/bin/sh\n" + check + run)
    command = commands((package / "README.md").read_text())[1]
    env = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "LLAMA_API_KEY": KEY}
    server = subprocess.Popen(
        ["sh", "-c", command], cwd=package, env=env, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        timings = complete(port, server)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.communicate()
    assert record.read_text().split() == [
        *("-m", "target-bf16.gguf", "-md", "dflash-tiny-js-Q8_0.gguf", "--spec-type", "draft-dflash"),
        *("--spec-draft-n-max", "7", "-fa", "on"),
    ]
    assert timings["draft_n"] == 7 * 10  # ten steps of the fake, seven drafts each
    assert timings["draft_n_accepted"] == 2 * 10


def complete(port: int, server: subprocess.Popen[bytes]) -> dict[str, int]:
    body = json.dumps({"prompt": "function", "n_predict": 31}).encode()
    headers = {"Authorization": f"Bearer {KEY}", "Content-Length": str(len(body))}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        try:
            request = urllib.request.Request(f"http://127.0.0.1:{port}/completion", body, headers)
            with opener.open(request, timeout=10) as reply:
                return dict(json.load(reply)["timings"])
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"the server did not answer: {server.poll()}")


def test_llama_cli_command(package: Path, target_gguf: Path, tmp_path: Path) -> None:
    (package / target_gguf.name).symlink_to(target_gguf)
    (tmp_path / "bin").mkdir()
    record = tmp_path / "arguments"
    executable(tmp_path / "bin" / "llama-cli", f'#!/bin/sh\nprintf "%s\\n" "$@" > "{record}"\n')
    *_, command = commands((package / "README.md").read_text())
    env = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", command], cwd=package, env=env, check=True)
    arguments = record.read_text().split()
    for option in ("-m", "-md"):
        assert (package / arguments[arguments.index(option) + 1]).is_file()


def test_every_code_block_is_known(package: Path) -> None:
    assert [c.split()[0] for c in commands((package / "README.md").read_text())] == ["hf", "llama-server", "llama-cli"]


@pytest.mark.engine
def test_the_packaged_drafter_runs(package: Path, target_gguf: Path, fixtures: Path) -> None:
    """The drafter of the package and its target in llama.cpp itself, with the card's own n-max."""
    pytest.importorskip("xllamacpp", reason="needs xllamacpp")
    from dflash_convert.validation.options import Options
    from dflash_convert.validation.run import prepare, validate

    drafter = package / "dflash-tiny-js-Q8_0.gguf"
    options = Options(drafter, target_gguf, fixtures / "tiny-js/prompts.jsonl", n_max=(7,), n_predict=32, quick=True)
    result = validate(prepare(options))
    assert result.verdict == "healthy"
    assert result.total.identical is True
    assert result.total.acceptance > 0.4
