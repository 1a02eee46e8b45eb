"""dflash-convert check DRAFTER TARGET"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dflash_convert.cli.common import echo, json_option, say, verbosity_options

if TYPE_CHECKING:
    from dflash_convert.pairing import Finding


@click.command("check")
@click.argument("drafter", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--n-max", type=int, help="The draft length that will be asked for (--spec-draft-n-max).")
@json_option
@verbosity_options
def command(drafter: Path, target: Path, n_max: int | None, as_json: bool, quiet: bool, verbose: int) -> None:
    """Check statically that DRAFTER and TARGET belong together.

    Both are GGUF files or directories; only headers are read. Every problem is listed at once, each with a
    cure. Exit code 4 when there is an error, 0 when there are only warnings.
    """
    from dflash_convert.pairing import check, open_pair, refusal

    findings = check(*open_pair(drafter, target), n_max)
    if as_json:
        click.echo(json.dumps({"findings": [finding.json() for finding in findings]}, indent=1))
    else:
        _table(findings)
    refused = refusal(findings, drafter.name, target.name)
    if refused is not None:
        raise refused
    if not as_json:
        warned = f", {len(findings)} warning{'s' if len(findings) > 1 else ''}" if findings else ""
        say(f"{drafter.name} fits {target.name}{warned}", quiet=quiet)


def _table(findings: list[Finding]) -> None:
    for finding in findings:
        echo(f"{finding.severity:<7}  {finding.name}")
        echo(f"         drafter: {_shown(finding.drafter)}")
        echo(f"         target:  {_shown(finding.target)}")
        echo(f"         cure:    {finding.cure}")


def _shown(value: Any) -> str:
    from dflash_convert.pairing.finding import shown

    return "-" if value is None else shown(value)
