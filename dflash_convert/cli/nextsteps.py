"""What to do next: commands to paste, with files that exist or a placeholder in capitals."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_convert.cli.terminal import PROGRAM

if TYPE_CHECKING:
    from dflash_convert.cli.common import Given
    from dflash_convert.container.reader import Gguf
    from dflash_convert.conversion import Conversion

TARGET, TARGET_DIR, DRAFTER, DRAFTER_DIR = "TARGET.gguf", "TARGET", "DRAFTER.gguf", "DRAFTER"
REPOSITORY = "OWNER/NAME"
REPO_URL = re.compile(r"https?://[^/\s]+/([\w.-]+/[\w.-]+)/?", re.ASCII)


def command(*words: object) -> str:
    return shlex.join([PROGRAM, *map(str, words)])


def show(given: Given, steps: Iterable[tuple[str, Sequence[str]]], where: str | None = None) -> None:
    """``steps``: what for, and the commands. ``where`` explains a placeholder among them."""
    for purpose, commands in steps:
        given.say(f"{purpose}:")
        for each in commands:
            given.say(f"  {each}")
    if where:
        given.say(where)


def where_target(name: str, repository: str | None = None) -> str:
    """Where the GGUF comes from that the placeholder stands for; ``repository`` is the target's own."""
    of = f"of {repository or name}"
    return f'{TARGET}: the target\'s GGUF, {of}; on the Hub search for "{name} GGUF"'


def target_of(keys: Callable[[str], object], fallback: str = "the target") -> tuple[str, str | None]:
    """The target's name and repository, as a drafter's file has them from its making or from its model card; ``keys``
    gives a key's value or None."""
    repository = keys("dflash_convert.target.repository")
    if not isinstance(repository, str):
        found = REPO_URL.fullmatch(str(keys("general.base_model.0.repo_url")))
        repository = found[1] if found else None
    name = repository.rsplit("/", 1)[-1] if repository else keys("dflash_convert.target.name")
    return str(name or keys("general.base_model.0.name") or fallback), repository


def after_convert(
    given: Given, conversion: Conversion, paths: Sequence[Path], target: Path | None, measured: int | None
) -> None:
    """``measured``: the draft length that a sweep recommends; None where none was run."""
    from dflash_convert.naming import FIRST_GUESS, server_command

    d = conversion.description
    run = [server_command(target or TARGET, path, d.variant, measured or d.n_max) for path in paths]
    steps = [("run it" if measured else f"run it ({FIRST_GUESS})", run)]
    if target is None:
        steps.append(("see what it gains", [command("validate", path, TARGET) for path in paths]))
    keys = {kv.name: kv.value for kv in conversion.files[0].keys}
    show(given, steps, None if target else where_target(*target_of(keys.get, conversion.target_name)))


def after_file(given: Given, path: Path) -> None:
    """A drafter's GGUF was written or found in order."""
    from dflash_convert.container.reader import open_gguf
    from dflash_convert.naming import FIRST_GUESS

    gguf = open_gguf(path)
    run = run_command(gguf, path)
    steps = [(f"run it ({FIRST_GUESS})", [run])] if run else []
    steps.append(("see what it gains", [command("validate", path, TARGET)]))
    show(given, steps, where_target(*target_of(gguf.get)))


def upload(given: Given, packages: Iterable[Path]) -> None:
    show(given, [("upload it", [command("publish", path, REPOSITORY) for path in packages])])


def run_command(gguf: Gguf, path: Path, target: Path | None = None, n_max: int | None = None) -> str:
    """llama-server's call for a drafter's GGUF; nothing for a file that is none."""
    from dflash_convert import llama
    from dflash_convert.inspect_file import first_n_max
    from dflash_convert.naming import server_command

    variant = llama.method(gguf.architecture, gguf.tensors)
    return server_command(target or TARGET, path, variant, n_max or first_n_max(gguf)) if variant else ""
