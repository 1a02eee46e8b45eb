"""A Hub on loopback that takes uploads as the real one does: large files by LFS, small ones in the commit.

``order`` lists the files of each commit; ``refuse`` maps a file name to a status its commit is answered with;
``puts`` counts uploaded LFS objects.
"""

from __future__ import annotations

import base64
import hashlib
import json
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from loopback import Loopback

TOKEN = "hf_aSecretThatNoMessageMayHold"


class UploadHub:
    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}  # branch -> name -> bytes
        self.lfs: dict[str, bytes] = {}
        self.large: set[str] = set()
        self.order: list[list[str]] = []
        self.refuse: dict[str, int] = {}
        self.private: bool | None = None
        self.puts = 0
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = Loopback(handler)

    @property
    def url(self) -> str:
        return self._server.url

    def __enter__(self) -> UploadHub:
        self._server.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._server.__exit__(*error)


def blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: UploadHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.answer({"id": "a/b", "modelId": "a/b", "sha": "c" * 40, "siblings": [], "private": False, "tags": []})

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        oid = self.path.rsplit("/", 1)[-1]
        if hashlib.sha256(data).hexdigest() != oid:
            return self.answer({"error": "wrong bytes"}, 400)
        self.hub.puts += 1
        self.hub.lfs[oid] = data
        return self.answer({})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = unquote(urlsplit(self.path).path)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.answer({"error": "Invalid credentials"}, 401)
        branch = path.rsplit("/", 1)[-1]
        if path == "/api/repos/create":
            first = not self.hub.files
            self.hub.files.setdefault("main", {})
            ask = json.loads(body)  # newer clients ask by visibility
            self.hub.private = ask.get("private") is True or ask.get("visibility") == "private"
            return self.answer({"url": f"{self.hub.url}/a/b"}, 200 if first else 409)
        if "/branch/" in path:
            taken = branch in self.hub.files
            self.hub.files.setdefault(branch, dict(self.hub.files["main"]))
            return self.answer({}, 409 if taken else 200)
        if path.endswith("/info/lfs/objects/batch"):
            return self.answer(
                {"transfer": "basic", "objects": [self.lfs_action(o) for o in json.loads(body)["objects"]]}
            )
        if path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if "/preupload/" in path:
            return self.answer({"files": [self.mode(f) for f in json.loads(body)["files"]]})
        if "/paths-info/" in path:
            names = parse_qs(body.decode())["paths"]
            files = self.hub.files[branch]
            return self.answer([self.info(n, files[n]) for n in names if n in files])
        if "/commit/" in path:
            return self.commit(branch, body)
        return self.answer({"error": f"no {path} here"}, 404)

    def mode(self, file: dict[str, Any]) -> dict[str, Any]:
        large = file["path"].endswith(".gguf")
        if large:
            self.hub.large.add(file["path"])
        return {"path": file["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}

    def lfs_action(self, item: dict[str, Any]) -> dict[str, Any]:
        if item["oid"] in self.hub.lfs:
            return item
        return item | {"actions": {"upload": {"href": f"{self.hub.url}/store/{item['oid']}"}}}

    def info(self, name: str, data: bytes) -> dict[str, Any]:
        entry = {"type": "file", "path": name, "size": len(data), "oid": blob_id(data)}
        if name in self.hub.large:
            pointer = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            return entry | {"oid": "0" * 40, "lfs": pointer}
        return entry

    def commit(self, branch: str, body: bytes) -> None:
        names = []
        for line in body.splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "lfsFile":
                data = self.hub.lfs[value["oid"]]
            elif item["key"] == "file":
                data = base64.b64decode(value["content"])
            else:
                continue
            if value["path"] in self.hub.refuse:
                return self.answer({"error": "refused"}, self.hub.refuse[value["path"]])
            self.hub.files[branch][value["path"]] = data
            names.append(value["path"])
        self.hub.order.append(names)
        return self.answer({"commitOid": "c" * 40, "commitUrl": f"{self.hub.url}/a/b/commit/{'c' * 40}"})

    def answer(self, body: object, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
