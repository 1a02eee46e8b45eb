"""Commands that run this program's own modules in a fresh interpreter.

``python -m`` and ``python -c`` look into the working directory first, which may be a stranger's checkpoint: the
children import from where this program was imported, and from nothing there.
"""

from __future__ import annotations

import sys
from pathlib import Path

BOOT = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; root = sys.argv.pop(1);"
    "root in sys.path or sys.path.insert(0, root); from {module} import main; main()"
)


def command(module: str, *arguments: str) -> list[str]:
    """A command line that calls ``main`` of ``dflash_convert.module`` with ``arguments`` in ``sys.argv``."""
    root = Path(__file__).resolve().parent.parent
    return [sys.executable, "-c", BOOT.format(module=f"dflash_convert.{module}"), str(root), *arguments]
