"""A drafter's weights on the Hub: their headers by range requests now, the files themselves when they have come."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash_convert.arrivals import Arrivals, Head
from dflash_convert.errors import HubError, InputError
from dflash_convert.hub_cache import cached, checked, discard, stated_sha256
from dflash_convert.hub_ranges import Remote, remote
from dflash_convert.hub_trouble import PAGE_TIP, explain, no_connection
from dflash_convert.jsonfile import LFS, parse_json

MAX_HEADER = 16_000_000  # bytes; of a longer one only the length is read, which the reader then refuses


def coming(repository: str, commit: str, files: Mapping[Path, str]) -> Arrivals:
    """What fetches the files that the cache does not hold; ``files`` maps their places there to their names."""
    missing = [path for path, name in files.items() if cached(repository, commit, name) is None]
    heads = {path: _head(repository, commit, files[path]) for path in missing}

    def fetch(path: Path) -> None:
        with checked(repository, commit, [files[path]]):
            _download(repository, commit, files[path])
        compare(path, heads[path], f"{repository}: {files[path]}")

    return Arrivals(heads, fetch)


def _download(repository: str, commit: str, name: str) -> None:
    from huggingface_hub import hf_hub_download

    try:
        hf_hub_download(repository, name, revision=commit)
    except Exception as error:  # the library's errors come from several bases that changed between versions
        why = no_connection(error)
        if why is not None:
            raise HubError(
                f"{repository}: {why[0]} while {name} was being fetched",
                tip="Run the command again: what has arrived is kept.",
            ) from error
        explain(error, repository, commit, name)


def compare(path: Path, head: Head, name: str) -> None:
    """HubError when what came is not what was planned from; then it leaves the cache."""
    with path.open("rb") as file:
        same = path.stat().st_size == head.size and file.read(len(head.data)) == head.data
    if not same:
        # one whose SHA-256 was right stays: it was the header's answer that was wrong
        tip = discard(path) if stated_sha256(path) is None else "Run the command again: the file itself is right."
        raise HubError(f"{name}: the file is not the one whose header was read", tip=tip)


def _head(repository: str, commit: str, name: str) -> Head:
    """The header of a safetensors file; HubError for an answer that cannot be one, the library's own errors pass."""
    with remote(repository, commit, name) as file:
        data = file.read(0, 8)
        length = int.from_bytes(data, "little")
        if len(data) < 8 or LFS.startswith(data):
            return Head(data, file.size)  # the reader's to refuse
        if length > file.size - 8:
            raise HubError(f"{file.name}: header length {length} in a file of {file.size} bytes", tip=PAGE_TIP)
        if length <= MAX_HEADER:
            data += file.read(8, 8 + length)
            _check_size(data, file)
        return Head(data, file.size)


def _check_size(data: bytes, file: Remote) -> None:
    """The size by the Hub's listing, against the one that the header describes; a bad header is the reader's affair."""
    try:
        header = parse_json(data[8:], file.name, keep=_end_only)
    except InputError:
        return
    ends = [end for name, end in header.items() if name != "__metadata__"]
    if not ends or not all(isinstance(end, int) for end in ends):
        return
    described = len(data) + max(ends)
    if described != file.size:
        raise HubError(
            f"{file.name}: {file.size} bytes by the Hub's listing, {described} by its own header",
            tip=f"Its upload is incomplete, or the answer is not the Hub's. {PAGE_TIP}",
        )


def _end_only(fields: dict[str, Any]) -> Any:
    """Of a tensor's entry only where its data ends, so that a large header does not become many objects."""
    match fields.get("data_offsets"):
        case [int(), int(end)]:
            return end
    return fields
