"""A worker process of :mod:`dflash_convert.encode.workers`."""

from __future__ import annotations

import json
import socket
from typing import Any

from dflash_convert.encode.jobs import job_from_json
from dflash_convert.encode.rows import Encoders
from dflash_convert.errors import DflashError

MAX_FDS = 250  # that one message can carry


def work(link: socket.socket) -> None:
    """A worker's life: the outputs, then one JSON job a line, one JSON reply a line, until the parent is gone."""
    message, received, _, _ = socket.recv_fds(link, 1 << 16, MAX_FDS)
    if not message:
        return
    fds = dict(zip(json.loads(message), received, strict=True))
    encoders = Encoders()
    try:
        link.sendall(b"{}\n")
        for line in link.makefile(encoding="utf-8"):
            reply: dict[str, Any] = {}
            try:
                encoders.run(job_from_json(json.loads(line), fds))
            except DflashError as error:
                reply = {"error": type(error).__name__, "message": str(error), "tip": error.tip}
            link.sendall((json.dumps(reply) + "\n").encode())
    except OSError:  # the parent was killed: there is nobody to tell
        return


def main() -> None:
    work(socket.socket(fileno=0))
