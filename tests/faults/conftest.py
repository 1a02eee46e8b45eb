from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from fault_points import COUNTS

from dflash_convert.cli import main

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


@pytest.fixture(params=["convert", "quantize"])
def job(request: pytest.FixtureRequest, fixtures: Path, converted: Path) -> Job:
    pair = fixtures / "tiny-js"
    if request.param == "convert":
        options = ["--target-model-dir", pair / "target", "-t", "q8_0", "-o"]
        return Job("convert", ["convert", pair / "drafter", *options], [])
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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The loops' counts, so that a run shows how much it tried."""
    for what, count in COUNTS.items():
        terminalreporter.write_line(f"faults: {count:,} {what}")
