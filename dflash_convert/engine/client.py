"""The few HTTP calls an engine answers, on the loopback interface and nowhere else."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any

HOST = "127.0.0.1"
HEALTH_TIMEOUT = 5.0
MAX_REPLY = 256 << 20


class RefusedError(Exception):
    """The engine answered, but with an error: ``status`` and its own words."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Client:
    """Requests to one engine. Raises OSError or HTTPException when it is gone, TimeoutError when it hangs,
    and :class:`RefusedError` when it answers with an error."""

    def __init__(self, port: int, api_key: str) -> None:
        self.port = port
        self._headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}

    def healthy(self) -> bool:
        """True once the models are loaded; False while they are, or while nobody listens."""
        try:
            self.call("GET", "/health", None, HEALTH_TIMEOUT)
        except (OSError, http.client.HTTPException, RefusedError):
            return False
        return True

    def call(self, method: str, path: str, body: Any, timeout: float) -> Any:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=timeout)
        try:
            payload = None if body is None else json.dumps(body).encode()
            connection.request(method, path, payload, self._headers)
            response = connection.getresponse()
            data = response.read(MAX_REPLY)
            if response.length:  # a sized read does not notice that the engine died in the middle
                raise http.client.IncompleteRead(data, response.length)
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise RefusedError(response.status, _error_text(data))
        try:
            return json.loads(data)
        except ValueError as error:
            raise RefusedError(response.status, f"a reply to {path} that is not JSON") from error


def _error_text(data: bytes) -> str:
    try:
        return str(json.loads(data)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return data[:200].decode(errors="replace")


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
