"""What doctor says about the Hub, against one on loopback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fake_hub import FakeHub

TOKEN = "hf_thisIsASecretOfTheTest"
LAST = """
import dataclasses, json
from dflash_convert import doctor
print(json.dumps(dataclasses.asdict(doctor.hub(offline=False)[-1])))
"""


@pytest.mark.parametrize(
    ("status", "token", "severity", "value"),
    [
        (None, TOKEN, "warning", "no answer"),
        (200, TOKEN, "ok", "logged in"),
        (401, TOKEN, "warning", "the token is refused (status 401)"),
        (401, None, "note", "no token"),
    ],
)
def test_hub(tmp_path: Path, status: int | None, token: str | None, severity: str, value: str) -> None:
    """In a child process: huggingface_hub reads its environment when it is imported."""
    with FakeHub() as hub:
        if status is not None and status != 200:
            hub.fail["/api/whoami-v2"] = status
        more = {"HF_TOKEN": token} if token else {}
        if status is None:
            more["HF_ENDPOINT"] = "http://127.0.0.1:9"
        done = subprocess.run(
            [sys.executable, "-c", LAST], env=hub.environment(tmp_path, **more), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        last = json.loads(done.stdout)
        assert (last["severity"], last["value"]) == (severity, value)
        assert (last["cure"] is None) == (severity == "ok")
        assert TOKEN not in done.stdout + done.stderr
        assert all(request.token for request in hub.log if request.path == "/api/whoami-v2")
