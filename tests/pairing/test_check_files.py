"""check on files and directories, through the command line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pairing_files import write_gguf

from dflash_convert.container.reader import open_gguf
from dflash_convert.container.types import KV, TensorType, ValueType, array, string, u32
from dflash_convert.errors import ContainerError, UsageError
from dflash_convert.pairing import check, open_pair


def run(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dflash_convert", "check", *map(str, args)], capture_output=True, text=True, check=False
    )


def test_every_kind_of_path_fits(fixtures: Path, drafter_gguf: Path, target_gguf: Path) -> None:
    pair = fixtures / "tiny-js"
    for drafter in (drafter_gguf, pair / "drafter"):
        for target in (target_gguf, pair / "target"):
            assert check(*open_pair(drafter, target)) == [], (drafter, target)


def test_a_pair_that_fits_exits_0(drafter_gguf: Path, target_gguf: Path) -> None:
    done = run(drafter_gguf, target_gguf)
    assert (done.returncode, done.stdout) == (0, "")
    assert f"{drafter_gguf} fits {target_gguf}\n" in done.stderr, "paths as they were typed"


def test_json_follows_the_contract_and_exits_4(drafter_gguf: Path, target_gguf: Path) -> None:
    done = run(target_gguf, drafter_gguf, "--json")
    assert done.returncode == 4
    findings = json.loads(done.stdout)["findings"]
    assert [sorted(finding) for finding in findings] == [["cure", "drafter", "name", "severity", "target"]] * 2
    assert "in each other's place: dflash-convert check " in done.stderr


def test_a_warning_exits_0(drafter_gguf: Path, target_gguf: Path) -> None:
    done = run(drafter_gguf, target_gguf, "--n-max", "15")
    assert done.returncode == 0
    assert "n-max" in done.stdout
    assert "1 warning" in done.stderr


def test_a_directory_that_cannot_be_converted_is_still_checked(
    fixtures: Path, target_gguf: Path, tmp_path: Path
) -> None:
    shutil.copytree(fixtures / "tiny-js" / "drafter", tmp_path / "d")
    config = json.loads((tmp_path / "d" / "config.json").read_text(encoding="utf-8"))
    config["dflash_config"] = {"mask_token_id": 9999, "target_layer_ids": [1, 3, 11]}
    (tmp_path / "d" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    names = {finding.name for finding in check(*open_pair(tmp_path / "d", target_gguf))}
    assert names == {"unconvertible", "mask-token-range", "taps-depth"}


def test_the_wrong_target_of_the_same_shape_passes(shared: Path, drafter_gguf: Path) -> None:
    """Nothing static tells: this is what validate is for."""
    assert check(*open_pair(drafter_gguf, shared / "pairs" / "tiny-js" / "other-target-bf16.gguf")) == []


def test_missing_and_damaged_files(drafter_gguf: Path, target_gguf: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        open_pair(tmp_path / "none.gguf", target_gguf)
    (tmp_path / "cut.gguf").write_bytes(drafter_gguf.read_bytes()[:5000])
    with pytest.raises(ContainerError):
        open_pair(tmp_path / "cut.gguf", target_gguf)


def test_a_key_of_the_wrong_kind_is_an_error_not_a_traceback(
    drafter_gguf: Path, target_gguf: Path, tmp_path: Path
) -> None:
    keys = [kv for kv in open_gguf(drafter_gguf).keys.values() if kv.name != "dflash.block_size"]
    write_gguf(tmp_path / "dflash-x.gguf", [*keys, string("dflash.block_size", "eight")], [])
    done = run(tmp_path / "dflash-x.gguf", target_gguf)
    assert done.returncode == 3
    assert "key dflash.block_size is 'eight', expected a whole number" in done.stderr


def big_vocabulary(path: Path, arch: str, extra: list[KV], count: int = 152_000) -> Path:
    keys = [
        string("general.architecture", arch),
        string("tokenizer.ggml.model", "gpt2"),
        array("tokenizer.ggml.tokens", ValueType.STRING, [f"token{i}" for i in range(count)]),
        array("tokenizer.ggml.token_type", ValueType.INT32, [1] * count),
        *extra,
    ]
    write_gguf(path, keys, [("token_embd.weight", (8,), TensorType.F32, bytes(32))])  # a vocabulary alone is no target
    return path


def test_large_vocabularies_are_compared_without_being_unpacked(tmp_path: Path) -> None:
    target = big_vocabulary(tmp_path / "t.gguf", "qwen3", [u32("qwen3.block_count", 36)])
    drafter = big_vocabulary(tmp_path / "dflash-t.gguf", "dflash", [u32("tokenizer.ggml.mask_token_id", 5)])
    unpacked = peak_of(
        lambda: [list(open_gguf(path).keys["tokenizer.ggml.tokens"].value) for path in (drafter, target)]
    )
    assert peak_of(lambda: check(*open_pair(drafter, target))) < 0.75 * unpacked


def peak_of(call: Callable[[], object]) -> int:
    """Bytes that a call holds at most."""
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_a_map_beyond_the_target_is_read_from_the_file(drafter_gguf: Path, target_gguf: Path, tmp_path: Path) -> None:
    gguf = open_gguf(drafter_gguf)
    tensors = [(t.name, t.shape, t.type, gguf.data(t.name).tobytes()) for t in gguf.tensors.values()]
    d2t = np.arange(500, 564, dtype="<i8")
    tensors.append(("output.weight", (64, 128), TensorType.F32, bytes(64 * 128 * 4)))
    tensors.append(("d2t", (64,), TensorType.I64, d2t.tobytes()))
    write_gguf(tmp_path / "dflash-target-F32.gguf", list(gguf.keys.values()), tensors)
    (finding,) = check(*open_pair(tmp_path / "dflash-target-F32.gguf", target_gguf))
    assert (finding.name, finding.drafter, finding.target) == (
        "reduced-vocabulary",
        "d2t maps draft row 63 to token 563 of 512",
        512,
    )


def test_swapped_directories_are_recognised(fixtures: Path) -> None:
    pair = fixtures / "tiny-js"
    done = run(pair / "target", pair / "drafter")
    assert done.returncode == 3
    assert "is a Qwen 3 target model, not a DFlash drafter; did you swap the arguments?" in done.stderr
    assert f"dflash-convert check {pair / 'drafter'} {pair / 'target'}\n" in done.stderr
