"""A drafter's weights on the Hub: their headers by range requests now, the files themselves when they have come."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dflash_convert.arrivals import Arrivals, Head
from dflash_convert.errors import HubError
from dflash_convert.hub_trouble import explain, no_connection

MAX_HEADER = 16_000_000  # bytes; of a longer one only the length is read, which the reader then refuses


def coming(repository: str, commit: str, files: Mapping[Path, str]) -> Arrivals:
    """What fetches the files that the cache does not hold; ``files`` maps their places there to their names."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    def fetch(path: Path) -> None:
        try:
            hf_hub_download(repository, files[path], revision=commit)
        except Exception as error:  # the library's errors come from several bases that changed between versions
            why = no_connection(error)
            if why is not None:
                raise HubError(
                    f"{repository}: {why[0]} while {files[path]} was being fetched",
                    tip="Run the command again: what has arrived is kept.",
                ) from error
            explain(error, repository, commit)

    missing = [
        path
        for path, name in files.items()
        if not isinstance(try_to_load_from_cache(repository, name, revision=commit), str)
    ]
    return Arrivals({path: _head(repository, commit, files[path]) for path in missing}, fetch)


def _head(repository: str, commit: str, name: str) -> Head:
    """The header of a safetensors file; the library's own errors pass."""
    from huggingface_hub import HfFileSystem

    with HfFileSystem().open(f"{repository}@{commit}/{name}", "rb", cache_type="none") as file:
        data, size = bytes(file.read(8)), int(file.size)
        length = int.from_bytes(data, "little")
        if len(data) == 8 and length <= min(MAX_HEADER, size - 8):
            data += bytes(file.read(length))
    return Head(data, size)
