"""Imports go downward only: the table of CONTRIBUTING.md, held against every module."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import sys
from pathlib import Path

from import_graph import PACKAGE, PATHS, ROOT, imports, loads, name_of


def layers() -> dict[str, int]:
    """First part of a module's name -> its layer, 0 at the top, from the table between the two markers."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split("<!-- layers -->")[1].split("<!-- end -->")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    return {name: number for number, row in enumerate(rows) for name in re.findall(r"`([\w.]+)`", row.split("|")[1])}


def imported(path: Path) -> set[str]:
    """Names, without the package's own, of its modules that a file imports while it is loaded."""
    names = [name for name in imports(name_of(path))[0] if name.startswith("dflash_convert.")]
    return {name.removeprefix("dflash_convert.") for name in names}


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


def libraries(module: str) -> set[str]:
    return {name.split(".")[0] for name in loads(module) if name not in PATHS} - sys.stdlib_module_names


def test_an_import_waits_in_a_function_for_a_reason() -> None:
    """It spares a library that its module has not loaded anyway, or a comment says what it is good for.

    Commands are apart: each waits for whatever its own --help can do without (tests/cli/test_lazy_imports.py).
    """
    idle = []
    for module, path in PATHS.items():
        source = path.read_text("utf-8").splitlines()
        for line, name in imports(module)[1] if not module.startswith("dflash_convert.cli") else ():
            said = any("#" in text for text in source[line - 3 : line])
            if not said and not libraries(name) - libraries(module):
                idle.append(f"{path.relative_to(ROOT)}:{line} {name}")
    assert not idle, idle


def test_benchmarks_name_what_there_is() -> None:
    """mypy does not read them, and nobody runs them every day."""
    lost = []
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("dflash_convert", "quant")):
                module = importlib.import_module(str(node.module))
                for name in (alias.name for alias in node.names):
                    if not hasattr(module, name) and importlib.util.find_spec(f"{node.module}.{name}") is None:
                        lost.append(f"{path.name}: {name}")
    assert not lost
