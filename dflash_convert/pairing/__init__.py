"""Static checks of a pair from headers alone; nearly every mistake here leaves the text right and drafts useless.

One set of rules over one view: whether the sides are files or directories, and whichever command asks.
"""

from __future__ import annotations

from collections.abc import Iterator

from dflash_convert.pairing.behaviour import (
    check_activation,
    check_block,
    check_context,
    check_mask,
    check_rope,
    check_scale,
    check_sections,
    check_window,
)
from dflash_convert.pairing.copies import check_copies
from dflash_convert.pairing.encoding import check_encoding
from dflash_convert.pairing.finding import Finding, errors_of, refusal
from dflash_convert.pairing.geometry import check_depth, check_host, check_stated, check_tapping, check_width
from dflash_convert.pairing.lineage import check_convertible, check_file_name, check_forced, check_kinds, check_lineage
from dflash_convert.pairing.load import open_pair
from dflash_convert.pairing.promises import check_promises, check_types
from dflash_convert.pairing.reduced import check_heads
from dflash_convert.pairing.tensors import check_tensors
from dflash_convert.pairing.view import UNKNOWN, DrafterView, TargetView
from dflash_convert.pairing.vocabulary import check_vocabulary

__all__ = ["DrafterView", "Finding", "TargetView", "check", "errors_of", "open_pair", "refusal"]


def check(drafter: DrafterView, target: TargetView | None, n_max: int | None = None) -> list[Finding]:
    """Every finding at once, errors first, causes before their consequences: another model's vocabulary, depth or
    width before the mask token that lies outside of it.  ``n_max`` is the draft length that will be asked for.
    Without a target only what the drafter says by itself is judged.

    The keys of a fork's dialect, or of a file that is no drafter, mean something else: then only kinds and
    vocabulary are compared.
    """
    return sorted(_findings(drafter, target or UNKNOWN, n_max), key=lambda finding: finding.severity != "error")


def _findings(drafter: DrafterView, target: TargetView, n_max: int | None) -> Iterator[Finding]:
    yield from check_kinds(drafter, target)
    yield from check_vocabulary(drafter, target)
    row = drafter.row
    if row is None:
        return
    yield from check_stated(drafter, target)
    yield from check_depth(drafter, target)
    yield from check_convertible(drafter)
    yield from check_width(drafter, target)
    yield from check_host(drafter, target)
    if row.taps:
        yield from check_tapping(drafter, target)
    if drafter.problem is None:  # else the conversion has not derived it yet
        yield from check_rope(drafter, target)
    yield from check_heads(drafter, target)
    yield from check_copies(drafter, target)
    yield from check_context(drafter, target)
    yield from check_lineage(drafter, target)
    yield from check_forced(drafter)
    if row.block:
        yield from check_block(drafter, n_max)
        yield from check_mask(drafter, target)
        if drafter.problem is None:
            yield from check_sections(drafter, target)
            yield from check_scale(drafter, target)
        yield from check_activation(drafter)
    yield from check_window(drafter)
    yield from check_tensors(drafter)
    yield from check_promises(drafter)
    yield from check_types(drafter)
    yield from check_encoding(drafter)
    yield from check_file_name(drafter)
