"""The static check on a conversion that is only planned: no weights, no second look at the vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dflash_convert.container.keys import Keys
from dflash_convert.container.types import KV
from dflash_convert.pairing.behaviour import check_mask, check_rope, check_scale, check_window
from dflash_convert.pairing.finding import Finding
from dflash_convert.pairing.geometry import check_geometry
from dflash_convert.pairing.load import target_directory
from dflash_convert.pairing.view import DrafterView, Vocab


def check_planned(
    path: Path,
    architecture: str,
    keys: Iterable[KV],
    shapes: Mapping[str, tuple[int, ...]],
    target: Path,
    target_config: Mapping[str, Any],
) -> list[Finding]:
    """Findings on geometry, mask token, rope, scale and window of the file to be written at ``path``.

    The vocabulary is the target's own by construction; everything else of ``check`` needs a target GGUF.
    """
    known = {kv.name: kv.value for kv in keys if kv.item is None or not kv.name.startswith("tokenizer.")}
    drafter = DrafterView(path, True, architecture, Keys(path.name, known), shapes, Vocab())
    view = target_directory(target, target_config, tokens=False)
    if drafter.row is None or not drafter.row.taps:
        return []
    findings = [*check_geometry(drafter, view)]
    if drafter.row.block:
        findings += [*check_mask(drafter, view), *check_rope(drafter, view), *check_scale(drafter, view)]
        findings += check_window(drafter)
    return sorted(findings, key=lambda finding: finding.severity != "error")
