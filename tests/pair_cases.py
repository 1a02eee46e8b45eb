"""The parity cases and the fixtures as pairs without weights, in every form a side can have."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import parity_cases
import pytest
from checkpoint_files import entry, safetensors

from dflash_convert import llama
from dflash_convert.checkpoint import Reader
from dflash_convert.container.types import KV, TensorType, ValueType, array, f32, string, u32
from dflash_convert.container.writer import Entry, GgufOutput, layout
from dflash_convert.conversion import Conversion
from dflash_convert.encode.transforms import RowSource
from dflash_convert.hparams import Config, architectures
from dflash_convert.vocab import Vocabulary

Cases = Mapping[str, Path]  # name -> a directory with drafter/ and target/


def write_parity_cases(shared: Path, root: Path) -> dict[str, Path]:
    """Every case of the reference with its real configs, tokenizers and maps; the weights are holes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parity_cases, "write_safetensors", write_hollow)
        patch.setattr(parity_cases, "shutil", Linker)
        for name in parity_cases.CASES:
            parity_cases.write_case(name, root / name, shared / "tokenizers")
    return {name: root / name for name in parity_cases.CASES}


class Linker:
    """shutil's place in the generator: 28 MB tokenizers need not be copied sixteen times."""

    @staticmethod
    def copy(source: Path, to: Path) -> None:
        if not to.exists():
            to.symlink_to(source.resolve())


def write_hollow(path: Path, tensors: Mapping[str, tuple[str, Any]]) -> None:
    """A safetensors file of the right size; only integers and marks are written, weights are a hole."""
    header, at = {}, 0
    for name, (dtype, values) in tensors.items():
        header[name] = entry(list(values.shape), at, at + values.nbytes, dtype)
        at += values.nbytes
    head = safetensors(header)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + at)
        for name, (dtype, values) in tensors.items():
            if dtype in ("I64", "BOOL"):
                file.seek(len(head) + header[name]["data_offsets"][0])
                file.write(values.tobytes())


def write_fixture_cases(fixtures: Path, root: Path) -> dict[str, Path]:
    """Every dialect of the fixtures, with the tiny target's tokenizer."""
    from make_checkpoints import CASES, write_case

    found = {}
    for name, make in CASES.items():
        write_case(make(), root / name)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(fixtures / "tiny-js" / "target" / file, root / name / "target" / file)
        found[name] = root / name
    return found


def write_header(conversion: Conversion, path: Path) -> Path:
    """The file of a conversion as it is written, but for weights: they are a hole, and only ``d2t`` is real."""
    plan = conversion.files[0]
    with GgufOutput(path, plan.entries, layout(plan.keys, plan.entries)) as output, Reader() as reader:
        for tensor, _ in plan.tensors:
            if tensor.name == "d2t":
                rows = RowSource(reader).rows(tensor, 0, 1)
                output.write_at(output.offset("d2t"), np.ascontiguousarray(rows, "<i8").tobytes())
        output.commit()
    return path


def write_target(path: Path, raw: Mapping[str, Any], vocabulary: Vocabulary) -> Path:
    """The header of a target's GGUF as llama.cpp's converter writes it from ``raw``; the embeddings are a hole."""
    config = Config(raw)
    arch = llama.BY_CLASS[architectures(raw)[0]]
    rope = config.table("rope_parameters") or {}
    theta = Config(rope).number("rope_theta") or config.number("rope_theta") or 0.0
    hidden, rows = config.integer("hidden_size") or 0, config.integer("vocab_size") or 0
    keys: list[KV] = [
        string("general.architecture", arch),
        u32(f"{arch}.block_count", config.integer("num_hidden_layers") or 0),
        u32(f"{arch}.embedding_length", hidden),
        u32(f"{arch}.context_length", config.integer("max_position_embeddings") or 0),
        f32(f"{arch}.rope.freq_base", theta),
        *vocabulary.entries,
    ]
    if "mrope_section" in rope:
        keys.append(array(f"{arch}.rope.dimension_sections", ValueType.INT32, [*rope["mrope_section"], 0]))
    entries = [Entry("token_embd.weight", (rows, hidden), TensorType.F16)]
    with GgufOutput(path, entries, layout(keys, entries)) as output:
        output.commit()
    return path


def cached_vocabularies(load: Callable[..., Vocabulary]) -> Callable[..., Vocabulary]:
    """``load_vocabulary`` that reads the same tokenizer files with the same options once."""
    known: dict[Any, Vocabulary] = {}

    def cached(target: Path, **options: Any) -> Vocabulary:
        files = tuple(path.resolve() for path in sorted(target.iterdir()) if path.is_symlink())
        classes = str(json.loads((target / "config.json").read_text()).get("architectures"))
        key = (files, classes, *sorted(options.items()))
        if key not in known:
            known[key] = load(target, **options)
        return known[key]

    return cached
