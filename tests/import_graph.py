"""What every module of the package imports, when it is loaded and inside its functions, read from its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "dflash_convert"


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


PATHS = {name_of(path): path for folder in (PACKAGE, ROOT / "quant") for path in folder.rglob("*.py")}


@cache
def imports(module: str) -> tuple[frozenset[str], tuple[tuple[int, str], ...]]:
    """Names that a module imports when it is loaded, and (line, name) of those that wait in a function."""
    loaded, waiting = set(), []
    for node, inside in statements(ast.parse(PATHS[module].read_text("utf-8")).body):
        for name in names(node):
            if inside:
                waiting.append((node.lineno, name))
            else:
                loaded.add(name)
    return frozenset(loaded), tuple(waiting)


def statements(body: list[ast.stmt], inside: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node, inside
            continue
        deeper = inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for part in ("body", "orelse", "finalbody"):
            if part == "body" and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                continue
            yield from statements(getattr(node, part, []), deeper)
        for handler in getattr(node, "handlers", []):
            yield from statements(handler.body, deeper)


def names(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Modules, in full; a name out of a package may be a module of it."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    full = [f"{node.module}.{alias.name}" for alias in node.names]
    return [name if name in PATHS else str(node.module) for name in full]


@cache
def loads(module: str) -> frozenset[str]:
    """Everything that loading a module loads, as far as the package's own source tells."""
    found, left = set(), [module]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += imports(name)[0] if name in PATHS else ()
            left += [name.rpartition(".")[0]] if "." in name else ()
    return frozenset(found)
