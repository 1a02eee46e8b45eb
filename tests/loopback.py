"""An HTTP server on loopback for tests, whose threads print nothing into the report of another test."""

from __future__ import annotations

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Loopback(ThreadingHTTPServer):
    """``with Loopback(Handler) as server``: serves until the block ends.

    A client that leaves in the middle, as one does that was interrupted, is no fault.  Any other error of a handler is
    raised where the block ends, unless the test has failed already.
    """

    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, ConnectionError):
            self._errors.append(error)

    def __enter__(self) -> Loopback:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()
        if self._errors and kind is None:
            raise self._errors[0]
