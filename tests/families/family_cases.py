"""The fixtures' types."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from make_checkpoints import Case

from dflash_convert.drafter import Description

Make = Callable[[Case], Path]
Read = Callable[..., Description]
Key = Callable[[Description, str], Any]
