"""A worker process of :mod:`dflash_convert.verification.compare`."""

from __future__ import annotations

import socket

from dflash_convert.encode.pieces import piece_from_json
from dflash_convert.processes import Json, serve
from dflash_convert.verification.compare import Comparer


def main() -> None:
    comparer = Comparer()

    def work(task: Json, fds: dict[int, int]) -> Json:
        return comparer.run(piece_from_json(task, fds)).json()

    serve(socket.socket(fileno=0), work)
