"""Fixtures shared by all tests."""

from __future__ import annotations

import ast
import ctypes
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import shared_data
from hypothesis import HealthCheck, settings
from parsing import undisturbed

# Two runs of the tests share two cores: threads that spin for each other (OpenMP's in the engine, OpenBLAS's in numpy)
# cost more there than they bring.  Set before numpy is imported; children inherit it.
for _name in ("OMP_THREAD_LIMIT", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "fixtures"
FAKE_SERVER = ROOT / "tests" / "engine" / "fake_llama_server.py"
COUNTED = "counted: "


for _name in ("COLUMNS", "LINES"):  # what is printed into a pipe must not depend on a terminal's
    os.environ.pop(_name, None)
    os.unsetenv(_name)  # pytest loads readline, which sets them behind Python's back
os.environ["DFLASH_TOKENIZER_CACHE"] = "off"  # for the programs that tests start, too


# what takes more than some seconds: whole engines, every call failed in turn, every pair, children without number
SLOW = (
    *("tests/faults", "tests/hostile", "tests/hub", "tests/forward", "tests/validate", "tests/release", "tests/output"),
    *(
        "tests/parity",
        "tests/engine",
        "tests/test_limits.py",
        "tests/test_portable.py",
        "tests/head/test_head_runs.py",
        "tests/convert",
    ),
    *(
        "tests/contest/test_contest_machines.py",
        "tests/contest/test_contest_commands.py",
        "tests/contest/test_contest_siblings.py",
        "tests/contest/test_contest_families.py",
        "tests/report/test_report_br",
    ),
    *("tests/pairing/test_every", "tests/verify/test_family_mutations.py", "tests/families/test_families_run.py"),
    *("tests/docs/test_docs_examples.py", "tests/docs/test_docs_site.py"),
    *(
        "tests/families/test_adding",
        "tests/vocab/test_vocab_mistral.py",
        "tests/vocab/test_vocab_roundtrip.py",
        "tests/differential",
        "tests/packaging",
        "tests/contest/test_contest_loads.py",
        "tests/vocab/test_vocab_fuzz.py",
        "tests/vocab/test_vocab_parity.py",
    ),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker("slow")


# how long an example takes is the machine's affair
settings.register_profile("patient", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_configure() -> None:
    ast.parse = undisturbed


@pytest.fixture(scope="session")
def fixtures() -> Path:
    return FIXTURES


@pytest.fixture(scope="session")
def tiny_drafter(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained drafter of fixtures/tiny-js as Q8_0."""
    from dflash_convert import conversion as convert
    from dflash_convert.target import Target

    pair = fixtures / "tiny-js"
    made = convert.prepare(convert.Source(pair / "drafter"), Target.read(pair / "target"), convert.Options(("q8_0",)))
    place = tmp_path_factory.mktemp("tiny-js") / "dflash-tiny-js-Q8_0.gguf"
    convert.write(made, [place], threads=1)
    return place


@pytest.fixture
def fake_server(tmp_path: Path) -> Callable[[str], Path]:
    """fake_server('oom') -> an executable that behaves like a llama-server in that mode."""

    def make(mode: str) -> Path:
        path = tmp_path / f"llama-server-{mode}"
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{FAKE_SERVER}" {mode} "$@"\n')
        path.chmod(0o755)
        return path

    return make


@pytest.fixture(scope="session")
def shared() -> Path:
    """The reference data beside the checkout; required in CI, otherwise a reason to skip."""
    reason = shared_data.missing()
    if reason is not None and os.environ.get("CI") == "true":
        pytest.fail(f"{reason}: {shared_data.SHARED}")
    if reason is not None:
        pytest.skip(reason)
    return shared_data.SHARED


@pytest.fixture(scope="session")
def unprivileged() -> Callable[[], None]:
    """For subprocess's preexec_fn: takes the right to write where the mode forbids it away from root."""
    override, bound, drop = 1, 23, 24  # CAP_DAC_OVERRIDE, PR_CAPBSET_READ, PR_CAPBSET_DROP
    try:
        libc = ctypes.CDLL(None)
    except TypeError:
        pytest.skip("needs Linux's prctl")

    def lower() -> None:
        if libc.prctl(bound, override, 0, 0, 0) == 1 and os.geteuid() == 0:
            assert libc.prctl(drop, override, 0, 0, 0) == 0

    return lower


@pytest.fixture
def count(record_property: Callable[[str, object], None]) -> Callable[[str, int], None]:
    """count("conversions killed", 7): the sums of a run are shown at its end, so that it tells how much it tried."""
    return lambda what, number: record_property(COUNTED + what, number)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    sums: Counter[str] = Counter()
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if name.startswith(COUNTED):
                sums[name.removeprefix(COUNTED)] += value
    for what, number in sums.items():
        terminalreporter.write_line(f"{number:,} {what}")
