"""The vocabularies of the real tokenizers; tests/parity shows that --plain equals the reference's keys."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import parity_cases
import pytest
from vocab_tools import summary

from dflash_convert.vocab import Vocabulary, load_vocabulary

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.shared


@pytest.mark.parametrize("case", ["dflash_qwen3", "dflash_llama31", "dflash_swa_gemma4", "dflash_spm_llama"])
def test_without_plain_nothing_changes_and_little_is_added(case: str, shared: Path, tmp_path: Path) -> None:
    reference = parity_cases.expected(case)["convert:bf16"]["metadata"]
    wanted = {key: value for key, value in reference.items() if key.startswith("tokenizer.")}
    got = keys_of(case, tmp_path, shared)
    extra = {key: value["value"] for key, value in got.items() if key not in wanted}
    assert extra == (SPM_EXTRA if case == "dflash_spm_llama" else {})
    assert {key: value for key, value in got.items() if key in wanted} == wanted


def keys_of(case: str, folder: Path, shared: Path) -> dict[str, Any]:
    target, size = write_target(case, folder, shared)
    _, drafter, _, _, _ = parity_cases.CASES[case]()
    vocabulary = load_vocabulary(target, vocab_size=size)
    return {kv.name: summary(kv) for kv in vocabulary.keys(drafter["dflash_config"]["mask_token_id"])}


# a SentencePiece target without tokenizer.json: the reference loses these
SPM_EXTRA = {
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.eot_token_id": 2001,
}


def write_target(case: str, folder: Path, shared: Path) -> tuple[Path, int]:
    parity_cases.write_target(case, folder, shared / "tokenizers")
    _, drafter, _, _, _ = parity_cases.CASES[case]()
    return folder, drafter["vocab_size"]


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
