"""Imports go downward only: the table of CONTRIBUTING.md, held against every module."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "dflash_convert"


def layers() -> dict[str, int]:
    """First part of a module's name -> its layer, 0 at the top, from the table between the two markers."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split("<!-- layers -->")[1].split("<!-- end -->")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    return {name: number for number, row in enumerate(rows) for name in re.findall(r"`([\w.]+)`", row.split("|")[1])}


def imported(path: Path) -> set[str]:
    """Names, without the package's own, of its modules that a file imports while it is loaded."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dflash_convert":
            names = [alias.name for alias in node.names] if node.module == "dflash_convert" else [node.module or ""]
            found |= {name.removeprefix("dflash_convert.") for name in names}
    return found - {"__version__"}


def room(module: str, layer: dict[str, int]) -> str:
    """The part of a module's name that the table names: ``forks.dialects`` is apart from ``forks``."""
    two = ".".join(module.split(".")[:2])
    return two if two in layer else module.split(".")[0]


def test_every_module_has_a_layer_and_imports_downward() -> None:
    layer, wrong = layers(), []
    for path in sorted(PACKAGE.rglob("*.py")):
        own = room(".".join(path.relative_to(PACKAGE).with_suffix("").parts), layer)
        if own in ("__init__", "__main__"):
            continue
        others = [room(name, layer) for name in imported(path)]
        missing = {own, *others} - layer.keys()
        assert not missing, f"{missing} is missing from the layers in CONTRIBUTING.md"
        wrong += [f"{path.relative_to(PACKAGE)} -> {other}" for other in others if layer[other] < layer[own]]
    assert not wrong, wrong


def test_quant_and_container_know_nothing_of_drafters() -> None:
    for path in (ROOT / "quant").rglob("*.py"):
        assert "dflash_convert" not in path.read_text(encoding="utf-8"), path
    for path in (PACKAGE / "container").rglob("*.py"):
        assert {name.split(".")[0] for name in imported(path)} <= {"container", "errors", "output", "system", "text"}, (
            path
        )
