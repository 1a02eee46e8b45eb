"""Outputs that take no more, and readers that go away."""

from __future__ import annotations

import errno
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

# what writing says of a disk or device that takes no more
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def discard_output() -> None:
    """What is left in the buffers of a broken output goes nowhere, so that ending does not fail once more."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def end_with_pipe() -> NoReturn:
    """The reader went away, as ``head`` does: end as other programs do, by the pipe's signal."""
    discard_output()
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
    sys.exit(0)
