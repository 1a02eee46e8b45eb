"""Static checks of a pair from headers alone; nearly every mistake here leaves the text right and drafts useless."""

from __future__ import annotations

from dflash_convert.pairing.behaviour import (
    check_activation,
    check_block,
    check_mask,
    check_rope,
    check_scale,
    check_window,
)
from dflash_convert.pairing.finding import Finding
from dflash_convert.pairing.geometry import check_geometry
from dflash_convert.pairing.lineage import check_file_name, check_kinds, check_lineage
from dflash_convert.pairing.load import open_pair
from dflash_convert.pairing.reduced import check_heads
from dflash_convert.pairing.tensors import check_tensors
from dflash_convert.pairing.view import DrafterView, TargetView
from dflash_convert.pairing.vocabulary import check_vocabulary

__all__ = ["DrafterView", "Finding", "TargetView", "check", "open_pair"]


def check(drafter: DrafterView, target: TargetView, n_max: int | None = None) -> list[Finding]:
    """Every finding at once, errors first; ``n_max`` is the draft length that will be asked for.

    The keys of a fork's dialect, or of a file that is no drafter, mean something else: then only kinds and
    vocabulary are compared.  EAGLE-3 and MTP heads have no block, mask token or DFlash tensors.
    """
    findings = [*check_kinds(drafter, target), *check_vocabulary(drafter, target)]
    row = drafter.row
    if row is not None and row.taps:
        findings += check_geometry(drafter, target)
        findings += check_heads(drafter, target)
        findings += check_lineage(drafter, target)
    if row is not None and row.block:
        findings += check_block(drafter, n_max)
        findings += check_mask(drafter, target)
        if drafter.problem is None:  # else the conversion has not derived these yet
            findings += check_rope(drafter, target)
            findings += check_scale(drafter, target)
        findings += check_window(drafter)
        findings += check_activation(drafter)
    findings += check_tensors(drafter)
    findings += check_file_name(drafter)
    return sorted(findings, key=lambda finding: finding.severity != "error")
