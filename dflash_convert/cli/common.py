"""What several commands share: options and how notes and paths are shown."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dflash_convert.cli import complete
from dflash_convert.cli.answers import refuse_empty
from dflash_convert.cli.cost import cost_shown
from dflash_convert.cli.idle import refuse_idle
from dflash_convert.cli.terminal import echo, on_terminal
from dflash_convert.errors import UsageError
from dflash_convert.notes import Note

if TYPE_CHECKING:
    from dflash_convert.cli.progress import Progress
    from dflash_convert.drafter import Overrides, Taps
    from dflash_convert.head.options import HeadOptions
    from dflash_convert.plan import TypeOptions

F = TypeVar("F", bound=Callable[..., Any])
G = TypeVar("G", bound="Given")
R = TypeVar("R")

MARK = {"info": "", "derived": "derived: ", "skipped": "skipped: ", "warning": "WARNING: "}


def verbosity_options(command: F) -> F:
    """-q and -v: quiet keeps only errors, -v adds detail, -vv shows tracebacks."""
    command = click.option("-v", "--verbose", count=True, help="More detail, time and memory; twice: tracebacks too.")(
        command
    )
    return click.option("-q", "--quiet", is_flag=True, help="No messages and no progress, errors only.")(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")(command)


def sets_option(command: F) -> F:
    text = "Bundled set: code, javascript, prose, reasoning; chat."
    option = click.option(
        "--set", "sets", multiple=True, metavar="NAME", shell_complete=complete.prompt_sets, help=text
    )
    return option(command)


@dataclass(frozen=True, kw_only=True)
class Given:
    """A command's parameters, a field for each; the groups of :func:`type_options`, :func:`override_options` and
    :func:`head_options` are one field each."""

    as_json: bool
    quiet: bool
    verbose: int

    def say(self, text: str) -> None:
        say(text, quiet=self.quiet)

    def check_outputs(self, inputs: object = (), **outputs: Path | None) -> None:
        """Refuse what cannot be written, is named twice, or is one of the inputs, here or in ``inputs``, at once.
        ``outputs``: a path for each field that names one."""
        from dflash_convert.container.shards import files_in
        from dflash_convert.output import check_output_path, try_place

        read = [*files_in(self, *outputs), *files_in(inputs)]
        places: dict[str, str] = {}
        for name, path in outputs.items():
            if path is not None:
                other = places.setdefault(os.path.realpath(path), name)
                if other != name:
                    both = " and ".join(f"--{each.replace('_', '-')}" for each in (other, name))
                    raise UsageError(f"{both} are both {path}", tip="give two names")
                check_output_path(path, force=getattr(self, "force", False), inputs=read)
                try_place(path)

    def detail(self, text: str) -> None:
        """With -v."""
        if self.verbose:
            self.say(text)

    def show_notes(self, notes: Iterable[Note]) -> None:
        show_notes(notes, quiet=self.quiet)

    @property
    def progress(self) -> bool:
        """Whether libraries may draw their own bars."""
        return not self.quiet and on_terminal(err=True)

    def bar(self, phase: str, unit: str, total: int | None = None) -> Progress:
        """The progress of one step, for ``with``."""
        from dflash_convert.cli.progress import Progress

        return Progress(phase, unit, total, quiet=self.quiet)


def takes(kind: type[G]) -> Callable[[Callable[[G], R]], Callable[..., R]]:
    """The command receives its parameters as one value of ``kind``."""

    def decorate(command: Callable[[G], R]) -> Callable[..., R]:
        @functools.wraps(command)
        def call(**given: Any) -> R:
            value = value_of(kind, given)
            refuse_idle(click.get_current_context(), value)
            with cost_shown(value.verbose):
                return command(value)

        return call

    return decorate


def value_of(kind: type[G], given: Mapping[str, Any]) -> G:
    """``given`` are a command's parameters as click parsed them."""
    values = dict(given)
    for name, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):  # nan lies in every range that click checks
            raise UsageError(f"--{name.replace('_', '-')} {value}: a number is wanted")
    for name in GROUPS.keys() & {field.name for field in fields(kind)}:
        values[name] = GROUPS[name](values)
    return kind(**values)


def parse(command: click.Command, kind: type[G], arguments: Sequence[str]) -> G:
    """What ``command`` would receive for these arguments; click.ClickException for bad ones."""
    refuse_empty(arguments)
    context = command.make_context(str(command.name), list(arguments))
    value = value_of(kind, context.params)
    refuse_idle(context, value)
    return value


def say(text: str, *, quiet: bool = False) -> None:
    """A message for the person: stderr, so that stdout carries only the result."""
    if not quiet:
        echo(text, err=True)


def show_notes(notes: Iterable[Note], *, quiet: bool = False) -> None:
    for note in notes:
        say(f"  {MARK[note.level]}{note.text}", quiet=quiet)


def type_options(command: F) -> F:
    """The recipe's options; a command's value holds them as ``types``."""
    for option in (
        click.option("--imatrix", metavar="FILE", type=click.Path(path_type=Path), help="llama-imatrix's weights."),
        click.option(
            "--output-tensor-type", metavar="TYPE", shell_complete=complete.types, help="Type of output.weight."
        ),
        click.option(
            "--token-embedding-type", metavar="TYPE", shell_complete=complete.types, help="Type of token_embd.weight."
        ),
        click.option(
            "--tensor-type",
            multiple=True,
            shell_complete=complete.types,
            metavar="REGEX=TYPE",
            help="Type of matching tensors; repeat.",
        ),
        click.option("--pure", is_flag=True, help="One type for every matrix, no mixture."),
        click.option("--strict", is_flag=True, help="Refuse guesses and fallbacks instead of listing them."),
    ):
        command = option(command)
    return command


def _types(given: dict[str, Any]) -> TypeOptions:
    from dflash_convert.plan import TypeOptions

    return TypeOptions(
        pure=given.pop("pure"),
        strict=given.pop("strict"),
        output_type=_upper(given.pop("output_tensor_type")),
        embedding_type=_upper(given.pop("token_embedding_type")),
        overrides=tuple(_override(text) for text in given.pop("tensor_type")),
        imatrix=given.pop("imatrix"),
    )


def override_options(command: F) -> F:
    """What config.json lacks or has wrong; a command's value holds it as ``overrides``."""
    for option in (
        click.option(
            "--block-size", type=click.IntRange(2, 4096), help="The drafter's block, instead of config.json's."
        ),
        click.option("--mask-token-id", type=click.IntRange(0), help="The mask token's id."),
        click.option("--taps", metavar="ID,ID,...", help="Target layers whose output the drafter reads, from 0."),
        click.option("--rope-dimension-count", type=click.IntRange(2), help="Rotated dimensions of a head."),
        click.option("--rope-theta", type=click.FloatRange(0, min_open=True), help="The drafter's rope base."),
        click.option(
            "--rope-style", type=click.Choice(["neox", "norm"]), help="Rope rotates a head's halves, or neighbours."
        ),
        click.option(
            "--sample-from-anchor/--no-sample-from-anchor",
            default=None,
            help="Drafts start in the anchor's own slot, or after it.",
        ),
        click.option("--keep-unclaimed", is_flag=True, help="Write tensors that llama.cpp does not load."),
    ):
        command = option(command)
    return command


def _overrides(given: dict[str, Any]) -> Overrides:
    from dflash_convert.drafter import Overrides

    return Overrides(
        block_size=given.pop("block_size"),
        mask_token_id=given.pop("mask_token_id"),
        taps=_taps(given.pop("taps")),
        rope_dimension_count=given.pop("rope_dimension_count"),
        rope_theta=given.pop("rope_theta"),
        rope_style=given.pop("rope_style"),
        sample_from_anchor=given.pop("sample_from_anchor"),
        keep_unclaimed=given.pop("keep_unclaimed"),
    )


def head_options(command: F) -> F:
    """An output head of the drafter's own; a command's value holds it as ``head``."""
    path = click.Path(path_type=Path)
    for option in (
        click.option("--cover", type=click.FloatRange(0, 1), help="Least share of held-out tokens; default: 0.995."),
        click.option("--own-embeddings", metavar="TYPE", help="Embeddings of the drafter's own too; copy or a type."),
        click.option("--head-type", metavar="TYPE", help="Type of the head's rows; default: copy, as the target's."),
        click.option("--only-ranked", is_flag=True, help="Without the tokens that are kept whatever the ranking says."),
        click.option(
            "--ranking", type=path, metavar="FILE", help="A ranking: an id a line, best first, or id and count."
        ),
        click.option("--text", type=path, multiple=True, metavar="FILE", help="Rank by text, a kind each; repeat."),
        click.option(
            "--from-run", type=path, metavar="R.json", help="Rank by the target's own answers in a stored run."
        ),
        click.option("--full", is_flag=True, help="A head of the drafter's own with every token."),
        click.option("--keep", type=click.IntRange(1), metavar="N", help="A head of the drafter's own with N rows."),
    ):
        command = option(command)
    return command


def _head(given: dict[str, Any]) -> HeadOptions | None:
    """None where neither --keep nor --full is given."""
    from dflash_convert.head.options import HeadOptions

    keep, full = given.pop("keep"), given.pop("full")
    names = ("from_run", "text", "ranking", "only_ranked", "head_type", "own_embeddings", "cover")
    stated = {name: value for name in names if (value := given.pop(name)) not in (None, (), False)}
    if keep is not None and full:
        raise UsageError("--keep and --full exclude each other")
    if keep is None and not full:
        if stated:
            raise UsageError(
                f"--{next(iter(stated)).replace('_', '-')} has no effect without --keep N or --full",
                tip="--keep 65536 keeps the 64k best rows",
            )
        return None
    return HeadOptions(keep=keep, **stated)


GROUPS: dict[str, Callable[[dict[str, Any]], Any]] = {"types": _types, "overrides": _overrides, "head": _head}


def _taps(text: str | None) -> Taps | None:
    from dflash_convert.drafter import Taps

    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 7 for part in parts):
        raise click.BadParameter(f"{text!r} is not a list of layer numbers like 1,9,17", param_hint="--taps")
    return Taps.from_outputs(int(part) for part in parts)


def _upper(name: str | None) -> str | None:
    return None if name is None else name.upper()


def _override(text: str) -> tuple[str, str]:
    pattern, _, kind = text.rpartition("=")
    if not pattern:
        raise click.BadParameter(f"{text!r} is not REGEX=TYPE", param_hint="--tensor-type")
    return pattern, kind.upper()
