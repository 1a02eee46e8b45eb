"""Importing the gguf library: in this program's processes without what it never uses, in others' as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dflash_convert.gguf_library import UNUSED

ROOT = Path(__file__).resolve().parent.parent
PAIR = ROOT / "fixtures" / "tiny-js"
LIBRARY = "from dflash_convert.gguf_library import gguf_library; gguf_library()"
COMMAND = (
    "from dflash_convert.cli import main;"
    f"main([{str(PAIR / 'drafter')!r}, '--target-model-dir', {str(PAIR / 'target')!r}, '--dry-run'])"
)
WORKER = (
    "import socket; from dflash_convert.processes import serve; ours, theirs = socket.socketpair(); ours.close();"
    f"serve(theirs, None); {LIBRARY}"
)


@pytest.mark.parametrize(
    ("code", "whole"), [(LIBRARY, True), (COMMAND, False), (WORKER, False)], ids=["library", "command", "worker"]
)
def test_what_of_gguf_is_loaded(code: str, whole: bool, tmp_path: Path) -> None:
    """Whoever imports this package may use gguf's own vocabularies, before and after."""
    (tmp_path / f"{UNUSED}.py").write_text("print('loaded', flush=True)\n")
    script = f"import atexit, sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]\n"
    script += f"atexit.register(lambda: print('gguf' in sys.modules, {UNUSED!r} in sys.modules))\n{code}\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert ("loaded" in done.stdout.split()) is whole
    assert done.stdout.split()[-2] == "True", "the library itself"
