"""The Hub's cache on disk: which bytes a file there must have, and how a wrong one leaves it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dflash_convert.errors import HubError
from dflash_convert.hashing import sha256_of

SMALL = 64 << 20  # bytes; larger files get a hash only when the cache knows it
_SHA256 = re.compile(r"[0-9a-f]{64}")


def stated_sha256(path: Path) -> str | None:
    """The SHA-256 that the Hub gave for a file of the cache, whose name large files have there; None for others."""
    # one link, not all of them: the cache's blob may itself be a link into a store with names of another kind
    blob = path.readlink() if path.is_symlink() else path
    return blob.name if _SHA256.fullmatch(blob.name) and blob.parent.name == "blobs" else None


def hashes(path: Path) -> dict[str, str]:
    """SHA-256 of the files in one folder: from the cache's own name for large files, else of the bytes."""
    found = {}
    for entry in sorted(path.iterdir()):
        if not entry.is_file():
            continue
        stated = stated_sha256(entry)
        if stated is not None:
            found[entry.name] = stated
        elif entry.stat().st_size <= SMALL:
            found[entry.name] = sha256_of(entry)
    return found


def cached(repository: str, revision: str | None, name: str) -> Path | None:
    """Where the cache holds a file; None when it does not."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repository, name, revision=revision)
    return Path(found) if isinstance(found, str) else None


@contextmanager
def checked(repository: str, revision: str | None, names: Sequence[str]) -> Iterator[None]:
    """Within the block these files are fetched: HubError when one of them came with other bytes than the Hub states.

    What the cache held before is not read again.  All that came are looked at, also when the block itself fails: a
    wrong file that stayed would be taken for a right one the next time.
    """
    before = {name: cached(repository, revision, name) for name in names}
    try:
        yield
    finally:
        came = {name: cached(repository, revision, name) for name in names}
        wrong = [_wrong(repository, name, path) for name, path in came.items() if path and path != before[name]]
        for error in filter(None, wrong):
            raise error


def _wrong(repository: str, name: str, path: Path) -> HubError | None:
    stated = stated_sha256(path)
    if stated is None or sha256_of(path) == stated:
        return None
    return HubError(f"{repository}: {name} came with other bytes than its SHA-256 on the Hub says", tip=discard(path))


def discard(path: Path) -> str:
    """Take a wrong file out of the cache, with the blob that it links to; returns what to do next."""
    for each in _places(path):
        try:
            each.unlink(missing_ok=True)
        except OSError:
            return f"Delete {each}, then run the command again."
    return "It was removed from the cache: run the command again."


def _places(path: Path) -> list[Path]:
    """The blob, when it is one of the same repository, before the link to it."""
    home = next((each for each in path.parents if each.name == "snapshots"), path).parent / "blobs"
    if not path.is_symlink():
        return [path]
    blob = path.parent / path.readlink()
    return [home / blob.name, path] if blob.parent.resolve() == home.resolve() else [path]


def remember(snapshot: Path, revision: str, commit: str) -> None:
    """Note in the cache which commit ``revision`` stands for, as the library does, for runs without a connection."""
    ref = snapshot.parents[1] / "refs" / revision
    if revision == commit or ".." in revision:
        return
    try:
        if not ref.is_file() or ref.read_text("utf-8") != commit:
            ref.parent.mkdir(parents=True, exist_ok=True)
            ref.write_text(commit, "utf-8")
    except OSError:
        return  # a cache that only others may write to serves all the same
