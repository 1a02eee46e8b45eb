"""What the release tests share."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TYPES = ("Q8_0", "Q4_0")


@dataclass(frozen=True)
class Done:
    """An ended child process."""

    code: int
    out: str
    err: str


def tree(directory: Path) -> dict[str, bytes]:
    """Every file below ``directory`` with its bytes."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def repeatable(files: dict[str, bytes]) -> dict[str, bytes]:
    """``files`` without what tells the time of a run: the reports, and their hashes wherever those are kept."""
    kept = {name: data for name, data in files.items() if not fnmatch(name, "*report-*.html")}
    for name, data in kept.items():
        if name.endswith("manifest.json"):
            document = json.loads(data)
            document["files"] = [entry for entry in document["files"] if entry["role"] != "report"]
            kept[name] = json.dumps(document).encode()
        elif name.endswith("SHA256SUMS"):
            lines = data.decode().splitlines()
            kept[name] = "\n".join(x for x in lines if not x.endswith((".html", "manifest.json"))).encode()
        elif b"manifest_sha256" in data and name.endswith(".json"):
            kept[name] = json.dumps({k: v for k, v in json.loads(data).items() if k != "manifest_sha256"}).encode()
    return kept
