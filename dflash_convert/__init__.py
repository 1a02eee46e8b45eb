"""Convert DFlash speculative-decoding drafters to GGUF, and prove the pair before deployment.

The five functions of :mod:`dflash_convert.api` are here, too; they load when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dflash_convert.api import check, convert, quantize, validate, verify

__version__ = "0.1.0"
__all__ = ["__version__", "check", "convert", "quantize", "validate", "verify"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dflash_convert import api  # and with it everything that a conversion needs

    return getattr(api, name)
