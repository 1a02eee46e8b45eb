"""Tiny checkpoints of every dialect, described, converted and run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from family_cases import Key, Make, Read
from make_checkpoints import CASES, Case, write_case

from dflash_convert.checkpoint import open_checkpoint
from dflash_convert.drafter import Description, Overrides
from dflash_convert.families.detect import describe
from dflash_convert.target import Target


@pytest.fixture
def case_dir(tmp_path: Path, fixtures: Path) -> Make:
    """case_dir(case) -> a directory with drafter/ and target/ (config and tokenizer)."""

    def make(case: Case) -> Path:
        where = tmp_path / f"case{len(list(tmp_path.iterdir()))}"
        _, target = write_case(case, where)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(fixtures / "tiny-js" / "target" / name, target / name)
        return where

    return make


@pytest.fixture
def read(case_dir: Make) -> Read:
    """read(case or its name, **overrides) -> Description"""

    def run(case: Case | str, **overrides: Any) -> Description:
        where = case_dir(CASES[case]() if isinstance(case, str) else case)
        return describe(open_checkpoint(where / "drafter"), Target.read(where / "target"), Overrides(**overrides))

    return run


@pytest.fixture
def key() -> Key:
    """key(description, 'block_size') -> the value of its architecture's key, None when absent"""

    def find(description: Description, name: str) -> Any:
        keys = {kv.name: kv.value for kv in (*description.first_keys, *description.keys, *description.late_keys)}
        return keys.get(f"{description.architecture}.{name}")

    return find
