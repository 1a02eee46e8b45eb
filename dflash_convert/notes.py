"""What a step has to say about its result: derived values, skipped tensors, warnings.

Functions return notes beside their result instead of printing them; the command line decides
what to show.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Level = Literal["info", "derived", "skipped", "warning"]


class Note(NamedTuple):
    """One thing worth telling: ``derived`` values were not in the checkpoint as such.

    ``guess``: the checkpoint leaves it open or contradicts itself, and one reading was taken; --strict refuses it.
    """

    level: Level
    text: str
    guess: bool = False
