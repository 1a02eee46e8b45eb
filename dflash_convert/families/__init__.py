"""Drafter families: which one a checkpoint is, and what llama.cpp needs of it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Protocol

from dflash_convert.checkpoint import Checkpoint
from dflash_convert.errors import FamilyError
from dflash_convert.families import dflash
from dflash_convert.families.common import Description
from dflash_convert.hparams import architectures


class Family(Protocol):
    """A module of this package: the architecture strings it reads, and how."""

    ARCHITECTURES: tuple[str, ...]

    def describe(self, checkpoint: Checkpoint, target: Mapping[str, Any]) -> Description: ...


FAMILIES: tuple[Family, ...] = (dflash,)
KNOWN = tuple(name for family in FAMILIES for name in family.ARCHITECTURES)


def describe(checkpoint: Checkpoint, target: Mapping[str, Any]) -> Description:
    """Find the family by ``architectures`` and let it read the checkpoint; FamilyError when none fits."""
    names = architectures(checkpoint.config)
    for family in FAMILIES:
        if any(name in family.ARCHITECTURES for name in names):
            return family.describe(checkpoint, target)
    raise unknown_family(checkpoint, names)


def unknown_family(checkpoint: Checkpoint, names: list[str]) -> FamilyError:
    shown = names[0] if names else "no architecture"
    if names and looks_like_target(checkpoint.config):
        return FamilyError(
            f"{checkpoint.directory.name}: {shown} is a {model_name(shown)} target model, not a DFlash drafter; "
            "did you swap the arguments?",
            tip="dflash-convert DRAFTER --target-model-dir TARGET",
        )
    close = difflib.get_close_matches(shown, KNOWN, n=1, cutoff=0.0)
    return FamilyError(
        f"config.json: architecture {shown} is not a known drafter" + (f", the nearest is {close[0]}" if close else ""),
        tip="known: " + ", ".join(KNOWN),
    )


def looks_like_target(config: Mapping[str, Any]) -> bool:
    """A causal or conditional-generation model without any of a drafter's fields."""
    drafter_fields = ("dflash_config", "target_layer_ids", "aux_hidden_state_layer_ids", "speculators_model_type")
    names = architectures(config)
    return any(n.endswith(("ForCausalLM", "ForConditionalGeneration")) for n in names) and not any(
        field in config for field in drafter_fields
    )


def model_name(architecture: str) -> str:
    """'Gemma4ForConditionalGeneration' -> 'Gemma 4'."""
    stem = architecture.split("For")[0]
    letters = stem.rstrip("0123456789_")
    digits = stem[len(letters) :].strip("_").replace("_", ".")
    return f"{letters} {digits}".strip()
