"""The tokenizer keys of every reference case: same keys, order, types and values."""

from __future__ import annotations

import functools
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vocab_tools import summary

from dflash_convert.vocab import Vocabulary, load_vocabulary

ROOT = Path(__file__).resolve().parents[2]
CASES = [
    "dflash2",
    "dflash_deepseek",
    "dflash_gptoss_yarn",
    "dflash_interleaved_rope_use_swa",
    "dflash_llama31",
    "dflash_mrope_qwen35",
    "dflash_own_embeddings_sharded",
    "dflash_partial_rope_causal",
    "dflash_qwen3",
    "dflash_spm_llama",
    "dflash_swa_gemma4",
    "dspark_qwen3",
    "dspark_speculators_d2t",
    "eagle3_llama",
    "gemma4_dspark",
    "muse_glimmer",
]
pytestmark = pytest.mark.shared


@functools.cache
def checkpoints(shared: Path) -> Any:
    spec = importlib.util.spec_from_file_location("parity_checkpoints", shared / "parity" / "checkpoints.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.write_safetensors = lambda *_: None  # type: ignore[attr-defined]
    module.values = lambda *_: np.zeros(1, np.uint16)  # type: ignore[attr-defined]
    return module


def test_every_case_is_listed(shared: Path) -> None:
    assert sorted(CASES) == sorted(path.stem for path in (shared / "parity" / "expected").glob("*.json"))


@pytest.mark.parametrize("case", CASES)
def test_keys_equal_the_reference(case: str, shared: Path, tmp_path: Path) -> None:
    outputs = json.loads((shared / "parity" / "expected" / f"{case}.json").read_text("utf-8"))["outputs"]
    wanted = [
        {key: value for key, value in outputs[f"convert:{kind}"]["metadata"].items() if key.startswith("tokenizer.")}
        for kind in ("bf16", "f16", "q8_0")
    ]
    assert wanted[0] == wanted[1] == wanted[2]
    got = keys_of(case, tmp_path, shared, plain=True)
    assert got == wanted[0]
    assert list(got) == list(wanted[0])


@pytest.mark.parametrize("case", ["dflash_qwen3", "dflash_llama31", "dflash_swa_gemma4", "dflash_spm_llama"])
def test_without_plain_nothing_changes_and_little_is_added(case: str, shared: Path, tmp_path: Path) -> None:
    expected = json.loads((shared / "parity" / "expected" / f"{case}.json").read_text("utf-8"))
    wanted = {k: v for k, v in expected["outputs"]["convert:bf16"]["metadata"].items() if k.startswith("tokenizer.")}
    got = keys_of(case, tmp_path, shared, plain=False)
    extra = {key: value["value"] for key, value in got.items() if key not in wanted}
    assert extra == (SPM_EXTRA if case == "dflash_spm_llama" else {})
    assert {key: value for key, value in got.items() if key in wanted} == wanted


def keys_of(case: str, folder: Path, shared: Path, *, plain: bool) -> dict[str, Any]:
    target, size = write_target(case, folder, shared)
    drafter = json.loads((folder / "drafter" / "config.json").read_text("utf-8"))
    mask = (drafter.get("dflash_config") or drafter).get("mask_token_id")
    vocabulary = load_vocabulary(target, vocab_size=size, plain=plain, eagle3=case.startswith("eagle3"))
    return {kv.name: summary(kv) for kv in vocabulary.keys(mask)}


# a SentencePiece target without tokenizer.json: the reference loses these
SPM_EXTRA = {
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.eot_token_id": 2001,
}


def write_target(case: str, folder: Path, shared: Path) -> tuple[Path, int]:
    module = checkpoints(shared)
    module.write_case(case, folder, shared / "tokenizers")
    drafter = json.loads((folder / "drafter" / "config.json").read_text("utf-8"))
    return folder / "target", int(drafter.get("vocab_size") or drafter["transformer_layer_config"]["vocab_size"])


def test_pre_comes_from_the_hash(shared: Path, tmp_path: Path) -> None:
    found = {}
    for case in ("dflash_qwen3", "dflash_deepseek", "dflash_gptoss_yarn", "dflash_llama31", "dflash_mrope_qwen35"):
        target, size = write_target(case, tmp_path / case, shared)
        vocabulary: Vocabulary = load_vocabulary(target, vocab_size=size)
        found[vocabulary.pre] = vocabulary.pre_source
    assert found == dict.fromkeys(["qwen2", "joyai-llm", "gpt-4o", "llama-bpe", "qwen35"], "probe hash")


PEAK = """
import sys
from pathlib import Path
from dflash_convert.vocab import load_vocabulary
vocabulary = load_vocabulary(Path(sys.argv[1]), vocab_size=int(sys.argv[2]))
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(("case", "limit"), [("dflash_swa_gemma4", 330), ("dflash_qwen3", 160)])
def test_memory(case: str, limit: int, shared: Path, tmp_path: Path) -> None:
    """Resident peak of a process that does nothing else, in MiB; whole conversions may use 450 and 300."""
    target, size = write_target(case, tmp_path, shared)
    command = [sys.executable, "-c", PEAK, str(target), str(size)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout) < limit * 1024
