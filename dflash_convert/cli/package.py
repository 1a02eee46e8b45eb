"""dflash-convert package GGUF... --out DIR, and package --check DIR"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dflash_convert.cli import nextsteps
from dflash_convert.cli.common import Given, json_option, takes, verbosity_options
from dflash_convert.cli.terminal import echo, emit, leaving
from dflash_convert.container.reader import require_file
from dflash_convert.errors import UsageError, VerificationError

if TYPE_CHECKING:
    from dflash_convert.release.package import Package, PackageOptions

FILE = click.Path(path_type=Path)


@dataclass(frozen=True, kw_only=True)
class PackageGiven(Given):
    ggufs: tuple[Path, ...]
    out: Path | None
    check: Path | None
    validation: tuple[Path, ...]
    verification: tuple[Path, ...]
    contest: tuple[Path, ...]
    target_gguf: str | None
    name: str | None
    license: str | None
    repo: str | None
    drafter_repo: str | None
    target_repo: str | None
    target_name: str | None
    n_max: int | None
    force_pair: bool
    force: bool


@click.command("package")
@click.argument("ggufs", nargs=-1, metavar="GGUF...", type=FILE)
@click.option("-o", "--out", type=FILE, metavar="DIR", help="Directory of the package; created.")
@click.option("--check", "check", type=FILE, metavar="DIR", help="Hash and read a packaged directory again.")
@click.option(
    "--validation", multiple=True, type=FILE, metavar="FILE", help="A result that validate --save kept; repeat."
)
@click.option("--verification", multiple=True, type=FILE, metavar="FILE", help="A verify --json report; repeat.")
@click.option("--contest", multiple=True, type=FILE, metavar="FILE", help="A compare or tune --json result; repeat.")
@click.option("--target-gguf", metavar="FILE|REPO", help="The target's GGUF, for the commands and preset.ini.")
@click.option("--name", help="The package's name; default TARGET-FAMILY-GGUF.")
@click.option("--license", help="Licence identifier; default the drafter's own.")
@click.option("--repo", metavar="REPO", help="Where it goes (owner/name), for the card's download command.")
@click.option("--drafter-repo", metavar="REPO", help="The drafter's Hub id (owner/name[@revision]).")
@click.option("--target-repo", metavar="REPO", help="The target's Hub id (owner/name[@revision]).")
@click.option("--target-name", help="The target's name in file names and the card.")
@click.option("--n-max", type=click.IntRange(1), help="Tokens to draft, in the commands; default measured, or up to 7.")
@click.option("--force-pair", is_flag=True, help="Package a file or pair that check refuses.")
@click.option("--force", is_flag=True, help="Replace an existing package.")
@json_option
@verbosity_options
@takes(PackageGiven)
def command(given: PackageGiven) -> None:
    """Make a directory ready for a Hub repository from the GGUFs of one drafter.

    It gets names that llama.cpp finds, a model card, SHA256SUMS, manifest.json and, with --target-gguf, a
    preset.ini. The same files and options give the same bytes.
    """
    if given.check is not None:
        if given.ggufs or given.out:
            raise UsageError("--check takes a package alone", tip="dflash-convert package --check DIR")
        _check(given.check, given)
        return
    if not given.ggufs or given.out is None:
        raise UsageError("GGUF files and --out DIR are needed", tip="dflash-convert package GGUF... --out DIR")
    require_file(*given.ggufs)
    package = _build(given.out, given)
    given.show_notes(package.notes)
    if given.as_json:
        emit({"schema": 1, "path": str(given.out), "manifest": package.manifest})
    else:
        click.echo(given.out)
    nextsteps.upload(given, [given.out])


def _build(out: Path, given: PackageGiven) -> Package:
    from dflash_convert.release.package import build_package

    total = sum(path.stat().st_size for path in given.ggufs if path.is_file())
    with given.bar("packaging", "bytes", total) as bar, leaving(f"{out} is as it was"):
        return build_package(given.ggufs, out, _options(given), force=given.force, progress=bar.update)


def _options(given: PackageGiven) -> PackageOptions:
    from dflash_convert.release.package import PackageOptions

    return PackageOptions(**{field.name: getattr(given, field.name) for field in fields(PackageOptions)})


def _check(directory: Path, given: PackageGiven) -> None:
    from dflash_convert.release.manifest import read_manifest, verify_manifest

    problems = verify_manifest(directory)
    files = read_manifest(directory)["files"]
    if given.as_json:
        listed = [{"file": p.file, "problem": p.text} for p in problems]
        emit({"schema": 1, "path": str(directory), "ok": not problems, "problems": listed})
    for problem in problems:
        given.say(f"  {problem}")
    if problems:
        raise VerificationError(
            f"{directory} differs from its manifest in {len(problems)} place{'s' * (len(problems) > 1)}",
            tip="download it again, or package the files again",
        )
    if not given.as_json:
        echo(f"{directory}: {len(files) + 1} files as in manifest.json")
    nextsteps.upload(given, [directory])
