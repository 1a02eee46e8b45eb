"""The worked examples of docs/adding-a-family.md, one of each kind, are drafters that every command takes.

So is one fixture of every other drafting method."""

from __future__ import annotations

import json
import re
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import make_checkpoints as mk
import pytest
from family_cases import Make, Read

from dflash_convert import llama
from dflash_convert.cli import main
from dflash_convert.container.reader import open_gguf
from dflash_convert.engine import embedded
from dflash_convert.errors import FamilyError
from dflash_convert.families import detect

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "adding-a-family.md"
BLOCKS = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
FAKE = ROOT / "tests" / "engine" / "fake_llama_server.py"

Run = Callable[..., tuple[int, str, str]]


def example(module_text: str, fixture_text: str, name: str) -> tuple[Any, mk.Case]:
    """(the module, the fixture's checkpoint) of the document's blocks."""
    module = types.ModuleType(name)
    exec(compile(module_text, str(DOCUMENT), "exec"), module.__dict__)
    space: dict[str, Any] = dict(vars(mk))
    exec(compile(fixture_text, str(DOCUMENT), "exec"), space)
    return module, space[name]()


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> mk.Case:
    """A family of architecture dflash: one more module."""
    module, case = example(BLOCKS[0], BLOCKS[1], "echo")
    monkeypatch.setattr(detect, "FAMILIES", (*detect.FAMILIES, module))
    return case


@pytest.fixture
def relay(monkeypatch: pytest.MonkeyPatch) -> mk.Case:
    """An architecture of its own: one more row and one more module."""
    module, case = example(BLOCKS[2] + BLOCKS[3], BLOCKS[4], "relay")
    monkeypatch.setattr(llama, "DRAFTERS", (*llama.DRAFTERS, module.RELAY))
    monkeypatch.setattr(detect, "FAMILIES", (*detect.FAMILIES, module))
    return case


def for_tiny_target(case: mk.Case) -> mk.Case:
    """The same drafter, made for the six layers of fixtures/tiny-js/target."""
    case.config |= {"num_target_layers": 6} if "num_target_layers" in case.config else {}
    return case


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """run('inspect', ...) -> exit code, stdout, stderr; in this process, which knows the additions."""

    def call(*args: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main([*map(str, args)])
        return (int(end.value.code or 0), *capsys.readouterr())

    return call


def test_the_family_reads_its_checkpoint(echo: mk.Case, read: Read) -> None:
    found = read(echo)
    assert found.taps.inputs == (2, 3, 4)
    plain = read("dflash")
    assert {plan.name: plan.shape for plan in found.tensors} == {plan.name: plan.shape for plan in plain.tensors}
    echo.tensors.add("foo.bar", 3, 5)
    with pytest.raises(FamilyError, match=r"foo\.bar"):
        read(echo)


@pytest.mark.parametrize("name", ["echo", "relay"])
def test_without_the_registry_it_is_unknown(read: Read, name: str) -> None:
    blocks = (BLOCKS[0], BLOCKS[1]) if name == "echo" else (BLOCKS[2] + BLOCKS[3], BLOCKS[4])
    _, case = example(*blocks, name)
    with pytest.raises(FamilyError, match=f"{case.config['architectures'][0]} is not a known drafter"):
        read(case)


# name of an example, or of a fixture; architecture, drafting method, prefix of the file, block, drafts, further options
KINDS = [
    ("echo", "dflash", "draft-dflash", "dflash-", 8, 7, ()),
    ("relay", "relay", "draft-relay", "relay-", 8, 7, ()),
    ("dspark_deepspec", "dflash", "draft-dspark", "dspark-", 7, 7, ()),
    ("eagle3", "eagle3", "draft-eagle3", "eagle3-", None, llama.DEFAULT_N_MAX, ("--taps", "1,2,3")),
    ("gemma4_assistant", "gemma4-assistant", "draft-mtp", "mtp-", None, llama.DEFAULT_N_MAX, ()),
]


@pytest.mark.parametrize(
    ("name", "architecture", "spec_type", "prefix", "block", "n_max", "options"), KINDS, ids=[kind[0] for kind in KINDS]
)
def test_every_command_takes_it(
    request: pytest.FixtureRequest,
    case_dir: Make,
    fixtures: Path,
    tmp_path: Path,
    run: Run,
    name: str,
    architecture: str,
    spec_type: str,
    prefix: str,
    block: int | None,
    n_max: int,
    options: tuple[str, ...],
) -> None:
    case = mk.CASES[name]() if name in mk.CASES else request.getfixturevalue(name)
    where = case_dir(for_tiny_target(case))
    shutil.copytree(fixtures / "tiny-js" / "target", where / "target", dirs_exist_ok=True)
    drafter, target, target_gguf = where / "drafter", where / "target", fixtures / "tiny-js" / "target-bf16.gguf"
    out = tmp_path / "out"
    wrong = ["target-architecture"] if architecture == "gemma4-assistant" else []  # the tiny target is a Qwen3
    forced = ["--force-pair"] if wrong else []

    code, printed, said = run(
        *(drafter, "--target-model-dir", target, "--target-name", "T", "-t", "bf16", "-o", out, *options),
        *forced,
    )
    assert code == 0, said
    converted = Path(printed.strip())
    assert converted.name == f"{prefix}T-BF16.gguf"
    assert f"--spec-type {spec_type} --spec-draft-n-max {n_max}" in said
    written = open_gguf(converted)
    assert written.architecture == architecture
    if taps := written.get(f"{architecture}.target_layers"):  # the file counts inputs, its origin and --taps outputs
        assert (list(taps), list(written.get("dflash_convert.source_taps"))) == ([2, 3, 4], [1, 2, 3])

    small = out / f"{prefix}T-Q8_0.gguf"
    assert run("quantize", converted, small, "q8_0")[0] == 0
    assert run("verify", small, drafter, "--target-model-dir", target, *options)[0] == 0

    code, printed, said = run("inspect", small, "--json")
    found = json.loads(printed)
    assert (code, found["kind"], found["architecture"]) == (0, "drafter-gguf", architecture)
    assert (found.get("block_size"), found.get("mask_token_id")) == (block, mk.MASK if block else None)
    assert found["runtimes"] == [f"llama.cpp from {llama.BUILD} (--spec-type {spec_type})"]

    code, printed, said = run("check", small, target_gguf, "--json")
    assert code == (4 if wrong else 0), printed
    assert [f["name"] for f in json.loads(printed)["findings"] if f["severity"] == "error"] == wrong

    code, printed, said = run("inspect", small, "--target-model-dir", target, "--memory", "--ctx-size", 512, "--json")
    assert code == 0, said
    kv = {"eagle3": 0.25, "gemma4-assistant": 0.0}.get(architecture, 0.5)  # 512 x 2 x 128 halves a layer of its own
    assert json.loads(printed)["memory"]["drafter"]["kv_mib"] == kv

    server = tmp_path / "llama-server"
    server.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{FAKE}" {spec_type} "$@"\n')
    server.chmod(0o755)
    prompts = tmp_path / "one.jsonl"
    prompts.write_text('{"prompt": "one", "n_predict": 31}\n')
    code, printed, said = run(
        *("validate", small, target_gguf, "--llama-server", server, "--prompts", prompts, "--quick", "--json"),
        *forced,
    )
    assert code == 0, said
    result = json.loads(printed)
    assert (result["verdict"], result["drafter"]["spec_type"]) == ("healthy", spec_type)
    assert result["settings"]["n_max_cap"] == (n_max if block else None)

    (tmp_path / "validation.json").write_text(printed)
    package = tmp_path / "package"
    code, printed, said = run("package", small, "--out", package, "--validation", tmp_path / "validation.json")
    assert code == 0, said
    assert run("package", "--check", package)[0] == 0
    manifest = json.loads((package / "manifest.json").read_text())
    assert (manifest["spec_type"], manifest["n_max"]) == (spec_type, n_max if block else None)
    assert f'- "{architecture}"' in (package / "README.md").read_text()


def test_the_loaders_table_of_the_new_architecture_is_checked(
    relay: mk.Case, case_dir: Make, fixtures: Path, tmp_path: Path, run: Run
) -> None:
    """A checkpoint without the gate is refused by its family, a file whose gate has another shape by check."""
    where = case_dir(for_tiny_target(relay))
    shutil.copytree(fixtures / "tiny-js" / "target", where / "target", dirs_exist_ok=True)
    call = (where / "drafter", "--target-model-dir", where / "target", "-o", tmp_path / "relay-T-BF16.gguf")
    module = detect.FAMILIES[-1]
    good = module.__dict__["TABLE"]["relay_gate.weight"]
    assert run(*call)[0] == 0
    row = llama.drafter("relay")
    assert row is not None
    row.parts[0].tensors["relay_gate.weight"] = "F H"  # type: ignore[index]
    code, printed, _ = run("check", tmp_path / "relay-T-BF16.gguf", fixtures / "tiny-js" / "target-bf16.gguf", "--json")
    assert (code, good) == (4, "H H")
    assert [f["name"] for f in json.loads(printed)["findings"]] == ["tensor-shapes"]
    del relay.tensors["relay.gate.weight"]
    where = case_dir(for_tiny_target(relay))
    shutil.copytree(fixtures / "tiny-js" / "target", where / "target", dirs_exist_ok=True)
    code, _, said = run(where / "drafter", "--target-model-dir", where / "target", "--dry-run")
    assert code == 3
    assert "no tensor for relay_gate.weight" in said


def test_the_embedded_engine_knows_every_row(relay: mk.Case) -> None:
    assert embedded.spec_types()["draft-relay"] == "COMMON_SPECULATIVE_TYPE_DRAFT_RELAY"
