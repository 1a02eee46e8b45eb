"""Upload a package to the Hub: weights first, one commit each, the card last; what is there already is skipped.

The card makes a repository visible as a release, so it must never be public before the files it names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from dflash_convert.errors import HubError, UsageError, ValidationError, VerificationError
from dflash_convert.hashing import sha256_of
from dflash_convert.hub import parse_spec
from dflash_convert.hub_trouble import later
from dflash_convert.notes import Note
from dflash_convert.release.manifest import CARD, MANIFEST, OLD_PRESET, SUMS, read_manifest, verify_manifest
from dflash_convert.validation.result import BROKEN, ENGINE_FAILURE

if TYPE_CHECKING:
    from huggingface_hub import HfApi

MAIN = "main"


@dataclass(frozen=True)
class Upload:
    """One file of the package and its place in the order."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Published:
    """What an upload did; ``commit`` is the revision the repository is at (None for a dry run)."""

    repository: str
    revision: str
    uploaded: tuple[str, ...]
    skipped: tuple[str, ...]
    commit: str | None
    notes: tuple[Note, ...]


def plan_upload(directory: Path, *, force: bool = False) -> tuple[list[Upload], list[Note]]:
    """The files in upload order. VerificationError when the package differs from its manifest,
    ValidationError when a validation found the pair broken; ``force`` turns both into warnings."""
    document = read_manifest(directory)
    notes = []
    problems = verify_manifest(directory)
    if problems:
        text = f"{directory} does not match its manifest: {problems[0]}"
        if len(problems) > 1:
            text += f" (and {len(problems) - 1} more)"
        if not force:
            raise VerificationError(text, tip="package the files again, or give --force")
        notes.append(Note("warning", text))
    for run in document["validation"]:
        if run["verdict"] in (BROKEN, ENGINE_FAILURE):
            text = f"{run.get('file')} was validated as {run['verdict']}"
            if not force:
                raise ValidationError(f"{text}: it is not published", tip="find out why, or give --force")
            notes.append(Note("warning", text))
    order = [e["path"] for role in ("weights", "report", "preset") for e in document["files"] if e["role"] == role]
    files = [*(path for path in order if path != OLD_PRESET), MANIFEST, SUMS, CARD]
    if OLD_PRESET in order:
        notes.append(Note("skipped", f"{OLD_PRESET} stays local: llama.cpp would find nothing else in the repository"))
    missing = [name for name in files if not (directory / name).is_file()]
    if missing:
        raise VerificationError(f"{directory} lacks {', '.join(missing)}", tip="package the files again")
    paths = {name: directory / name for name in files}
    return [Upload(name, p.stat().st_size, sha256_of(p)) for name, p in paths.items()], notes


def publish(
    directory: Path,
    repository: str,
    *,
    private: bool = False,
    revision: str | None = None,
    dry_run: bool = False,
    force: bool = False,
    api: HfApi | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Published:
    """Upload the package in ``directory``; HubError when the Hub refuses. Run it again to resume."""
    spec = parse_spec(repository)
    if spec is None or spec.subfolder or spec.revision:
        revision = spec.revision if spec else None
        tip = "give a branch with --revision" if revision else "repositories are named like z-lab/Qwen3-8B-DFlash-b16"
        raise UsageError(f"{repository!r} is not a Hub repository (owner/name)", tip=tip)
    files, notes = plan_upload(directory, force=force)
    branch = revision or MAIN
    if dry_run:
        return Published(repository, branch, tuple(f.name for f in files), (), None, tuple(notes))
    from huggingface_hub import HfApi, constants

    if constants.HF_HUB_OFFLINE:
        raise HubError("HF_HUB_OFFLINE is set, so nothing can be published", tip="unset it")
    api = api or HfApi(library_name="dflash-convert")
    uploaded, skipped = [], []
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        if branch != MAIN:
            api.create_branch(repository, branch=branch, exist_ok=True)
        present = _present(api, repository, branch, directory, files)
        for file in files:
            if file.name in present:
                skipped.append(file.name)
            else:
                # path and not an open file: the client then streams it, and resumes large uploads itself
                api.upload_file(
                    path_or_fileobj=directory / file.name,
                    path_in_repo=file.name,
                    repo_id=repository,
                    revision=branch,
                    commit_message=f"Upload {file.name}",
                )
                uploaded.append(file.name)
            progress(file.size)
        commit = api.model_info(repository, revision=branch).sha
    except Exception as error:  # the library's errors come from several bases that changed between versions
        _explain(error, repository, uploaded)
    return Published(repository, branch, tuple(uploaded), tuple(skipped), commit, tuple(notes))


def _present(api: HfApi, repository: str, branch: str, directory: Path, files: Sequence[Upload]) -> set[str]:
    """The files that the repository holds with the same bytes: by SHA-256 where the Hub stores one (large
    files), else by Git's own hash."""
    found = set()
    wanted = {file.name: file for file in files}
    for entry in api.get_paths_info(repository, list(wanted), revision=branch):
        file = wanted.get(entry.path)
        if file is None or getattr(entry, "size", None) != file.size:
            continue
        lfs = getattr(entry, "lfs", None)
        if lfs is not None:
            same = lfs.sha256 == file.sha256
        else:
            same = getattr(entry, "blob_id", None) == git_blob_id(directory / file.name)
        if same:
            found.add(file.name)
    return found


def git_blob_id(path: Path) -> str:
    """Git's name for a file's bytes; only small files are stored under it."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _explain(error: Exception, repository: str, uploaded: Sequence[str]) -> NoReturn:
    """One sentence per refusal. The library's own text is left out: it may quote addresses and headers."""
    cause: BaseException | None = error
    status = None
    while cause is not None and status is None:
        status = getattr(getattr(cause, "response", None), "status_code", None)
        cause = cause.__cause__
    done = f"; {len(uploaded)} files are up, run it again to go on" if uploaded else ""
    if status == 401:
        raise HubError(
            f"{repository}: the Hub asks who you are{done}", tip="log in with hf auth login, or set HF_TOKEN"
        ) from None
    if status == 403:
        raise HubError(
            f"{repository}: your account may not write there{done}",
            tip="check the owner's name, and that the token has write permission",
        ) from None
    if status == 404:
        raise HubError(
            f"{repository}: the Hub does not find it{done}", tip="check the spelling and the token"
        ) from None
    if status is not None:
        raise HubError(f"{repository}: the Hub answered with status {status}{done}", tip=later(status)) from None
    if type(error).__name__ == "LocalTokenNotFoundError":
        raise HubError("no Hub token was found", tip="log in with hf auth login, or set HF_TOKEN") from None
    raise HubError(
        f"{repository}: the upload failed ({type(error).__name__}){done}", tip="check the connection and try again"
    ) from None
