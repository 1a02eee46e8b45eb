"""What the harnesses share: a scratch directory in memory, and the rule that only the project's errors may escape.

Builders of files come from ``fixtures/``, which ``make fuzz`` puts on PYTHONPATH.
"""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "fixtures" / "tiny-js"


def scratch() -> Path:
    """An empty directory, in memory where the system offers it; removed at the end."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="dflash-fuzz-", dir=memory if memory.is_dir() else None))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def guarded(read: Callable[[bytes], object]) -> Callable[[bytes], None]:
    """``read`` with the project's own errors caught, as the command line does; all others are finds."""
    from dflash_convert.errors import DflashError

    def one_input(data: bytes) -> None:
        try:
            read(data)
        except DflashError as error:
            if "\n" in str(error):
                raise ValueError(f"a message of two lines: {error}") from error

    return one_input


def fuzz(read: Callable[[bytes], object]) -> None:
    import atheris

    atheris.Setup(sys.argv, guarded(read))
    atheris.Fuzz()


def main(module: str) -> None:
    """Instrument the project's code while ``module``'s reader imports it, then fuzz."""
    import importlib

    import atheris

    with atheris.instrument_imports(include=["dflash_convert", "json"]):
        read = importlib.import_module(module).reader()
    fuzz(read)


if __name__ == "__main__":
    main(sys.argv.pop(1))
