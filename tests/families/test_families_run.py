"""Each family runs: a random target and a random drafter of every dialect draft in llama.cpp without an error.

In the embedded one, or in the llama-server that DFLASH_LLAMA_SERVER names (``make hardware``).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from family_cases import Make
from make_checkpoints import CASES
from make_target import write_target

from dflash_convert import conversion as convert
from dflash_convert.engine import embedded, find, session
from dflash_convert.engine.trace import Launch, Request
from dflash_convert.target import Target

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        not os.environ.get("DFLASH_LLAMA_SERVER") and embedded.installed() is None,
        reason="needs xllamacpp or DFLASH_LLAMA_SERVER",
    ),
]
PROMPT = tuple(range(40, 60))


@pytest.fixture(scope="module")
def targets(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Random targets: qwen3 for all, gemma4 for the assistants that read its keys and values."""
    where, vocabulary = tmp_path_factory.mktemp("targets"), fixtures / "tiny-js" / "target"
    return {arch: write_target(vocabulary, where / f"{arch}.gguf", arch) for arch in ("qwen3", "gemma4")}


@pytest.mark.parametrize("name", CASES)
def test_llama_cpp_loads_and_drafts(name: str, case_dir: Make, targets: dict[str, Path], tmp_path: Path) -> None:
    where = case_dir(CASES[name]())
    source = convert.Source(where / "drafter"), Target.read(where / "target")
    conversion = convert.prepare(*source, convert.Options(outtypes=("bf16",)))
    path = convert.write(conversion, [tmp_path / "drafter.gguf"], threads=1)[0].path
    spec = conversion.description.variant.spec_type
    target = targets["gemma4" if conversion.description.architecture == "gemma4-assistant" else "qwen3"]
    launch = Launch(target, path, spec_type=spec, n_max=4, ctx_size=256, threads=1, verbosity=4)
    with session.start(find.choose(None, launch), launch) as engine:
        trace = engine.complete(Request(PROMPT, 16, ignore_eos=True))
    assert len(trace.tokens) == 16
    assert trace.drafted > 0
