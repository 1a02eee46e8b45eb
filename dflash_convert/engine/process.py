"""One engine process: started under the guard, watched by its exit status and its log, stopped for good."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from dflash_convert.system import open_log, read_all

GUARD = Path(__file__).with_name("guard.py")
STOP_TIMEOUT = 8.0
SIGNAL_BASE = 128


class EngineProcess:
    """A running engine. Its stderr goes to a file, so that it never blocks and is there after a crash."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._log, self._reader, self._named = open_log("dflash-engine-")  # closed by stop()
        env = {**os.environ, "GGML_NO_BACKTRACE": "1", **environment}
        self._guard = subprocess.Popen(
            [sys.executable, "-S", "-E", str(GUARD), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            env=env,
            start_new_session=True,  # Ctrl-C reaches this program alone, which then stops the engine
        )
        self._final_log: str | None = None

    @property
    def status(self) -> int | None:
        """None while it runs, else its exit code, negative for a signal."""
        return _status(self._guard.poll())

    def wait(self, seconds: float) -> int | None:
        """The exit status, or None when it still runs after ``seconds``."""
        try:
            return _status(self._guard.wait(seconds))
        except subprocess.TimeoutExpired:
            return None

    def log(self, start: int = 0) -> str:
        """What it has written to stderr since byte ``start``."""
        if self._final_log is not None:
            return self._final_log.encode()[start:].decode(errors="replace")
        size = os.fstat(self._reader).st_size
        data = bytearray(max(size - start, 0))
        read_all(self._reader, memoryview(data), start)
        return data.decode(errors="replace")

    def log_size(self) -> int:
        return len(self._final_log.encode()) if self._final_log is not None else os.fstat(self._reader).st_size

    def stop(self) -> None:
        """End it and keep its log; harmless when it has ended already."""
        if self._final_log is not None:
            return
        if self._guard.stdin:
            self._guard.stdin.close()
        deadline = time.monotonic() + STOP_TIMEOUT
        if self.wait(max(deadline - time.monotonic(), 0)) is None:
            self._guard.kill()
            self._guard.wait()
        self._final_log = self.log()
        self._log.close()
        if self._named is not None:
            os.close(self._reader)
            self._named.unlink(missing_ok=True)


def _status(code: int | None) -> int | None:
    if code is not None and code > SIGNAL_BASE:
        return SIGNAL_BASE - code
    return code
