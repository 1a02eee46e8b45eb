"""The same inputs and options give the same bytes: no clock, no host, no path, no order of workers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from release_tools import Done, tree


@pytest.mark.parametrize("outtype", ["bf16", "q8_0", "q4_0"])
def test_convert_twice(program: Callable[..., Done], fixtures: Path, tmp_path: Path, outtype: str) -> None:
    """Another directory of the same name, other times, locale, hash seed and worker count."""
    found = []
    for run, threads in (("one", 1), ("two", 2)):
        pair = Path(shutil.copytree(fixtures / "tiny-js", tmp_path / run / "pair"))
        for path in pair.rglob("*"):
            os.utime(path, (1e9, 1e9) if run == "one" else (1.5e9, 1.5e9))
        out = tmp_path / run / "out"
        out.mkdir()
        env = {"PYTHONHASHSEED": str(threads), "TZ": "UTC" if run == "one" else "Asia/Tokyo", "LC_ALL": "C"}
        call = ("convert", pair / "drafter", "--target-model-dir", pair / "target", "-t", outtype, "-o", out)
        done = program(*call, "--threads", threads, "-q", **env)
        assert done.code == 0, done.err
        found.append(tree(out))
    assert found[0] == found[1]
    assert len(found[0]) == 1
