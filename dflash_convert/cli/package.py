"""dflash-convert package GGUF... --out DIR, and package --check DIR"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dflash_convert.cli.common import json_option, progress_wanted, say, show_notes, verbosity_options

if TYPE_CHECKING:
    from dflash_convert.release.package import Package, PackageOptions

FILE = click.Path(path_type=Path)


@click.command("package")
@click.argument("ggufs", nargs=-1, metavar="GGUF...", type=FILE)
@click.option("-o", "--out", type=FILE, metavar="DIR", help="The package's directory; it is made.")
@click.option("--check", "check", type=FILE, metavar="DIR", help="Hash and read a packaged directory again.")
@click.option("--validation", multiple=True, type=FILE, metavar="FILE", help="A validate --json report; repeat.")
@click.option("--verification", multiple=True, type=FILE, metavar="FILE", help="A verify --json report; repeat.")
@click.option("--target-gguf", metavar="FILE|REPO", help="The target's GGUF, for the commands and preset.ini.")
@click.option("--name", help="The package's name; default TARGET-FAMILY-GGUF.")
@click.option("--license", help="Licence identifier; default the drafter's own.")
@click.option("--drafter-repo", metavar="REPO", help="The drafter's Hub id (owner/name[@revision]).")
@click.option("--target-repo", metavar="REPO", help="The target's Hub id (owner/name[@revision]).")
@click.option("--target-name", help="The target's name in file names and the card.")
@click.option("--n-max", type=click.IntRange(1), help="Tokens to draft, in the commands; default a whole block.")
@click.option("--force", is_flag=True, help="Replace an existing package.")
@click.option("--plain", is_flag=True, help="Accepted for symmetry: a package never changes a GGUF.")
@json_option
@verbosity_options
def command(ggufs: tuple[Path, ...], out: Path | None, check: Path | None, **given: Any) -> None:
    """Make a directory ready for a Hub repository from the GGUFs of one drafter.

    It gets names that llama.cpp finds, a model card, SHA256SUMS, manifest.json and, with --target-gguf, a
    preset.ini. The same files and options give the same bytes.
    """
    from dflash_convert.errors import UsageError

    if check is not None:
        if ggufs or out:
            raise UsageError("--check takes a package alone", tip="dflash-convert package --check DIR")
        _check(check, given)
        return
    if not ggufs or out is None:
        raise UsageError("GGUF files and --out DIR are needed", tip="dflash-convert package GGUF... --out DIR")
    package = _build(ggufs, out, given)
    show_notes(package.notes, quiet=given["quiet"])
    if given["as_json"]:
        click.echo(json.dumps({"schema": 1, "path": str(out), "manifest": package.manifest}, indent=1))
    else:
        click.echo(out)


def _build(ggufs: tuple[Path, ...], out: Path, given: dict[str, Any]) -> Package:
    from tqdm import tqdm

    from dflash_convert.release.package import build_package

    total = sum(path.stat().st_size for path in ggufs if path.is_file())
    show = progress_wanted(given["quiet"])
    with tqdm(total=total, unit="B", unit_scale=True, disable=not show, desc="packaging") as bar:
        return build_package(ggufs, out, _options(given), force=given["force"], progress=bar.update)


def _options(given: dict[str, Any]) -> PackageOptions:
    from dataclasses import fields

    from dflash_convert.release.package import PackageOptions

    return PackageOptions(**{field.name: given[field.name] for field in fields(PackageOptions)})


def _check(directory: Path, given: dict[str, Any]) -> None:
    from dflash_convert.errors import VerificationError
    from dflash_convert.release.manifest import read_manifest, verify_manifest

    problems = verify_manifest(directory)
    files = read_manifest(directory)["files"]
    if given["as_json"]:
        listed = [{"file": p.file, "problem": p.text} for p in problems]
        click.echo(json.dumps({"schema": 1, "path": str(directory), "ok": not problems, "problems": listed}, indent=1))
    for problem in problems:
        say(f"  {problem}", quiet=given["quiet"])
    if problems:
        raise VerificationError(
            f"{directory} differs from its manifest in {len(problems)} place{'s' * (len(problems) > 1)}",
            tip="download it again, or package the files again",
        )
    if not given["as_json"]:
        click.echo(f"{directory}: {len(files) + 1} files as in manifest.json")
