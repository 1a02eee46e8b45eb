"""dflash-convert publish DIR REPO"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import click

from dflash_convert.cli import nextsteps
from dflash_convert.cli.common import Given, json_option, takes, verbosity_options
from dflash_convert.cli.terminal import emit, leaving


@dataclass(frozen=True, kw_only=True)
class PublishGiven(Given):
    directory: Path
    repository: str
    private: bool
    revision: str | None
    dry_run: bool
    force: bool


@click.command("publish")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("repository", metavar="REPO")
@click.option("--private", is_flag=True, help="Make the repository private, if it is new.")
@click.option("--revision", metavar="BRANCH", help="Upload to this branch; created if it does not exist.")
@click.option("--dry-run", is_flag=True, help="Check the package and list the uploads; nothing is sent.")
@click.option("--force", is_flag=True, help="Publish a package that does not verify or was validated as broken.")
@json_option
@verbosity_options
@takes(PublishGiven)
def command(given: PublishGiven) -> None:
    """Upload a packaged directory to the Hub repository REPO (owner/name): weights first, the card last.

    Files that are there already are skipped, so running it again resumes. The token comes from HF_TOKEN or
    hf auth login, the address from HF_ENDPOINT.
    """
    from dflash_convert.release.publish import publish

    total = sum(path.stat().st_size for path in given.directory.glob("*") if path.is_file())
    show = given.progress and not given.dry_run
    _library_bars(show)
    bar = given.bar("publishing", "bytes", 0 if given.dry_run else total)
    with bar, leaving("files that were uploaded stay", goes_on=True):
        done = publish(
            given.directory,
            given.repository,
            private=given.private,
            revision=given.revision,
            dry_run=given.dry_run,
            force=given.force,
            progress=bar.update,
        )
    given.show_notes(done.notes)
    for name in done.uploaded if done.commit else ():
        given.say(f"  uploaded: {name}")
    for name in done.skipped:
        given.say(f"  already there: {name}")
    if given.as_json:
        result = {"repository": done.repository, "revision": done.revision, "commit": done.commit}
        lists = {"uploaded": list(done.uploaded), "skipped": list(done.skipped), "dry_run": given.dry_run}
        emit({"schema": 1} | result | lists)
    elif done.commit:
        click.echo(f"{done.repository}@{done.commit}")
    else:
        click.echo("\n".join(done.uploaded))
    if given.dry_run:
        again = [name for name, wanted in (("--private", given.private), ("--force", given.force)) if wanted]
        again += ["--revision", given.revision] if given.revision else []
        nextsteps.show(given, [("upload", [nextsteps.command("publish", given.directory, given.repository, *again)])])
    else:
        nextsteps.show(given, [("fetch it elsewhere", [shlex.join(["hf", "download", done.repository])])])


def _library_bars(show: bool) -> None:
    """The client draws its own bars for large files; they follow the same rule as ours."""
    from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

    (enable_progress_bars if show else disable_progress_bars)()
