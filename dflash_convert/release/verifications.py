"""What a package keeps of ``verify --json`` documents: that nothing differs, and what quantization cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dflash_convert.errors import ConfigError, UsageError, VerificationError
from dflash_convert.jsonfile import parse_result
from dflash_convert.named_file import read_named
from dflash_convert.release.facts import DrafterFacts

HOW = "write it with: dflash-convert verify FILE.gguf DRAFTER --json > FILE.json"
MAX_REPORT = 64 << 20  # bytes; some hundred per tensor


def match_verifications(paths: Iterable[Path], files: Iterable[DrafterFacts]) -> dict[Path, dict[str, Any]]:
    """Each ``verify --json`` document beside the file it is about, by file name and tensor types.

    VerificationError when a verification did not pass, UsageError when one belongs to no file.
    """
    files = list(files)
    found: dict[Path, dict[str, Any]] = {}
    for path in paths:
        document = _read(path)
        if not document["passed"]:
            raise VerificationError(f"{path} says that {document['path']} differs from its source: it is not packaged")
        types = dict(Counter(tensor["type"] for tensor in document["tensors"]))
        name = Path(document["path"]).name
        owner = next((f.path for f in files if f.path.name == name and f.tensor_types == types), None)
        if owner is None or owner in found:
            why = "no file of this package" if owner is None else f"{name}, as another report is"
            raise UsageError(f"{path} is about {why}", tip="verify the packaged files and give each report once")
        found[owner] = document
    return found


def _read(path: Path) -> dict[str, Any]:
    document = parse_result(read_named(path, MAX_REPORT, "a verification report", HOW), path, HOW)
    try:
        tensors = document["tensors"]
        good = isinstance(document["passed"], bool) and isinstance(document["path"], str)
        if not good or not all(isinstance(t["type"], str) and "snr_db" in t and "cosine" in t for t in tensors):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{path} is not a verification report: its fields are not those of verify", tip=HOW) from None
    return dict(document)


def verification_summary(name: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest's entry: rounded, so that another machine's sums give the same text."""
    tensors = [t for t in document["tensors"] if t["snr_db"] is not None]
    forward = document.get("fidelity") or {}
    rows = forward.get("rows") or [{}]
    figures: tuple[str, ...] = ("cosine", "logit_distance")
    if forward.get("source_acceptance") is not None:  # drafts say something on the target's own text alone
        figures += ("agreement", "acceptance", "expected_loss")
    fidelity = {key: round(rows[0][key], 3) for key in figures if isinstance(rows[0].get(key), float)}
    return {
        "file": name,
        "tensors": len(document["tensors"]),
        "keys": document.get("keys_checked"),
        "worst_snr_db": round(min(t["snr_db"] for t in tensors), 1) if tensors else None,
        "worst_cosine": round(min(t["cosine"] for t in tensors), 4) if tensors else None,
        "fidelity": fidelity or None,
    }
