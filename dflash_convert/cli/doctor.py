"""dflash-convert doctor"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from dflash_convert.cli.common import Given, json_option, takes, verbosity_options
from dflash_convert.cli.terminal import echo, emit

if TYPE_CHECKING:
    from dflash_convert.doctor import Report

SIGN = {"ok": "ok", "note": "--", "warning": "!!", "error": "XX"}


@dataclass(frozen=True, kw_only=True)
class DoctorGiven(Given):
    llama_server: str | None
    offline: bool


@click.command("doctor")
@click.option("--llama-server", metavar="PATH", help="A llama-server to look at, beside those found.")
@click.option("--offline", is_flag=True, help="Do not ask the Hub.")
@json_option
@verbosity_options
@takes(DoctorGiven)
def command(given: DoctorGiven) -> int:
    """Show versions, engines and what they can draft, disk space and the Hub login.

    Every problem comes with the one thing to do about it. Ends with 7 when no engine can run a pair (only
    validate needs one), with 1 when Python or a package is missing or too old.
    """
    from dflash_convert.doctor import diagnose

    report = diagnose(llama_server=given.llama_server, offline=given.offline)
    if given.as_json:
        findings = [{k: v for k, v in dataclasses.asdict(f).items() if k != "exit_code"} for f in report.findings]
        emit({"schema": 1, "exit_code": report.exit_code, "findings": findings})
    else:
        echo(_table(report, quiet=given.quiet))
    return report.exit_code


def _table(report: Report, *, quiet: bool) -> str:
    lines, area = [], ""
    for finding in report.findings:
        if quiet and finding.severity in ("ok", "note"):
            continue
        if finding.area != area:
            area = finding.area
            lines.append(area)
        lines.append(f"  {SIGN[finding.severity]}  {finding.name:<18} {finding.value}")
        if finding.cure:
            lines.append(f"      {'':<18} -> {finding.cure}")
    return "\n".join(lines)
