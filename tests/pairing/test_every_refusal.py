"""One wrong pair, every command that takes a pair: refused with exit code 4 and the same first reason."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_convert.container.reader import open_gguf
from dflash_convert.container.types import u32
from dflash_convert.container.writer import Entry, GgufOutput, layout

ROOT = Path(__file__).resolve().parents[2]
FAKE = ROOT / "tests" / "engine" / "fake_llama_server.py"
REASON = "do not belong together: target-depth (drafter made for 6 layers, target 8 layers)"


@pytest.fixture(scope="module")
def deeper(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The trained pair, and a target that differs in its depth alone: as a directory and as a GGUF's header."""
    pair, where = fixtures / "tiny-js", tmp_path_factory.mktemp("deeper")
    directory = Path(shutil.copytree(pair / "target", where / "target"))
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 8}))
    gguf = open_gguf(pair / "target-bf16.gguf")
    keys = dict(gguf.keys) | {"qwen3.block_count": u32("qwen3.block_count", 8)}
    entries = [Entry(t.name, t.shape, t.type) for t in gguf.tensors.values()]
    with GgufOutput(where / "target.gguf", entries, layout(list(keys.values()), entries)) as output:
        for name in gguf.tensors:
            output.write_at(output.offset(name), gguf.data(name).tobytes())
        output.commit()
    server = where / "llama-server"
    server.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{FAKE}" normal "$@"\n')
    server.chmod(0o755)
    return {"drafter": pair / "drafter", "right": pair / "target", "wrong": directory, "server": server} | {
        "gguf": where / "target.gguf"
    }


def run(deeper: dict[str, Path], *args: object) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"DFLASH_LLAMA_SERVER": str(deeper["server"])}
    command = [sys.executable, "-m", "dflash_convert", *map(str, args)]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def file(deeper: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("file") / "dflash-target-BF16.gguf"
    done = run(deeper, deeper["drafter"], "--target-model-dir", deeper["right"], "-o", out)
    assert done.returncode == 0, done.stderr
    return out


def test_every_command_refuses(deeper: dict[str, Path], file: Path, tmp_path: Path) -> None:
    d = deeper
    out = tmp_path / "x.gguf"
    for call in (
        (d["drafter"], "--target-model-dir", d["wrong"], "-o", out),
        (d["drafter"], "--target-model-dir", d["wrong"], "-o", out, "--dry-run"),
        (d["drafter"], "--target-model-dir", d["right"], "-o", out, "--validate", d["gguf"], "--quick"),
        ("check", d["drafter"], d["wrong"]),
        ("check", d["drafter"], d["gguf"]),
        ("check", file, d["wrong"]),
        ("check", file, d["gguf"]),
        ("validate", file, d["gguf"], "--quick"),
        ("package", file, "--out", tmp_path / "package", "--target-gguf", d["gguf"]),
    ):
        done = run(d, *call)
        assert done.returncode == 4, (call, done.stderr)
        assert REASON in done.stderr, (call, done.stderr)
        assert "most likely the wrong target" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_verify_tells_a_right_file_from_its_right_target(deeper: dict[str, Path], file: Path) -> None:
    """The file is what its source says, so nothing differs; it is the pair that is refused."""
    done = run(deeper, "verify", file, deeper["drafter"], "--target-model-dir", deeper["wrong"])
    assert done.returncode == 4, done.stderr
    assert "0 differences" in done.stdout
    assert "target-depth" in done.stderr
    done = run(deeper, "verify", file, deeper["drafter"], "--target-model-dir", deeper["right"])
    assert done.returncode == 0, done.stderr


def test_batch_refuses(deeper: dict[str, Path], tmp_path: Path) -> None:
    release = tmp_path / "release.toml"
    text = f'out = "out"\ntypes = ["BF16"]\n[[pair]]\nname = "deep"\ndrafter = "{deeper["drafter"]}"\n'
    release.write_text(text + f'target = "{deeper["wrong"]}"\n')
    done = run(deeper, "batch", release, "--no-package")
    assert done.returncode == 4, done.stderr
    assert "target-depth" in done.stdout + done.stderr
    release.write_text(text + f'target = "{deeper["wrong"]}"\nconvert = ["--force-pair"]\n')
    assert run(deeper, "batch", release, "--no-package").returncode == 0


def test_forced_the_same_pair_is_written_run_and_packaged(deeper: dict[str, Path], file: Path, tmp_path: Path) -> None:
    out = tmp_path / "dflash-target-BF16.gguf"
    done = run(deeper, deeper["drafter"], "--target-model-dir", deeper["wrong"], "-o", out, "--force-pair")
    assert done.returncode == 0, done.stderr
    assert "WARNING: refused, but forced: target-depth" in done.stderr
    assert list(open_gguf(out).get("dflash_convert.forced_pair")) == ["target-depth"]
    assert open_gguf(out).get("dflash_convert.target.layers") == 6  # what the drafter was trained with
    done = run(deeper, "check", out, deeper["right"])
    assert (done.returncode, "forced-pair" in done.stdout) == (0, True)
    done = run(deeper, "verify", out, deeper["drafter"], "--target-model-dir", deeper["wrong"])
    assert done.returncode == 0, done.stderr  # it says itself that it was forced
    (tmp_path / "p.jsonl").write_text('{"prompt": "one", "n_predict": 12}\n')
    call = ("validate", file, deeper["gguf"], "--quick", "--n-max", 3, "--prompts", tmp_path / "p.jsonl")
    done = run(deeper, *call, "--force-pair")
    assert done.returncode == 0, done.stderr
    assert "check: target-depth" in done.stderr
    done = run(deeper, "package", file, "--out", tmp_path / "pkg", "--target-gguf", deeper["gguf"], "--force-pair")
    assert done.returncode == 0, done.stderr


def test_a_package_is_not_named_after_a_false_file_type(deeper: dict[str, Path], file: Path, tmp_path: Path) -> None:
    gguf = open_gguf(file)
    keys = dict(gguf.keys) | {"general.file_type": u32("general.file_type", 7)}
    entries = [Entry(t.name, t.shape, t.type) for t in gguf.tensors.values()]
    false = tmp_path / "dflash-target-Q8_0.gguf"
    with GgufOutput(false, entries, layout(list(keys.values()), entries)) as output:
        for name in gguf.tensors:
            output.write_at(output.offset(name), gguf.data(name).tobytes())
        output.commit()
    done = run(deeper, "package", false, "--out", tmp_path / "pkg")
    assert done.returncode == 3
    assert "general.file_type 7 (Q8_0), but tensors: BF16" in done.stderr
    done = run(deeper, "verify", false, deeper["drafter"])
    assert done.returncode == 5
    assert "general.file_type says Q8_0, the tensors are BF16" in done.stderr


def test_check_takes_what_config_json_lacks(deeper: dict[str, Path], tmp_path: Path) -> None:
    """A directory is judged as it would be converted, so it takes convert's options for it."""
    drafter = Path(shutil.copytree(deeper["drafter"], tmp_path / "drafter"))
    config = json.loads((drafter / "config.json").read_text())
    del config["block_size"]
    (drafter / "config.json").write_text(json.dumps(config))
    done = run(deeper, "check", drafter, deeper["right"])
    assert done.returncode == 4
    assert "block_size is missing" in done.stderr
    assert run(deeper, "check", drafter, deeper["right"], "--block-size", 8).returncode == 0
    done = run(deeper, "check", drafter, deeper["right"], "--block-size", 8, "--mask-token-id", 502)
    assert "mask-token-special" in done.stdout
    assert run(deeper, "check", deeper["gguf"], deeper["right"], "--block-size", 8).returncode == 2
