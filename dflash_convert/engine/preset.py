"""``preset.ini``, which ``llama-server --models-preset`` reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dflash_convert.errors import UsageError

Rows = Sequence[tuple[str, str]]  # llama-server's long options without their dashes, and values
SIGNS = frozenset(";#[]\\\n")  # the reader (common/preset.cpp) ends a value at a comment sign, a section at a bracket


def preset_ini(sections: Mapping[str, Rows], *comments: str) -> str:
    """Sections by name, below what all of them share. UsageError for a name or value that the reader would cut."""
    lines = [f"; {comment}" for comment in comments]
    lines += ["version = 1", "", "[*]", "flash-attn = on"]
    for name, rows in sections.items():
        lines += ["", f"[{name}]", *(f"{option} = {value}" for option, value in rows)]
    _require_plain(sections)
    _require_plain(value for rows in sections.values() for _, value in rows)
    return "\n".join(lines) + "\n"


def _require_plain(texts: Iterable[str]) -> None:
    for text in texts:
        if SIGNS & set(text):
            raise UsageError(f"{text!r} cannot stand in a preset: llama.cpp ends values at ; and #", tip="rename it")
