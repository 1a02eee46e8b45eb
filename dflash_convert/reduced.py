"""The map of a reduced draft vocabulary (``d2t``): one judge for checkpoints, which store offsets, and for files.

llama.cpp scatters the drafter's logits to the target's ids (src/models/dflash.cpp, eagle3.cpp): it asserts
that the map is int64 and that every id is a row of the target; of two draft rows for one token one is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Kind = Literal["absolute", "offsets", "negative", "range", "twice", "selection"]
LIMIT = 1 << 40  # no vocabulary comes near; sums of what passes cannot overflow


@dataclass(frozen=True)
class MapFault:
    """``text`` goes on after the map's name; ``kind`` absolute or offsets: right when read the other way."""

    kind: Kind
    text: str


def map_fault(
    stored: NDArray[Any], rows: int | None, *, offsets: bool, selection: NDArray[Any] | None = None
) -> MapFault | None:
    """What is wrong with ``stored`` (integers [draft rows]) as a map into a target of ``rows`` tokens, or None.

    ``offsets``: entry i stands for token i + stored[i], as every public trainer writes it; otherwise for token
    stored[i], as in a GGUF.  ``selection`` is the checkpoint's ``t2d`` (bool [rows]), which marks the same tokens
    and so settles which of the two a map holds.  ``rows`` None leaves the upper bound unchecked.
    """
    values = stored.reshape(-1).astype(np.int64)
    if values.size and (int(values.min()) < -LIMIT or int(values.max()) > LIMIT):
        return MapFault("range", f"holds {_farthest(values)}, which is not a token")
    shifted = values + np.arange(values.size, dtype=np.int64)
    ids, other = (shifted, values) if offsets else (values, shifted)
    found = _fault(ids, rows, selection)
    if found is None:
        return None
    ascending = bool(np.all(np.diff(other) > 0))  # trainers sort the tokens they keep
    # offsets stay the same over a run of tokens; in ids a token that is there twice is the exception
    repeated = offsets or found.kind != "twice" or selection is not None or 2 * np.unique(ids).size < ids.size
    if ascending and repeated and _fault(other, rows, selection) is None:
        if offsets:
            return MapFault("absolute", f"holds absolute ids where offsets belong (read as offsets it {found.text})")
        return MapFault("offsets", f"holds offsets where absolute ids belong (read as ids it {found.text})")
    return found


def _fault(ids: Integers, rows: int | None, selection: NDArray[Any] | None) -> MapFault | None:
    if not ids.size:
        return None
    low, high = int(ids.min()), int(ids.max())
    if low < 0:
        return MapFault("negative", f"maps draft row {int(ids.argmin())} to token {low}")
    if rows is not None and high >= rows:
        return MapFault("range", f"maps draft row {int(ids.argmax())} to token {high} of {rows}")
    tokens, counts = np.unique(ids, return_counts=True)
    if tokens.size < ids.size:
        token = int(tokens[counts > 1][0])
        first, second = np.flatnonzero(ids == token)[:2]
        return MapFault("twice", f"maps draft rows {int(first)} and {int(second)} both to token {token}")
    if selection is not None:
        marked = np.flatnonzero(selection.reshape(-1))
        if not np.array_equal(marked, tokens):
            odd = np.setxor1d(marked, tokens)
            return MapFault("selection", f"and t2d keep different tokens: {int(odd[0])} is in one of them only")
    return None


def _farthest(values: Integers) -> int:
    low, high = int(values.min()), int(values.max())
    return low if -low > high else high
