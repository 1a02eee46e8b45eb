"""The process of :class:`dflash_convert.verification.trial.Trial`."""

from __future__ import annotations

import socket

from dflash_convert.processes import serve
from dflash_convert.verification.trial import work


def main() -> None:
    serve(socket.socket(fileno=0), lambda task, _: work(task).json())
