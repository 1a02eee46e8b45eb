"""Run encoding pieces: in this process when small, else in worker processes as well."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dflash_convert import arrivals
from dflash_convert.encode.pieces import Piece, piece_to_json
from dflash_convert.encode.pool import Pool, pool_size
from dflash_convert.encode.rows import Encoders
from dflash_convert.errors import InputError
from dflash_convert.processes import Json

Progress = Callable[[int], None]


def run_pieces(pieces: Sequence[Piece], threads: int | None, progress: Progress, pool: Pool | None = None) -> None:
    """Run all pieces, those first whose sources are here; ``progress`` receives the elements done.

    The first error stops everything; InputError when a source was written or replaced meanwhile.

    ``pool``: workers that were started earlier, who end with the work; without one they are started as needed.
    """
    count = min(pool_size(threads, sum(piece.elements for piece in pieces)), len(pieces))
    with _unchanged({file for piece in pieces for file in _files(piece)}):
        if count <= 1:
            _run_here(pieces, progress)
            return
        shared = [piece for piece in pieces if piece.plan.constant is None]
        if pool:
            _share(shared, progress, pool)
        else:
            with Pool(count) as own:
                _share(shared, progress, own)
        _run_here([piece for piece in pieces if piece.plan.constant is not None], progress)


@contextmanager
def _unchanged(files: Iterable[Path]) -> Iterator[None]:
    """InputError when one of ``files`` was written or replaced within the block: each process opens it for itself, and
    the output would be of two. What is on its way has no state yet, what was removed is read on."""
    before = {file: state for file in files if (state := _state(file)) is not None}
    yield
    for file, state in before.items():
        if _state(file) not in (state, None):
            raise InputError(f"{file} changed while it was read", tip="run again when nothing writes to it")


def _state(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _run_here(pieces: Sequence[Piece], progress: Progress) -> None:
    with Encoders() as encoders:
        for piece in arrivals.in_order(pieces, _files):
            encoders.run(piece)
            progress(piece.elements)


def _share(pieces: Sequence[Piece], progress: Progress, pool: Pool) -> None:
    """Run all pieces in the pool, which is ended, and here; ValueError when it has run before."""
    fds = {place.fd: place.fd for piece in pieces for place in piece.places}
    given: list[int] = []  # elements of the pieces in the order in which they were handed out

    def tasks() -> Iterator[Json]:
        for piece in arrivals.in_order(pieces, _files):
            given.append(piece.elements)
            yield piece_to_json(piece)

    with Encoders() as encoders:
        pool.exchange(tasks(), fds, lambda index, _: progress(given[index]), here=lambda task: encoders.work(task, fds))


def _files(piece: Piece) -> list[Path]:
    return [source.file for source in piece.plan.sources]
