"""dflash-convert migrate OLD.gguf NEW.gguf"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dflash_convert.cli import nextsteps
from dflash_convert.cli.common import Given, json_option, override_options, takes, verbosity_options
from dflash_convert.cli.terminal import echo, emit, stays_fetched

if TYPE_CHECKING:
    from dflash_convert.container.types import KV
    from dflash_convert.drafter import Overrides
    from dflash_convert.forks.migrate import Migration


@dataclass(frozen=True, kw_only=True)
class MigrateGiven(Given):
    source: Path
    output: Path
    target: str | None
    dry_run: bool
    force: bool
    overrides: Overrides


@click.command("migrate")
@click.argument("source", metavar="OLD.gguf", type=click.Path(path_type=Path))
@click.argument("output", metavar="NEW.gguf", type=click.Path(path_type=Path))
@click.option("--target-model-dir", "target", metavar="TARGET", help="The target, for a file without a vocabulary.")
@click.option("--dry-run", is_flag=True, help="Print what would change and write nothing.")
@click.option("--force", is_flag=True, help="Replace an existing output.")
@override_options
@json_option
@verbosity_options
@takes(MigrateGiven)
def command(given: MigrateGiven) -> None:
    """Rewrite a drafter made for a fork of llama.cpp so that llama.cpp loads it.

    Names, keys and taps change, the weights' bytes do not. A file in llama.cpp's own form is refused: its taps
    must not be shifted twice.
    """
    from dflash_convert.container.reader import open_gguf, require_file
    from dflash_convert.errors import UsageError

    require_file(given.source)
    from dflash_convert.forks.migrate import migrate_file, plan_migration, vocabulary_size

    idle = sorted(set(given.overrides.stated()) - {"block-size", "mask-token-id", "taps"})
    if idle:
        raise UsageError(f"--{idle[0]} has no effect on migrate: the weights' bytes and their rope stay as they are")
    vocabulary = _vocabulary(given.target, given) if given.target else None
    if given.dry_run:
        gguf = open_gguf(given.source)
        migration = plan_migration(gguf, vocabulary(vocabulary_size(gguf)) if vocabulary else None, given.overrides)
    else:
        migration = migrate_file(given.source, given.output, given.overrides, vocabulary=vocabulary, force=given.force)
    given.show_notes(migration.notes)
    if given.as_json:
        result = {
            "path": None if given.dry_run else str(given.output),
            "dialect": migration.dialect.name,
            "runtimes": migration.dialect.runtimes,
            "tensors": {plan.name: [s.name for s in plan.sources] for plan, _ in migration.tensors},
            "notes": [{"level": note.level, "text": note.text} for note in migration.notes],
        }
        emit(result)
    elif given.dry_run:
        echo("\n".join(_mapping(migration)))
    else:
        given.detail("\n".join(_mapping(migration)))
        given.say(f"{given.source} ({migration.dialect.name}) rewritten for llama.cpp")
        click.echo(given.output)
        nextsteps.after_file(given, given.output)


def _mapping(migration: Migration) -> list[str]:
    """New names, types and old names."""
    rows = [(p.name, kind.name, p.sources[0].name if p.sources else "a key") for p, kind in migration.tensors]
    return [f"  {name:<36} {kind:<6} <- {origin}" for name, kind, origin in rows]


def _vocabulary(target: str, given: MigrateGiven) -> Callable[[int], Sequence[KV]]:
    """Tokenizer keys from the target's files, for a vocabulary size."""
    from dflash_convert import hub
    from dflash_convert.target import Target
    from dflash_convert.vocab.copied import vocabulary_of

    stays_fetched(target)
    found = hub.resolve_target(target)
    given.show_notes(found.notes)
    read = Target.of(found)
    return lambda size: vocabulary_of(read, vocab_size=size).keys(None)
