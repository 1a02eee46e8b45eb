"""dflash-convert check DRAFTER TARGET"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dflash_convert import hub
from dflash_convert.cli import complete, nextsteps
from dflash_convert.cli.common import Given, json_option, override_options, takes, verbosity_options
from dflash_convert.cli.swapped import put_right
from dflash_convert.cli.terminal import echo, emit, stays_fetched
from dflash_convert.target import Target

if TYPE_CHECKING:
    from dflash_convert.drafter import Overrides
    from dflash_convert.pairing import Finding


@dataclass(frozen=True, kw_only=True)
class CheckGiven(Given):
    drafter: str
    target: str
    n_max: int | None
    overrides: Overrides


@click.command("check")
@click.argument("drafter", shell_complete=complete.places)
@click.argument("target", shell_complete=complete.places)
@click.option("--n-max", type=int, help="The draft length that will be asked for (--spec-draft-n-max).")
@override_options
@json_option
@verbosity_options
@takes(CheckGiven)
def command(given: CheckGiven) -> None:
    """Check statically that DRAFTER and TARGET belong together.

    Both are GGUF files, directories or Hub ids (owner/name[@revision]); of weights only headers are read, and a few
    rows of embeddings and head where both sides have them. Every problem is listed at once, each with a cure. Exit
    code 4 when there is an error, 0 when there are only warnings.
    """

    stays_fetched(given.drafter, given.target)
    drafter = _drafter(given)
    found = hub.resolve_target(given.target, progress=given.progress)
    given.show_notes(found.notes)
    target = Target.of(found)
    from dflash_convert.pairing import check, open_pair, refusal
    from dflash_convert.pairing.finding import findings_json

    against = _read(given.target, found.path)
    with put_right(given.drafter, given.target, (drafter, found.path)):
        findings = check(*open_pair(drafter, target, overrides=given.overrides), given.n_max)
        if given.as_json:
            emit(findings_json(findings))
        else:
            _table(findings)
        names = given.drafter, against
        refused = refusal(findings, *names)
        if refused is not None:
            raise refused
    if not given.as_json:
        warned = f", {len(findings)} warning{'s' if len(findings) > 1 else ''}" if findings else ""
        given.say(f"{names[0]} fits {names[1]}{warned}")
        nextsteps.show(given, [_next(given, drafter, against)])


def _read(typed: str, path: Path) -> str:
    """The target as it was typed, or the file that was read in its place."""
    return str(path) if path.is_file() and not Path(typed).is_file() else typed


def _next(given: CheckGiven, drafter: Path, target: str) -> tuple[str, list[str]]:
    """Two files can run; what is no file yet is converted, or run with the target's GGUF."""
    if not drafter.is_file():
        return "convert it", [nextsteps.command("convert", given.drafter, "--target-model-dir", given.target)]
    gguf = target if Path(target).is_file() else nextsteps.TARGET
    return "see what it gains", [nextsteps.command("validate", given.drafter, gguf)]


def _drafter(given: CheckGiven) -> Path:
    """A file or directory as it stands, a Hub id as its snapshot."""
    path = Path(given.drafter)
    if path.is_dir() or path.suffix == ".gguf" or hub.is_gguf(path):
        return hub.existing(path)
    found = hub.resolve_drafter(given.drafter, progress=given.progress)
    given.show_notes(found.notes)
    return found.path


def _table(findings: list[Finding]) -> None:
    for finding in findings:
        echo(f"{finding.severity:<7}  {finding.name}")
        echo(f"         drafter: {_shown(finding.drafter)}")
        echo(f"         target:  {_shown(finding.target)}")
        echo(f"         cure:    {finding.cure}")


def _shown(value: Any) -> str:
    from dflash_convert.pairing.finding import shown

    return "-" if value is None else shown(value)
