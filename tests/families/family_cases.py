"""Where the generators are found, and the fixtures' types."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "fixtures"))

from make_checkpoints import Case

from dflash_convert.drafter import Description

Make = Callable[[Case], Path]
Read = Callable[..., Description]
Key = Callable[[Description, str], Any]
