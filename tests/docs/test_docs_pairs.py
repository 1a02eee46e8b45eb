"""The page on pairs names every finding that the rules have, with its severities, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "pairs.md").read_text(encoding="utf-8")


def names_in_code() -> set[str]:
    """First arguments of error(…), warning(…) and Finding(…); constants by their module's value."""
    found = set()
    for path in (ROOT / "dflash_convert" / "pairing").glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = {
            target.id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            called = node.func.id if isinstance(node.func, ast.Name) else ""
            if called in ("error", "warning", "found", "_findings"):
                found.update(_texts(node.args[0], constants))
    return found


def _texts(node: ast.expr, constants: dict[str, object]) -> set[str]:
    if isinstance(node, ast.Constant):
        return {str(node.value)}
    if isinstance(node, ast.Name) and node.id in constants:
        return {str(constants[node.id])}
    if isinstance(node, ast.JoinedStr):  # f"{kind}-token"
        return {"bos-token", "eos-token"}
    return set()


def test_every_finding_is_on_the_page() -> None:
    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)}
    assert listed == names_in_code()
    assert len(listed) > 50
