"""The gguf library, whose import costs more than what this program asks of it."""

from __future__ import annotations

import sys
from types import ModuleType

UNUSED = "mistral_common"  # for one class of its vocabularies, 0.2 s where it is installed

_alone = False


def nobody_else_imports() -> None:
    """Say that this process runs this program alone: whoever calls us as a library may want all of gguf."""
    global _alone
    _alone = True


def gguf_library() -> ModuleType:
    """The module ``gguf``, in this program's own processes without the class that needs UNUSED."""
    hidden = _alone and UNUSED not in sys.modules and "gguf" not in sys.modules
    if hidden:
        sys.modules[UNUSED] = None  # type: ignore[assignment]  # its import fails, which the library expects
    try:
        import gguf
    finally:
        if hidden:
            sys.modules.pop(UNUSED, None)  # another thread may have come first
    return gguf
