"""Dependencies: bounded from below, pinned for CI, and nothing that loads code from a model file."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
# the first version without the known vulnerability, of everything that this project asks for
FIXED_IN = {
    "distributed": "2026.1",  # CVE-2026-23528
    "numpy": "1.22.0",  # CVE-2021-41496
    "sentencepiece": "0.2.1",  # CVE-2026-1260
    "tqdm": "4.66.3",  # CVE-2024-34062
}
LINE = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?>=([0-9.]+)")


def project() -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    data: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return data


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def required() -> dict[str, str]:
    """Package -> lower bound, of the dependencies and all extras."""
    data = project()
    lines = [*data["dependencies"], *(line for extra in data["optional-dependencies"].values() for line in extra)]
    found = {}
    for line in lines:
        if line.startswith("dflash-convert["):
            continue
        match = LINE.match(line)
        assert match, f"{line} has no lower bound"
        found[match[1].lower().replace("_", "-")] = match[2]
    return found


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_lower_bounds_exclude_what_is_known_to_be_vulnerable() -> None:
    bounds = required()
    for name, fixed in FIXED_IN.items():
        assert version(bounds[name]) >= version(fixed), f"{name}>={bounds[name]} allows versions before {fixed}"


def test_every_dependency_is_pinned_within_its_bound() -> None:
    pins = pinned()
    for name, low in required().items():
        if name == "tomli":  # only before Python 3.11
            continue
        assert version(pins[name]) >= version(low), name
    assert all(re.fullmatch(r"[0-9][0-9a-z.]*", pin) for pin in pins.values())


FORBIDDEN = ("torch", "transformers", "pickle", "marshal", "shelve", "dill", "joblib", "jinja2", "yaml")


@pytest.mark.parametrize("package", ["dflash_convert", "quant"])
def test_nothing_imports_what_can_run_a_model_files_code(package: str) -> None:
    """torch.load, pickle, template engines: neither imported anywhere nor reached through eval and exec."""
    files = sorted((ROOT / package).rglob("*.py"))
    assert len(files) > 10
    for file in files:
        source = file.read_text("utf-8")
        for name in FORBIDDEN:
            assert not re.search(rf"^\s*(?:import|from) {name}\b(?!tools)", source, re.MULTILINE), (
                f"{file.name}: {name}"
            )
        assert not re.search(r"(?<![.\w])(?:eval|exec)\(|__import__\(|trust_remote_code|shell=True", source), file.name
