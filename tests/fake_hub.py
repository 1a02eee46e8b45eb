"""A small Hub on loopback: serves repositories from memory, takes uploads, logs every request.

with FakeHub() as hub:
    hub.add("owner/name", {"config.json": b"{}"})
    env = hub.environment(tmp_path)      # HF_ENDPOINT, HF_HOME ... for a child process
    ...
    assert not [r for r in hub.log if r.path.endswith(".safetensors")]
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from loopback import Loopback


class Request(NamedTuple):
    method: str
    path: str
    status: int
    token: bool
    sent: int = 0


@dataclass
class Repo:
    """``gate`` is None or the status to refuse with (401, 403); ``refs`` maps names to commits."""

    files: dict[str, bytes]
    gate: int | None = None
    refs: dict[str, str] = field(default_factory=dict)
    private: bool = False
    history: dict[str, dict[str, bytes]] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)

    def commit(self) -> str:
        digest = hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()
        self.refs["main"] = digest
        self.history[digest] = dict(self.files)
        return digest


class FakeHub:
    """``log`` holds every request that was answered; ``break_after`` cuts downloads after so many bytes, once.

    A download of a file named in ``held`` sets the first event and begins when the second is set; parts of the file
    may be read before.  ``bodies`` and ``parts`` hold what comes instead of a file and of a part of it, ``sizes`` what
    the listing says instead of its size (None: nothing).
    """

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.log: list[Request] = []
        self.fail: dict[str, int] = {}
        self.break_after: int | None = None
        self.held: dict[str, tuple[threading.Event, threading.Event]] = {}
        self.bodies: dict[str, bytes] = {}
        self.parts: dict[str, bytes] = {}
        self.sizes: dict[str, int | None] = {}
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self._server = Loopback(Handler)

    @property
    def url(self) -> str:
        return self._server.url

    def add(self, name: str, files: dict[str, bytes], **options: Any) -> Repo:
        repo = Repo(dict(files), **options)
        repo.commit()
        self.repos[name] = repo
        return repo

    def add_directory(self, name: str, directory: Path, **options: Any) -> Repo:
        paths = (path for path in sorted(directory.rglob("*")) if path.is_file())
        return self.add(name, {str(path.relative_to(directory)): path.read_bytes() for path in paths}, **options)

    def environment(self, home: Path, **more: str) -> dict[str, str]:
        """For a child process: this Hub, an own cache, no token and no setting of the machine."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
        own = {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1"}
        return {**kept, **own, "HF_HUB_DISABLE_XET": "1", **more}

    def __enter__(self) -> FakeHub:
        self._server.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._server.__exit__(*error)


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """The log is ``hub.log``; nothing goes to stderr."""

    def do_HEAD(self) -> None:
        self._route()

    def do_GET(self) -> None:
        self._route()

    def do_POST(self) -> None:
        self._body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._route()

    do_PUT = do_POST  # noqa: N815

    def _route(self) -> None:
        path = unquote(urlsplit(self.path).path)
        parts = path.strip("/").split("/")
        if path in self.hub.fail:
            return self._send(self.hub.fail[path])
        if parts[:2] == ["api", "repos"]:
            return self._create()
        if parts[:2] == ["api", "validate-yaml"]:
            return self._send(200, {"errors": [], "warnings": []})
        if parts[:2] == ["api", "whoami-v2"]:
            return self._send(200, {"name": "tester", "type": "user", "orgs": []})
        if parts[:2] == ["api", "models"] and len(parts) >= 4:
            return self._api(self._repo("/".join(parts[2:4])), parts[4:], "/".join(parts[2:4]))
        if "resolve" in parts:
            at = parts.index("resolve")
            return self._file(self._repo("/".join(parts[:at])), parts[at + 1], "/".join(parts[at + 2 :]))
        return self._send(404)

    def _repo(self, name: str) -> Repo | None:
        return self.hub.repos.get(name)

    def _refused(self, repo: Repo | None) -> bool:
        if repo is None:
            self._send(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        elif repo.gate is not None:
            self._send(repo.gate, {"error": "gated"}, {"X-Error-Code": "GatedRepo"})
        elif repo.private and not self.headers.get("Authorization"):
            self._send(401, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        else:
            return False
        return True

    def _api(self, repo: Repo | None, rest: list[str], name: str) -> None:
        if self._refused(repo) or repo is None:
            return None
        verb = rest[0] if rest else "revision"
        revision = rest[1] if len(rest) > 1 else "main"
        commit = repo.refs.get(revision, revision)
        if verb == "preupload":
            files = json.loads(self._body)["files"]
            plan = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]
            return self._send(200, {"files": plan})
        if verb == "commit":
            return self._commit(repo, name)
        if commit not in repo.history:
            return self._send(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
        files = repo.history[commit]
        if verb == "tree":
            sizes = {k: self.hub.sizes.get(k, len(v)) for k, v in files.items()}
            listed: list[dict[str, Any]] = [{"type": "file", "path": k, "oid": _etag(v)} for k, v in files.items()]
            return self._send(200, [e if sizes[e["path"]] is None else e | {"size": sizes[e["path"]]} for e in listed])
        siblings = [{"rfilename": path} for path in files]
        return self._send(
            200, {"id": name, "modelId": name, "sha": commit, "siblings": siblings, "private": False, "tags": []}
        )

    def _create(self) -> None:
        ask = json.loads(self._body)
        name = f"{ask.get('organization') or 'tester'}/{ask['name']}"
        if name in self.hub.repos:
            return self._send(409, {"error": "exists", "url": f"{self.hub.url}/{name}"})
        self.hub.add(name, {}, private=bool(ask.get("private")))
        return self._send(200, {"url": f"{self.hub.url}/{name}", "name": name})

    def _commit(self, repo: Repo, name: str) -> None:
        for line in self._body.splitlines():
            item = json.loads(line)
            if item["key"] == "header":
                repo.commits.append(item["value"]["summary"])
            elif item["key"] == "file":
                repo.files[item["value"]["path"]] = base64.b64decode(item["value"]["content"])
            elif item["key"] == "deletedFile":
                repo.files.pop(item["value"]["path"], None)
        commit = repo.commit()
        url = f"{self.hub.url}/{name}/commit/{commit}"
        self._send(200, {"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""})

    def _file(self, repo: Repo | None, revision: str, name: str) -> None:
        if self._refused(repo) or repo is None:
            return None
        commit = repo.refs.get(revision, revision)
        if commit not in repo.history:
            return self._send(404, {}, {"X-Error-Code": "RevisionNotFound"})
        data = repo.history[commit].get(name)
        if data is None:
            return self._send(404, {}, {"X-Error-Code": "EntryNotFound"})
        headers = {"ETag": f'"{_etag(data)}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        start = self.headers.get("Range", "")
        if self.command == "GET" and name in self.hub.held and (not start or start.endswith("-")):
            asked, released = self.hub.held[name]
            asked.set()
            released.wait(120)
            refused = self.hub.fail.get(unquote(urlsplit(self.path).path))
            if refused is not None:
                return self._send(refused)
        instead = (self.hub.bodies if not start or start.endswith("-") else self.hub.parts).get(name)
        if self.command == "GET" and instead is not None:
            return self._send(206 if start else 200, instead, headers)
        if start.startswith("bytes="):
            first, _, last = start[6:].partition("-")
            end = min(int(last) + 1, len(data)) if last else len(data)
            headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(data)}"
            return self._send(206, data[int(first) : end], headers)
        return self._send(200, data, headers)

    def _send(self, status: int, body: object = None, headers: dict[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body if body is not None else {}).encode()
        path = unquote(urlsplit(self.path).path)
        sent = 0 if self.command == "HEAD" else len(data)
        self.hub.log.append(Request(self.command, path, status, bool(self.headers.get("Authorization")), sent))
        self.send_response(status)
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        for key, value in {"Content-Type": kind, "Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = self.hub.break_after
        if cut is not None and isinstance(body, bytes) and len(data) > cut:
            self.hub.break_after = None
            self.wfile.write(data[:cut])
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
            return
        self.wfile.write(data)


def _etag(data: bytes) -> str:
    return (
        hashlib.sha256(data).hexdigest()
        if len(data) > 100_000
        else hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    )
