"""What pytest shows of a failure can always be read, whatever other threads do."""

from __future__ import annotations

import ast
import gc
import threading
import traceback
import urllib.request
from http.client import HTTPConnection, RemoteDisconnected
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from loopback import Loopback


def test_a_failure_is_shown_while_a_thread_shows_another() -> None:
    """As pytest and traceback do it, with Python code in every collection, as Hypothesis leaves it there."""
    text, over = Path(__file__).read_text("utf-8"), threading.Event()

    def show() -> None:
        while not over.is_set():
            try:
                [][1].x(2 + 3)
            except IndexError:
                traceback.format_exc()

    def collected(*_: object) -> None:
        sum(range(100))

    before = gc.get_threshold()
    gc.callbacks.append(collected)
    gc.set_threshold(50)
    thread = threading.Thread(target=show)
    thread.start()
    try:
        for _ in range(100):
            ast.parse(text)
    finally:
        over.set()
        thread.join()
        gc.set_threshold(*before)
        gc.callbacks.remove(collected)


class _Handler(BaseHTTPRequestHandler):
    left = threading.Event()

    def do_GET(self) -> None:
        if self.path == "/broken":
            raise ValueError("a fault of the fake")
        self.left.wait(60)
        self.wfile.write(bytes(10_000_000))

    def log_message(self, *_: object) -> None:
        pass


def test_a_client_that_leaves_is_no_fault(capfd: pytest.CaptureFixture[str]) -> None:
    over = threading.Event()

    class Watched(Loopback):
        def handle_error(self, *about: object) -> None:
            super().handle_error(*about)
            over.set()

    with Watched(_Handler) as server:
        connection = HTTPConnection("127.0.0.1", server.server_port)
        connection.request("GET", "/held")
        connection.close()
        _Handler.left.set()
        assert over.wait(60)
    assert capfd.readouterr() == ("", "")


def test_a_fault_of_a_fake_fails_its_test(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="a fault of the fake"), Loopback(_Handler) as server:  # noqa: SIM117
        with pytest.raises(RemoteDisconnected):
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{server.url}/broken")
    assert capfd.readouterr() == ("", "")
