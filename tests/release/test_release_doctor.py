"""doctor: every problem has a cure, nothing else has one, and the token stays hidden."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from release_tools import ROOT, Done
from upload_hub import TOKEN

from dflash_convert import doctor
from dflash_convert.doctor import Diagnosis, Report
from dflash_convert.engine.trace import EngineInfo
from dflash_convert.installed import install_command
from dflash_convert.llama import spec_types

GOOD = EngineInfo(
    "llama-server", "/opt/llama-server", "4242", spec_types(), ("CUDA0: A Card (24000 MiB, 23000 MiB free)",)
)


def with_engines(monkeypatch: pytest.MonkeyPatch, *engines: EngineInfo) -> list[Diagnosis]:
    monkeypatch.setattr("dflash_convert.doctor.find_engines", lambda *_: list(engines))
    return doctor.engines(None, {})


REQUIRES = [
    "numpy>=1.26.4",
    "gguf>=0.17",
    "tqdm>=4.66.3",
    'tomli>=2.0.1; python_version < "3"',
    'xllamacpp>=2026; extra == "engine"',
    'ruff>=0.9; extra == "dev"',
]


def installed(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> dict[str, Diagnosis]:
    def version(name: str) -> str:
        if name not in versions:
            raise doctor.importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(doctor.importlib.metadata, "version", version)
    return {f.name: f for f in doctor.packages()}


def test_every_dependency_is_looked_at() -> None:
    block = (ROOT / "pyproject.toml").read_text().split("dependencies = [")[1].split("]")[0]
    wanted = {re.split("[>=]", item)[0] for item in re.findall(r'"([^"]+)"', block) if "python_version" not in item}
    assert wanted <= {f.name for f in doctor.packages()}, "reinstall the package: its metadata is older than this tree"


def test_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.importlib.metadata, "requires", lambda _: REQUIRES)
    found = installed(monkeypatch, {"numpy": "1.20", "tqdm": "4.66.10"})
    assert set(found) == {"numpy", "gguf", "tqdm", "xllamacpp"}, "neither what Python has nor what developers need"
    assert found["tqdm"].severity == "ok"
    assert (found["numpy"].severity, found["numpy"].value) == ("error", "1.20, >=1.26.4 is needed")
    assert found["gguf"].cure == "pip install 'gguf>=0.17'"
    assert found["xllamacpp"].severity == "note"
    assert str(found["xllamacpp"].cure).startswith(install_command("engine"))
    assert Report(tuple(found.values())).exit_code == 1
    assert Report((found["xllamacpp"], found["tqdm"])).exit_code == 0


def test_an_old_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.platform, "python_version", lambda: "3.9.1")
    found = {f.name: f for f in doctor.packages()}
    assert (found["python"].severity, found["python"].exit_code) == ("error", 1)


def test_without_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PACKAGE", "no-such-package-here")
    (finding,) = doctor.packages()
    assert finding.severity == "warning"
    assert finding.cure


def test_a_good_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    found = with_engines(monkeypatch, GOOD)
    assert all(f.severity == "ok" and f.cure is None for f in found)
    assert any(f.name == "device" and "CUDA0" in f.value for f in found)
    assert any(f.value == "draft-dflash, draft-dspark, draft-eagle3, draft-mtp" for f in found)


def test_an_old_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    found = with_engines(monkeypatch, EngineInfo("llama-server", "/x", "1", ("draft-eagle3",)))
    assert Report(tuple(found)).exit_code == 7
    assert any(f.cure == "update llama.cpp: it does not know draft-dflash, draft-dspark, draft-mtp" for f in found)


def test_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = with_engines(monkeypatch)
    assert (finding.severity, finding.exit_code) == ("error", 7)
    assert "pip install" in str(finding.cure)


def test_one_broken_engine_beside_a_good_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = with_engines(monkeypatch, EngineInfo("embedded", None, "", problem="cannot be used"), GOOD)
    assert [f.severity for f in found].count("warning") == 1
    assert Report(tuple(found)).exit_code == 0


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: Usage(0, 0, 10**9))
    finding = doctor.disk(tmp_path / "not" / "yet")[0]
    assert finding.severity == "warning"
    assert finding.value.startswith("953.7 MiB free")
    assert finding.cure
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: Usage(0, 0, 10**12))
    assert doctor.disk(tmp_path)[0].cure is None


def test_cli(program: Callable[..., Done], tmp_path: Path) -> None:
    server = tmp_path / "llama-server"
    server.write_text("#!/bin/sh\nexit 1\n")  # says nothing about itself
    server.chmod(0o755)
    done = program("doctor", "--offline", "--json", "--llama-server", server, HF_TOKEN=TOKEN, HF_HOME=str(tmp_path))
    answer = json.loads(done.out)
    assert answer["schema"] == 1
    assert done.code == answer["exit_code"]
    assert {f["area"] for f in answer["findings"]} == {"program", "packages", "engines", "disk", "hub"}
    for finding in answer["findings"]:
        assert set(finding) == {"area", "name", "value", "severity", "cure"}
        if finding["severity"] in ("warning", "error"):
            assert finding["cure"]
    assert TOKEN not in done.out + done.err
    table = program("doctor", "--offline", HF_HOME=str(tmp_path))
    assert "  ok  dflash-convert     0.1.0\n" in table.out
