"""The gguf library, whose import costs more than what this program asks of it."""

from __future__ import annotations

import sys
from types import ModuleType

UNUSED = "mistral_common"  # for one class of its vocabularies, 0.2 s where it is installed


def gguf_library() -> ModuleType:
    """The module ``gguf``, without the class that needs UNUSED unless somebody has imported that already."""
    hidden = UNUSED not in sys.modules and "gguf" not in sys.modules
    if hidden:
        sys.modules[UNUSED] = None  # type: ignore[assignment]  # its import fails, which the library expects
    try:
        import gguf
    finally:
        if hidden:
            del sys.modules[UNUSED]
    return gguf
