"""dflash-convert head IN.gguf TARGET OUT.gguf"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dflash_convert.cli import nextsteps
from dflash_convert.cli.common import Given, head_options, json_option, takes, verbosity_options
from dflash_convert.cli.terminal import emit, leaving
from dflash_convert.container.reader import open_gguf, require_file, require_target
from dflash_convert.errors import UsageError
from dflash_convert.text import size

if TYPE_CHECKING:
    from dflash_convert.head.options import HeadOptions

PATH = click.Path(path_type=Path)


@dataclass(frozen=True, kw_only=True)
class HeadGiven(Given):
    source: Path
    target: Path
    output: Path
    head: HeadOptions | None
    force: bool
    threads: int | None


@click.command("head")
@click.argument("source", metavar="IN.gguf", type=PATH)
@click.argument("target", metavar="TARGET", type=PATH)
@click.argument("output", metavar="OUT.gguf", type=PATH)
@head_options
@click.option("--force", is_flag=True, help="Replace an existing output.")
@click.option("--threads", type=click.IntRange(1), help="Processes that share the work; default: all cores.")
@json_option
@verbosity_options
@takes(HeadGiven)
def command(given: HeadGiven) -> None:
    """Give a drafter an output head of its own, with the target's rows that are worth keeping.

    A reduced head is smaller and faster; with embeddings of its own the drafter borrows nothing from its target and
    may sit on another device. The target still verifies every token. TARGET is its GGUF or its directory.
    """
    if given.head is None:
        raise UsageError("one of --keep N and --full is needed", tip="--keep 65536 keeps the 64k best rows")
    require_file(given.source)
    if not (given.target / "config.json").is_file():  # else the weights in a target's directory
        require_target(given.target)
    from dflash_convert.forks.dialects import refuse_fork
    from dflash_convert.head.base import Base
    from dflash_convert.head.build import default_name
    from dflash_convert.output import refuse_special
    from dflash_convert.pairing.view import FORCED
    from dflash_convert.quantization import write_file
    from dflash_convert.shrink import WHOLE, shrink
    from dflash_convert.target import Target

    output = given.output
    refuse_special(output)
    if output.is_dir():
        output = output / default_name(given.source, given.head.keep)
    given.check_outputs(output=output)
    drafter = open_gguf(given.source)
    refuse_fork(drafter)
    (plan,), choice = shrink([Base.of(drafter)], given.head, Target.read(given.target), force=FORCED in drafter.keys)
    if choice is not None:
        given.show_notes(choice.notes)
    total = sum(tensor.rows * tensor.shape[-1] for tensor in drafter.tensors.values())
    with given.bar("writing", "weights", total) as bar, leaving(f"{output} is as it was"):
        nbytes = write_file(plan, output, force=given.force, threads=given.threads, progress=bar.update)
    given.say(f"done: {size(nbytes)}")  # the path stands on stdout
    if given.as_json:
        emit({"schema": 1, "path": str(output), "bytes": nbytes, **(choice.json() if choice else WHOLE)})
    else:
        click.echo(output)
    nextsteps.after_file(given, output)
