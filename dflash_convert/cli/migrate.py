"""dflash-convert migrate OLD.gguf NEW.gguf"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dflash_convert.cli.common import echo, json_option, override_options, say, show_notes, verbosity_options

if TYPE_CHECKING:
    from dflash_convert.container.types import KV


@click.command("migrate")
@click.argument("source", metavar="OLD.gguf", type=click.Path(path_type=Path))
@click.argument("output", metavar="NEW.gguf", type=click.Path(path_type=Path))
@click.option("--target-model-dir", "target", metavar="TARGET", help="The target, for a file without a vocabulary.")
@click.option("--dry-run", is_flag=True, help="Print what would change and write nothing.")
@click.option("--force", is_flag=True, help="Replace an existing output.")
@click.option("--plain", is_flag=True, help="Accepted for symmetry: the origin is always noted.")
@override_options
@json_option
@verbosity_options
def command(source: Path, output: Path, target: str | None, overrides: Any, **given: Any) -> None:
    """Rewrite a drafter made for a fork of llama.cpp so that llama.cpp loads it.

    Names, keys and taps change, the weights' bytes do not. A file in llama.cpp's own form is refused: its taps
    must not be shifted twice.
    """
    from dflash_convert.container.reader import open_gguf
    from dflash_convert.forks.migrate import migrate_file, plan_migration, vocabulary_size

    vocabulary = _vocabulary(target, given["quiet"]) if target else None
    if given["dry_run"]:
        gguf = open_gguf(source)
        migration = plan_migration(gguf, vocabulary(vocabulary_size(gguf)) if vocabulary else None, overrides)
    else:
        migration = migrate_file(source, output, overrides, vocabulary=vocabulary, force=given["force"])
    show_notes(migration.notes, quiet=given["quiet"])
    if given["as_json"]:
        result = {
            "path": None if given["dry_run"] else str(output),
            "dialect": migration.dialect.name,
            "runtimes": migration.dialect.runtimes,
            "tensors": {plan.name: [s.name for s in plan.sources] for plan, _ in migration.tensors},
            "notes": [{"level": note.level, "text": note.text} for note in migration.notes],
        }
        click.echo(json.dumps(result, indent=1))
    elif given["dry_run"]:
        for plan, kind in migration.tensors:
            origin = plan.sources[0].name if plan.sources else "a key"
            echo(f"  {plan.name:<36} {kind.name:<6} <- {origin}")
    else:
        say(f"{source} ({migration.dialect.name}) rewritten for llama.cpp", quiet=given["quiet"])
        click.echo(output)


def _vocabulary(target: str, quiet: bool) -> Callable[[int], Sequence[KV]]:
    """Tokenizer keys from the target's files, for a vocabulary size."""
    from dflash_convert import hub
    from dflash_convert.vocab import load_vocabulary

    found = hub.resolve_target(target)
    show_notes(found.notes, quiet=quiet)
    return lambda size: load_vocabulary(found.path, vocab_size=size).keys(None)
