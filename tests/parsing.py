"""``ast.parse`` that no other thread breaks into.

CPython before 3.11.8 and 3.12.2 counts how deep the tree is that it hands out in one place for all threads: where a
garbage collection in the middle lets another thread run that parses too, the first ends in "SystemError: AST
constructor recursion depth mismatch".  pytest parses a test to show its failure, ``traceback`` a line to mark an
expression in it, each in the thread that shows an exception; Hypothesis has Python run in every collection.
"""

from __future__ import annotations

import ast
import gc
import threading
from functools import wraps
from typing import Any

_lock = threading.RLock()
_parse = ast.parse


@wraps(_parse)
def undisturbed(*args: Any, **given: Any) -> Any:
    with _lock:
        collects = gc.isenabled()
        gc.disable()
        try:
            return _parse(*args, **given)
        finally:
            if collects:
                gc.enable()
