"""An option that can have no effect is refused, in every command by the same table."""

from __future__ import annotations

import importlib
from pathlib import Path

import click
import pytest

from dflash_convert.cli import COMMANDS
from dflash_convert.cli.common import parse
from dflash_convert.cli.idle import RULES
from dflash_convert.errors import UsageError

# for each rule of a command, in order, a line in which it holds; {gguf} is a file
LINES = {
    "convert": ("D --target-model-dir T", "D --target-model-dir T --dry-run", "D --target-model-dir T --dry-run"),
    "quantize": ("{gguf} b.gguf q8_0 --dry-run",),
    "migrate": ("{gguf} b.gguf --dry-run",),
    "inspect": ("{gguf}", "{gguf}"),
    "check": ("{gguf} T",),
    "verify": ("{gguf} D",),
    "validate": ("{gguf} T.gguf", "{gguf} T.gguf", "{gguf} T.gguf --quick", "{gguf} T.gguf --no-sampled"),
    "compare": ("T.gguf ngram-mod", "T.gguf ngram-mod --fresh"),
    "tune": ("T.gguf {gguf}", "T.gguf {gguf} --fresh"),
    "package": ("--check DIR",),
    "batch": ("r.toml --list", "r.toml --job 1", "r.toml --scheduler tcp://x:1"),
}
CASES = [(name, at, option) for name, rules in RULES.items() for at, rule in enumerate(rules) for option in rule.names]
VALUES = {"integer": "2", "integer range": "64", "float": "0.5", "float range": "0.5", "choice": "neox"}


@pytest.mark.parametrize(("name", "at", "option"), CASES)
def test_refused(name: str, at: int, option: str, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    module = importlib.import_module(f"dflash_convert.cli.{COMMANDS[name][0]}")
    command: click.Command = module.command
    parameter = {str(each.name): each for each in command.params}.get(option)
    if parameter is None:
        assert option in ("threads",), f"{name} has no {option}"  # one rule serves several commands
        return
    kind = next(v for k, v in vars(module).items() if k.endswith("Given") and k != "Given" and k != "ContestGiven")
    spelled = max(parameter.opts, key=len)
    given = [spelled]
    if not (isinstance(parameter, click.Option) and parameter.is_flag):
        given.append("1,2" if option == "taps" else VALUES.get(parameter.type.name, "x"))
    line = LINES[name][at].format(gguf=tmp_path / "a.gguf").split()
    parse(command, kind, line)
    with pytest.raises(UsageError, match=f"^{spelled} has no effect {RULES[name][at].why}"):
        parse(command, kind, [*line, *given])


def test_every_rule_has_a_line() -> None:
    assert {name: len(lines) for name, lines in LINES.items()} == {name: len(rules) for name, rules in RULES.items()}
