"""A static finding about a pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """One thing wrong with a pair: the value of either side (None when a side has none) and what to do.

    ``error``: llama.cpp refuses the pair, aborts, or drafts noise. ``warning``: it may work worse than it
    should, or another tool will not find the file.
    """

    name: str
    severity: Severity
    drafter: Any
    target: Any
    cure: str

    def json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "severity": self.severity,
            "drafter": self.drafter,
            "target": self.target,
            "cure": self.cure,
        }


def error(name: str, drafter: Any, target: Any, cure: str) -> Finding:
    return Finding(name, "error", drafter, target, cure)


def warning(name: str, drafter: Any, target: Any, cure: str) -> Finding:
    return Finding(name, "warning", drafter, target, cure)
