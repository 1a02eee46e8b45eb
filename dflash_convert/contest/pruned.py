"""Candidates that are the same drafter with and without a reduced head: which of the two pays in the end."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_convert.container.reader import Gguf, open_gguf
from dflash_convert.contest.candidates import Candidate
from dflash_convert.contest.trial import Book, Work
from dflash_convert.head.provenance import provenance, reduced_from
from dflash_convert.validation.gain import Timed
from dflash_convert.validation.net import Net, net


def nets(candidates: Sequence[Candidate], book: Book, work: Work) -> list[Net]:
    """Each reduced candidate beside the one it was made from, under the same settings."""
    found = []
    for pruned, whole in pairs(candidates):
        rows = [[done.traces for _, done in sorted(book.passes[side].items())] for side in (whole, pruned)]
        base, own = ([done.at for _, done in sorted(book.passes[side].items())] for side in (whole, pruned))
        timed = Timed(work.names, rows[0], rows[1], (tuple(base), tuple(own)))
        found.append(net(candidates[pruned].name, candidates[whole].name, work.kinds, timed))
    return found


def pairs(candidates: Sequence[Candidate]) -> list[tuple[int, int]]:
    """(place of the reduced one, place of the one with the most rows that it was made from)"""
    files = {i: open_gguf(each.drafter) for i, each in enumerate(candidates) if each.drafter is not None}
    found = []
    for own, gguf in files.items():
        alike = [i for i in files if _alike(candidates[own], candidates[i])]
        others = [i for i in alike if reduced_from(gguf, files[i])]
        if others:
            found.append((own, max(others, key=lambda i: _size(files[i]))))
    return found


def _alike(one: Candidate, other: Candidate) -> bool:
    return (one.methods, one.n_max, one.p_min) == (other.methods, other.n_max, other.p_min)


def _size(gguf: Gguf) -> float:
    said = provenance(gguf)
    return float("inf") if said is None else said.rows
