"""A worker process of :mod:`dflash_convert.encode.workers`."""

from __future__ import annotations

import socket

from dflash_convert.encode.pieces import piece_from_json
from dflash_convert.encode.rows import Encoders
from dflash_convert.processes import Json, serve


def main() -> None:
    encoders = Encoders()

    def work(task: Json, fds: dict[int, int]) -> Json:
        encoders.run(piece_from_json(task, fds))
        return {}

    serve(socket.socket(fileno=0), work)
