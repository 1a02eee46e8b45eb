"""A static finding about a pair, and the refusal that errors among them are in every command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dflash_convert.errors import PairingError
from dflash_convert.text import one_line

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

    def __str__(self) -> str:
        sides = [f"{who} {shown(value)}" for who, value in self._sides() if value is not None]
        return f"{self.name} ({', '.join(sides)})" if sides else self.name

    def _sides(self) -> tuple[tuple[str, Any], ...]:
        return ("drafter", self.drafter), ("target", self.target)

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


def shown(value: Any) -> str:
    """A finding's value as text on one line; names come from files that anyone may have written."""
    text = ", ".join(str(item) for item in value) if isinstance(value, (list, tuple)) else str(value)
    return one_line(text)


def errors_of(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity == "error"]


def refusal(findings: Sequence[Finding], drafter: str, target: str | None = None) -> PairingError | None:
    """The error that every command raises for such findings, the first one in full; None without an error."""
    wrong = errors_of(findings)
    if not wrong:
        return None
    names = [finding.name for finding in wrong[1:]]
    more = f"; also {', '.join(dict.fromkeys(names))}" if names else ""
    what = f"{drafter} cannot be run" if target is None else f"{drafter} and {target} do not belong together"
    return PairingError(f"{what}: {wrong[0]}{more}", tip=wrong[0].cure)


def findings_json(findings: Iterable[Finding]) -> dict[str, Any]:
    """The document of ``check --json``."""
    return {"findings": [finding.json() for finding in findings]}
