from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dflash_convert.cli import main
from dflash_convert.container.reader import open_gguf
from dflash_convert.container.types import KV, ValueType, array, string, u32
from dflash_convert.container.writer import Entry, GgufOutput, layout

Run = Callable[..., "Ended"]


@dataclass
class Ended:
    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """The command line in this process: exit code and what it printed."""

    def call(*args: object) -> Ended:
        capsys.readouterr()
        try:
            main([str(a) for a in args])
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    return call


@dataclass
class Job:
    """One command that writes one file: its arguments before and after the output's name."""

    name: str
    before: list[object]
    after: list[object]

    def args(self, output: Path, *more: object) -> list[object]:
        return [*self.before, output, *self.after, "-q", *more]


@pytest.fixture(params=["convert", "quantize", "migrate"])
def job(request: pytest.FixtureRequest, fixtures: Path, converted: Path, old_dialect: Path) -> Job:
    pair = fixtures / "tiny-js"
    if request.param == "convert":
        options = ["--target-model-dir", pair / "target", "-t", "q8_0", "-o"]
        return Job("convert", ["convert", pair / "drafter", *options], [])
    if request.param == "migrate":
        return Job("migrate", ["migrate", old_dialect], [])
    return Job("quantize", ["quantize", converted], ["q4_0"])


@pytest.fixture(scope="session")
def converted(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled drafter in bf16."""
    path = tmp_path_factory.mktemp("converted") / "drafter-bf16.gguf"
    pair = fixtures / "tiny-js"
    with pytest.raises(SystemExit) as ended:
        main(["convert", str(pair / "drafter"), "--target-model-dir", str(pair / "target"), "-o", str(path), "-q"])
    assert ended.value.code == 0
    return path


@pytest.fixture(scope="session")
def old_dialect(converted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled drafter as a fork of llama.cpp wrote it: other names, nested keys, taps one lower."""
    arch, source = "dflash-draft", open_gguf(converted)
    names = {"fc.weight": "dflash_fc.weight", "enc.output_norm.weight": "dflash_hidden_norm.weight"}
    keys = [string("general.architecture", arch)]
    for kv in source.keys.values():
        rest = kv.name.removeprefix("dflash.")
        if rest != kv.name and rest not in ("target_layers", "block_size"):
            keys.append(KV(f"{arch}.{rest}", kv.type, kv.value, kv.item))
        elif kv.name.startswith("tokenizer."):
            keys.append(kv)
    taps = source.get("dflash.target_layers")
    keys += [
        u32(f"{arch}.dflash.block_size", source.get("dflash.block_size")),
        u32(f"{arch}.dflash.mask_token_id", source.get("tokenizer.ggml.mask_token_id")),
        array(f"{arch}.dflash.target_layer_ids", ValueType.INT32, [tap - 1 for tap in taps]),
        u32(f"{arch}.dflash.n_target_features", len(taps) * source.get("dflash.embedding_length")),
    ]
    entries = [Entry(names.get(t.name, t.name), t.shape, t.type) for t in source.tensors.values()]
    path = tmp_path_factory.mktemp("old") / "old.gguf"
    with GgufOutput(path, entries, layout(keys, entries)) as out:
        for name in source.tensors:
            out.write_at(out.offset(names.get(name, name)), source.data(name).tobytes())
        out.commit()
    return path
