"""What a command took, for -v."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from dflash_convert.cli.terminal import echo
from dflash_convert.system import peak_memory
from dflash_convert.text import duration, size


@contextmanager
def cost_shown(verbose: int) -> Iterator[None]:
    """With -v a last line on stderr: time, and the most memory that this process and its largest child held."""
    begin = time.monotonic()
    try:
        yield
    finally:
        if verbose:
            own, child = peak_memory()
            memory = f", {size(own)} of memory" if own else ""
            memory += f" and {size(child)} in a child process" if child else ""
            echo(f"took {duration(time.monotonic() - begin)}{memory}", err=True)
