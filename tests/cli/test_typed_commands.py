"""Each command's value has a field for every parameter, of the type that click makes of it."""

from __future__ import annotations

import dataclasses
import importlib
import typing
from pathlib import Path
from typing import Any

import click
import pytest

from dflash_convert.cli import COMMANDS
from dflash_convert.cli.common import GROUPS, Given, head_options, override_options, parse, type_options
from dflash_convert.drafter import Overrides
from dflash_convert.head.options import HeadOptions
from dflash_convert.plan import TypeOptions


def command_of(name: str) -> tuple[click.Command, type[Given]]:
    module = importlib.import_module(f"dflash_convert.cli.{COMMANDS[name][0]}")
    kinds = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Given)]
    (kind,) = [value for value in kinds if value.__module__ == module.__name__]
    return module.command, kind


def grouped() -> dict[str, set[str]]:
    """The parameters behind each field that stands for several."""
    found = {}
    for name, options in (("types", type_options), ("overrides", override_options), ("head", head_options)):
        command = click.command()(options(lambda: None))
        found[name] = {str(parameter.name) for parameter in command.params}
    return found


def expected(parameter: click.Parameter, absent: Any) -> Any:
    """The type of a parsed parameter's value; ``absent`` is the value when it is not given."""
    kinds = {"integer": int, "integer range": int, "float": float, "float range": float, "boolean": bool, "path": Path}
    if isinstance(parameter, click.Option) and parameter.count:
        return int
    kind = kinds.get(parameter.type.name, str)
    if parameter.nargs == -1 or parameter.multiple:
        return tuple[kind, ...]  # type: ignore[valid-type]
    return kind | None if absent is None else kind


@pytest.mark.parametrize("name", COMMANDS)
def test_every_parameter_is_a_field_of_its_type(name: str) -> None:
    command, kind = command_of(name)
    fields = {field.name for field in dataclasses.fields(kind)}
    groups = {group: names for group, names in grouped().items() if group in fields}
    assert fields & GROUPS.keys() == groups.keys()
    known = typing.get_type_hints(kind, vars(importlib.import_module(kind.__module__)), NAMES)
    parameters = {str(p.name): p for p in command.params}
    assert fields - groups.keys() == parameters.keys() - set().union(*groups.values())
    required = ["x" for p in command.params if isinstance(p, click.Argument) and p.required]
    absent = command.make_context(name, required).params
    for field in sorted(fields - groups.keys()):
        assert known[field] == expected(parameters[field], absent[field]), f"{name}: {field}"


NAMES = {
    "TypeOptions": TypeOptions,
    "Overrides": Overrides,
    "HeadOptions": HeadOptions,
    "Path": Path,
}  # inherited fields name them too


def test_a_command_line_as_a_value() -> None:
    command, kind = command_of("convert")
    given: Any = parse(
        command, kind, ["a/b", "-t", "q8_0", "--taps", "1,9", "--tensor-type", "x=f16", "--threads", "2", "-q"]
    )
    assert (given.drafter, given.outtypes, given.threads, given.quiet, given.target) == (
        "a/b",
        ("q8_0",),
        2,
        True,
        None,
    )
    assert given.overrides.taps.outputs == (1, 9)
    assert given.types.overrides == (("x", "F16"),)
    with pytest.raises(click.BadParameter, match="not a list of layer numbers"):
        parse(command, kind, ["a/b", "--taps", "x"])
    with pytest.raises(dataclasses.FrozenInstanceError):
        given.threads = 3
