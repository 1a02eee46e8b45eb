"""A worker process of :mod:`dflash_convert.encode.workers`."""

from __future__ import annotations

import socket

from dflash_convert.encode.rows import Encoders
from dflash_convert.processes import serve


def main() -> None:
    with Encoders() as encoders:
        serve(socket.socket(fileno=0), encoders.work)
