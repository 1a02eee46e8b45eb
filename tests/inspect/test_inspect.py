"""inspect describes GGUFs, drafter directories and target directories, and plans memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dflash_convert.errors import UsageError
from dflash_convert.inspect_file import ENCODINGS, inspect
from dflash_convert.target import Target


@pytest.fixture(scope="module")
def drafter_gguf(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from dflash_convert.conversion import Options, Source, prepare, write

    pair = fixtures / "tiny-js"
    path = tmp_path_factory.mktemp("inspect") / "dflash-target-Q8_0.gguf"
    write(prepare(Source(pair / "drafter"), Target.read(pair / "target"), Options(outtypes=("Q8_0",))), [path])
    return path


def run(*args: str | Path) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "dflash_convert", "inspect", *map(str, args)]
    return subprocess.run(call, capture_output=True, text=True, check=False)


def document(*args: str | Path) -> dict[str, Any]:
    done = run(*args, "--json")
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


SHAPES = {
    "layers": 3,
    "hidden": 128,
    "feed_forward": 384,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 64,
    "context_length": 4096,
}


def test_a_drafter_gguf(drafter_gguf: Path) -> None:
    found = document(drafter_gguf)
    assert (found["kind"], found["family"], found["architecture"]) == ("drafter-gguf", "DFlash", "dflash")
    assert found["shapes"] == SHAPES
    assert (found["block_size"], found["mask_token_id"]) == (8, 503)
    assert found["taps"] == {"outputs": [1, 3, 4], "inputs": [2, 4, 5]}
    assert found["size"] == drafter_gguf.stat().st_size
    assert {name: entry["tensors"] for name, entry in found["types"].items()} == {"Q8_0": 22, "F32": 14}
    tokenizer = found["tokenizer"]
    assert (tokenizer["model"], tokenizer["pre"], tokenizer["size"]) == ("gpt2", "qwen2", 512)
    assert tokenizer["special"] == {"bos": 500, "eos": 502, "pad": 500}
    assert found["runtimes"] == ["llama.cpp from b11434 (--spec-type draft-dflash)"]
    assert found["provenance"]["dflash_convert.target.name"] == "target"


def test_a_drafter_directory(fixtures: Path) -> None:
    pair = fixtures / "tiny-js"
    found = document(pair / "drafter", "--target-model-dir", pair / "target")
    assert (found["kind"], found["family"]) == ("drafter", "DFlash")
    assert found["shapes"] == SHAPES
    assert found["source_types"] == {"BF16": 36}
    assert found["tokenizer"]["pre_source"] == "split expressions"
    assert "tokenizer" not in document(pair / "drafter")


def test_a_target_directory_and_gguf(fixtures: Path) -> None:
    pair = fixtures / "tiny-js"
    directory, gguf = document(pair / "target"), document(pair / "target-bf16.gguf")
    assert (directory["kind"], gguf["kind"]) == ("target", "gguf")
    for found in (directory, gguf):
        assert found["architecture"] == "qwen3"
        assert found["tappable"] == {"layer_inputs": True, "deepest_tap": 5}
        assert found["tokenizer"]["size"] == 512
    assert directory["tokenizer"]["template_sha256"] == gguf["tokenizer"]["template_sha256"]


def test_memory_of_the_pair(fixtures: Path, drafter_gguf: Path) -> None:
    pair = fixtures / "tiny-js"
    memory = document(drafter_gguf, "--target-model-dir", pair / "target-bf16.gguf", "--memory", "-c", "1024")["memory"]
    # layers x cells x (keys + values) x kv heads x head_dim x 2 bytes
    assert memory["drafter"]["kv_mib"] == 3 * 1024 * 2 * 128 * 2 / 2**20
    assert memory["target"]["kv_mib"] == 6 * 1024 * 2 * 128 * 2 / 2**20
    assert memory["target"]["weights_mib"] == pytest.approx((3211264 + 9728) / 2**20, abs=0.005)
    as_directory = document(
        pair / "drafter", "--target-model-dir", pair / "target", "--memory", "-c", "1024", "-t", "q8_0"
    )["memory"]
    assert as_directory["drafter"] == memory["drafter"]


def test_fit_turns_the_plan_round(fixtures: Path, drafter_gguf: Path) -> None:
    pair = fixtures / "tiny-js"
    with_target = ("--target-model-dir", pair / "target-bf16.gguf", "--memory")
    fit = document(drafter_gguf, *with_target, "--fit", "24MiB")["fit"]
    assert (fit["budget_mib"], [row["drafter"] for row in fit["rows"]]) == (24.0, [None, "Q8_0"])
    most = fit["rows"][1]["contexts"]["f16"]
    fitting, above = (document(drafter_gguf, *with_target, "-c", str(most + more))["memory"] for more in (0, 256))
    assert fitting["total_mib"] <= 24 < above["total_mib"]
    shown = run(pair / "drafter", *with_target, "--fit", "24MiB")
    assert shown.returncode == 0, shown.stderr
    table = shown.stdout[shown.stdout.index("largest context") :].splitlines()
    assert max(map(len, table)) <= 80
    assert table[1].split() == ["cache", "no", "drafter", *ENCODINGS]
    assert int(table[3].split()[3]) == most


def test_the_published_table_from_config_files_alone(tmp_path: Path) -> None:
    """Gemma-4-12B-it with its drafter at q4_0, context 163840: weights 390.42, KV 640.00, window KV 136.00 MiB."""
    drafter = {
        "architectures": ["DFlashDraftModel"],
        "hidden_size": 3840,
        "intermediate_size": 7680,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_hidden_layers": 5,
        "layer_types": ["sliding_attention"] * 4 + ["full_attention"],
        "use_sliding_window": True,
        "sliding_window": 2048,
        "vocab_size": 262144,
        "max_position_embeddings": 262144,
        "block_size": 16,
        "dflash_config": {"target_layer_ids": [1, 10, 19, 28, 37, 46], "mask_token_id": 4},
    }
    (tmp_path / "config.json").write_text(json.dumps(drafter), encoding="utf-8")
    call = (tmp_path, "--memory", "-c", "163840", "-t", "q4_0")
    part = document(*call)["memory"]["drafter"]
    assert part["weights_mib"] == pytest.approx(390.42, abs=0.01)
    assert (part["kv_mib"], part["swa_kv_mib"]) == (640.0, 136.0)
    assert document(*call, "-np", "4")["memory"]["drafter"]["swa_kv_mib"] == 160.0


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("--memory", "-c", "-5"), 2, "a context of -5 tokens is impossible"),
        (("--memory", "-np", "some"), 2, "expected auto or a number of slots"),
        (("--memory", "-np", "0"), 2, "0 parallel slots are impossible"),
        (("--memory", "-ctk", "q3_k"), 2, "not a cache type"),
        (("--memory", "--fit", "24MiB"), 2, "--fit counts the target's weights"),
        (("--memory", "--fit", "lots"), 2, "not an amount of memory"),
        (("--fit", "24MiB"), 2, "--fit has no effect without --memory"),
        (("--memory", "--fit", "24MiB", "-c", "512"), 2, "finds the context"),
    ],
)
def test_impossible_requests_are_refused_kindly(
    drafter_gguf: Path, args: tuple[str, ...], code: int, message: str
) -> None:
    done = run(drafter_gguf, *args)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_memory_of_a_target_alone_asks_for_the_drafter(fixtures: Path) -> None:
    done = run(fixtures / "tiny-js" / "target", "--memory")
    assert done.returncode == 2
    assert "--memory plans a pair" in done.stderr


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        inspect(tmp_path / "none.gguf")


def test_forks_and_refused_files_are_named(drafter_gguf: Path, tmp_path: Path) -> None:
    from dflash_convert.container.reader import open_gguf
    from dflash_convert.container.types import string
    from dflash_convert.container.writer import Entry, GgufOutput, layout

    gguf = open_gguf(drafter_gguf)

    def copy(name: str, arch: str, drop: str) -> Path:
        keys = [string(kv.name, arch) if kv.name == "general.architecture" else kv for kv in gguf.keys.values()]
        infos = [info for info in gguf.tensors.values() if info.name != drop]
        entries = [Entry(info.name, info.shape, info.type) for info in infos]
        with GgufOutput(tmp_path / name, entries, layout(keys, entries)) as output:
            for info in infos:
                output.write_at(output.offset(info.name), gguf.data(info.name).tobytes())
            output.commit()
        return tmp_path / name

    fork = inspect(copy("fork.gguf", "dflash-draft", ""))
    assert "migrate" in fork.data["runtimes"][0]
    hole = inspect(copy("hole.gguf", "dflash", "blk.1.ffn_up.weight"))
    assert hole.data["runtimes"] == ["none known: llama.cpp b11434 refuses it (missing-tensors)"]


def test_the_table_shows_no_control_characters(fixtures: Path, drafter_gguf: Path, tmp_path: Path) -> None:
    from dflash_convert.container.reader import open_gguf
    from dflash_convert.container.types import string
    from dflash_convert.container.writer import GgufOutput, layout

    keys = [kv for kv in open_gguf(drafter_gguf).keys.values() if kv.name != "general.name"]
    with GgufOutput(tmp_path / "evil.gguf", [], layout([*keys, string("general.name", "\x1b[31mred")], [])) as output:
        output.commit()
    done = run(tmp_path / "evil.gguf")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "\\x1b[31mred" in done.stdout
