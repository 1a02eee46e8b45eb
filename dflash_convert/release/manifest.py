"""``manifest.json`` and ``SHA256SUMS``: what a package holds, and the check that it still does.

The manifest (schema 1; every field in ``docs/schemas.md``)::

    {"schema": 1, "kind": "dflash-release", "tool": {"name", "version"}, "name": ..., "family": ..., "spec_type": ...,
     "block_size": 8, "n_max": 7, "p_min": null, "license": ..., "drafter": ORIGIN and "config_sha256" if known,
     "target": ORIGIN + {"files": {tokenizer file: SHA-256}}, "options": {...},
     "files": [{"path", "role", "size", "sha256", "type", "tensor_types", "converted_by",
                "head", "memory"}, ...],
     "validation": [{"file", "verdict", "n_max", "drafted", "accepted", "acceptance", "mean_length", "identical",
                     "prompts", "engine", "target", "thresholds", "gain", "speedup", "low", "high", "hardware"}, ...],
     "verification": [{"file", "tensors", "keys", "worst_snr_db", "worst_cosine", "fidelity"}, ...],
     "contests": [{"kind", "engine", "hardware", "rows"}, ...]}

``SHA256SUMS`` lists the manifest and every file, in the format of ``sha256sum -c``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_convert.errors import ConfigError, DflashError
from dflash_convert.hashing import sha256_of
from dflash_convert.jsonfile import defect, read_bounded
from dflash_convert.named_file import read_named
from dflash_convert.release.facts import found_by_llama_cpp, read_facts
from dflash_convert.system import kind_of_place

SCHEMA = 1
KIND = "dflash-release"
MANIFEST = "manifest.json"
SUMS = "SHA256SUMS"
CARD = "README.md"
# not at the top: there llama.cpp (common/download.cpp) takes a repository for nothing but its preset.ini
PRESET = "llama-server/preset.ini"
OLD_PRESET = "preset.ini"
ROLES = ("weights", "card", "preset", "report")
HOW = "make one with: dflash-convert package"
MAX_MANIFEST = 16 << 20  # bytes; a manifest of a hundred files is some 100 KB
HASH = re.compile(r"[0-9a-f]{64}")
# what Git, the Hub's client and llama.cpp leave in a downloaded repository
FOREIGN = (".gitattributes",)


@dataclass(frozen=True)
class Problem:
    """Something in a package that is not as its manifest says."""

    file: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}: {self.text}"


def to_text(document: Mapping[str, Any]) -> str:
    """JSON that every reader takes: ConfigError for NaN and the infinities, which are none."""
    try:
        return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    except ValueError:
        raise ConfigError(f"{MANIFEST}: a figure of the reports is not finite", tip="make the reports again") from None


def sums_text(document: Mapping[str, Any], manifest_sha256: str) -> str:
    """Lines of ``SHA256SUMS``, sorted by name."""
    hashes = {f["path"]: f["sha256"] for f in document["files"] if f["path"] != OLD_PRESET}
    hashes[MANIFEST] = manifest_sha256
    return "".join(f"{hashes[name]}  {name}\n" for name in sorted(hashes))


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a package; ConfigError when it is missing, too large, or not of this schema."""
    path = directory / MANIFEST
    if not path.exists():
        why = "there is no such directory"
        if directory.exists():
            kind = kind_of_place(directory) or "a file"
            why = f"it has no {MANIFEST}" if directory.is_dir() else f"it is {kind}, and a package is a directory"
        raise ConfigError(f"{directory} is not a package: {why}", tip=HOW)
    data = read_named(path, MAX_MANIFEST, "a package's manifest")
    try:
        document = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {defect(error)}", tip="package the files again") from None
    wrong = _defect(document)
    if wrong:
        raise ConfigError(f"{path}: {wrong}", tip="package the files again")
    return dict(document)


def _defect(document: Any) -> str | None:
    """What makes ``document`` something else than a manifest of this schema."""
    if not isinstance(document, dict) or document.get("kind") != KIND:
        return f"kind is not {KIND}"
    if document.get("schema") != SCHEMA:
        return f"schema is {document.get('schema')!r}, this version reads {SCHEMA}"
    files, runs = document.get("files"), document.get("validation")
    if not isinstance(files, list) or not isinstance(runs, list):
        return "files and validation must be lists"
    seen = set()
    for entry in files:
        path = entry.get("path") if isinstance(entry, dict) else None
        if not isinstance(path, str) or not (plain_name(path) or path == PRESET) or path in seen:
            return f"{path!r} is not a file name, or occurs twice"
        seen.add(path)
        size, digest = entry.get("size"), entry.get("sha256")
        if type(size) is not int or not isinstance(digest, str) or not HASH.fullmatch(digest):
            return f"{path} has no size or no SHA-256"
        if entry.get("role") not in ROLES:
            return f"{path} has the unknown role {entry.get('role')!r}"
    if not any(entry["role"] == "weights" for entry in files):
        return "it lists no weights"
    if not all(isinstance(run, dict) and isinstance(run.get("verdict"), str) for run in runs):
        return "a validation has no verdict"
    return None


def plain_name(name: str) -> bool:
    """A file name and nothing else: no folder, no way out of the package, nothing hidden, no Markdown."""
    return bool(name) and name.isprintable() and not name.startswith(".") and not set(name) & set("/\\:`|<>")


def verify_manifest(directory: Path) -> list[Problem]:
    """Re-hash a package and read its GGUFs again; every difference from the manifest, none when all is well.

    Raises :class:`ConfigError` when there is no readable manifest to verify against.
    """
    document = read_manifest(directory)
    options = document.get("options")
    beside = options.get("target_gguf") if isinstance(options, dict) else None  # the card says to put it there
    expected = {*(entry["path"] for entry in document["files"]), MANIFEST, SUMS, *FOREIGN, beside}
    folder = PRESET.split("/")[0]
    problems: list[Problem] = []
    for entry in document["files"]:
        problems += _file_problems(directory, entry, document)
    problems += _sums_problems(directory, document)
    for path in sorted((*directory.iterdir(), *(directory / folder).glob("*"))):
        name = path.relative_to(directory).as_posix()
        if name not in expected and not _hidden_folder(path) and not (name == folder and PRESET in expected):
            problems.append(Problem(name, "is not in the manifest"))
    return problems


def listed_problems(file: Path, package: Path) -> list[Problem]:
    """Is ``file`` what the manifest of ``package`` lists?  Converting the same inputs again must give these bytes."""
    document = read_manifest(package)
    entry = next((entry for entry in document["files"] if entry["path"] == file.name), None)
    if entry is None:
        return [Problem(file.name, f"is not in the manifest of {package}")]
    return _file_problems(file.parent, entry, document)


def _hidden_folder(path: Path) -> bool:
    return path.name in (".git", ".cache") and path.is_dir()


def _file_problems(directory: Path, entry: dict[str, Any], document: dict[str, Any]) -> list[Problem]:
    name = entry["path"]
    path = directory / name
    if not path.is_file():
        # earlier versions did not upload the preset, so a download lacks it
        return [] if name == OLD_PRESET and not path.exists() else [Problem(name, "is missing")]
    size = path.stat().st_size
    if size != entry["size"]:
        return [Problem(name, f"has {size} bytes, the manifest says {entry['size']}")]
    try:
        found = sha256_of(path)
    except OSError as error:
        return [Problem(name, f"cannot be read: {error.strerror}")]
    if found != entry["sha256"]:
        return [Problem(name, f"has SHA-256 {found}, the manifest says {entry['sha256']}")]
    return _gguf_problems(path, entry, document) if entry["role"] == "weights" else []


def _gguf_problems(path: Path, entry: dict[str, Any], document: dict[str, Any]) -> list[Problem]:
    """The bytes are those of the manifest; are they also a drafter of the kind that the manifest promises?"""
    try:
        facts = read_facts(path)
    except DflashError as error:
        return [Problem(path.name, str(error))]
    problems = []
    for what, said, found in (
        ("drafting method", document.get("spec_type"), facts.spec_type),
        ("block size", document.get("block_size"), facts.block_size),
        ("type", entry.get("type"), facts.file_type),
        ("tensor types", entry.get("tensor_types"), facts.tensor_types),
        ("head", entry.get("head"), facts.head.json() if facts.head and "head" in entry else None),
    ):
        if said != found:
            problems.append(Problem(path.name, f"its {what} is {found}, the manifest says {said}"))
    reason = found_by_llama_cpp(path.name, facts.variant.prefix)
    if reason:
        problems.append(Problem(path.name, f"llama.cpp does not find it: {reason}"))
    return problems


def _sums_problems(directory: Path, document: dict[str, Any]) -> list[Problem]:
    path = directory / SUMS
    if not path.is_file():
        return [Problem(SUMS, "is missing")]
    wanted = sums_text(document, sha256_of(directory / MANIFEST)).encode()
    try:
        same = read_bounded(path, len(wanted)) == wanted
    except ConfigError:  # longer
        same = False
    return [] if same else [Problem(SUMS, "does not agree with the manifest and its files")]
