"""The worked example of docs/adding-a-family.md is a family that works."""

from __future__ import annotations

import re
import types
from pathlib import Path
from typing import Any

import make_checkpoints as mk
import pytest
from family_cases import Read

from dflash_convert.errors import FamilyError
from dflash_convert.families import detect

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "adding-a-family.md"


@pytest.fixture
def example() -> tuple[Any, mk.Case]:
    """(the module, the fixture's checkpoint) of the document's two code blocks."""
    module_text, fixture_text = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    module = types.ModuleType("echo")
    exec(compile(module_text, str(DOCUMENT), "exec"), module.__dict__)
    space: dict[str, Any] = dict(vars(mk))
    exec(compile(fixture_text, str(DOCUMENT), "exec"), space)
    return module, space["echo"]()


def test_the_example_is_a_family(example: tuple[Any, mk.Case], read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    module, case = example
    monkeypatch.setattr(detect, "FAMILIES", (*detect.FAMILIES, module))
    found = read(case)
    assert found.taps.inputs == (2, 3, 4)
    plain = read("dflash")
    assert {plan.name: plan.shape for plan in found.tensors} == {plan.name: plan.shape for plan in plain.tensors}
    case.tensors.add("foo.bar", 3, 5)
    with pytest.raises(FamilyError, match=r"foo\.bar"):
        read(case)


def test_without_the_registry_it_is_unknown(
    example: tuple[Any, mk.Case], read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = tuple(family for family in detect.FAMILIES if "EchoDraftModel" not in family.ARCHITECTURES)
    monkeypatch.setattr(detect, "FAMILIES", others)
    with pytest.raises(FamilyError, match="EchoDraftModel is not a known drafter"):
        read(example[1])
