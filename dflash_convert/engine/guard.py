"""Run an engine so that it can never outlive the program that wants it.

``python guard.py COMMAND …``: the command runs as a child; when standard input closes, because the
owner closed it or died in any way, the child is ended. The exit status is the child's, 128 + N for signal N.
Standard library only: the file is run as a script.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

PATIENCE = 3.0  # seconds between asking a child to end and ending it


def main(command: list[str]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides, by closing the pipe
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
        return 127
    signal.signal(signal.SIGTERM, lambda *_: end(child))
    threading.Thread(target=watch, args=(child,), daemon=True).start()
    status = child.wait()
    return 128 - status if status < 0 else status


def watch(child: subprocess.Popen[bytes]) -> None:
    """Wait until the owner's end of the pipe is closed, then end the child."""
    while os.read(0, 1024):
        pass
    end(child)


def end(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        child.terminate()
    try:
        child.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        child.kill()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # the watching thread may still be reading
