"""Workers that another thread closes while their exchange begins."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from dflash_convert.errors import DflashError
from dflash_convert.processes import Workers


def test_closed_while_an_exchange_begins_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers("encode.worker", 1)

    class Closing(threading.Thread):
        """Its first start, that of the tasks' thread, comes after a close."""

        def start(self) -> None:
            workers.close()
            super().start()

    seen: list[Any] = []

    def exchange() -> None:
        try:
            workers.exchange([{}], [], lambda *_: None)
        except (DflashError, ValueError) as error:
            seen.append(error)

    thread = threading.Thread(target=exchange, daemon=True)
    monkeypatch.setattr("dflash_convert.processes.threading.Thread", Closing)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert len(seen) == 1
