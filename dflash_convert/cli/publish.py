"""dflash-convert publish DIR REPO"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from dflash_convert.cli.common import json_option, progress_wanted, say, show_notes, verbosity_options


@click.command("publish")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("repository", metavar="REPO")
@click.option("--private", is_flag=True, help="Make the repository private, if it is new.")
@click.option("--revision", metavar="BRANCH", help="Upload to this branch; it is made if it is new.")
@click.option("--dry-run", is_flag=True, help="Check the package and list the uploads; no connection is made.")
@click.option("--force", is_flag=True, help="Publish a package that does not verify or was validated as broken.")
@click.option("--plain", is_flag=True, help="Accepted for symmetry: publish never changes a file.")
@json_option
@verbosity_options
def command(directory: Path, repository: str, **given: Any) -> None:
    """Upload a packaged directory to the Hub repository REPO (owner/name): weights first, the card last.

    Files that are there already are skipped, so running it again resumes. The token comes from HF_TOKEN or
    hf auth login, the address from HF_ENDPOINT.
    """
    from tqdm import tqdm

    from dflash_convert.release.publish import publish

    quiet = given["quiet"]
    total = sum(path.stat().st_size for path in directory.glob("*") if path.is_file())
    show = progress_wanted(quiet) and not given["dry_run"]
    _library_bars(show)
    with tqdm(total=total, unit="B", unit_scale=True, disable=not show, desc="publishing") as bar:
        done = publish(
            directory,
            repository,
            private=given["private"],
            revision=given["revision"],
            dry_run=given["dry_run"],
            force=given["force"],
            progress=bar.update,
        )
    show_notes(done.notes, quiet=quiet)
    for name in done.uploaded if done.commit else ():
        say(f"  uploaded: {name}", quiet=quiet)
    for name in done.skipped:
        say(f"  already there: {name}", quiet=quiet)
    if given["as_json"]:
        result = {"repository": done.repository, "revision": done.revision, "commit": done.commit}
        lists = {"uploaded": list(done.uploaded), "skipped": list(done.skipped), "dry_run": given["dry_run"]}
        click.echo(json.dumps({"schema": 1} | result | lists, indent=1))
    elif done.commit:
        click.echo(f"{done.repository}@{done.commit}")
    else:
        click.echo("\n".join(done.uploaded))


def _library_bars(show: bool) -> None:
    """The client draws its own bars for large files; they follow the same rule as ours."""
    from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

    (enable_progress_bars if show else disable_progress_bars)()
