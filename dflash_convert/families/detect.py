"""Which family a checkpoint is, and what llama.cpp needs of it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from dflash_convert.checkpoint import Checkpoint
from dflash_convert.drafter import Description, Overrides, spelled
from dflash_convert.errors import FamilyError, UsageError
from dflash_convert.families import contract, deepseek_v4, dflash, eagle3, gemma4_assistant, gemma4_dspark, refused
from dflash_convert.families.common import plain_weights
from dflash_convert.families.wrappers import unwrap
from dflash_convert.hparams import Config, architectures, classes
from dflash_convert.llama import DFLASH
from dflash_convert.notes import Note
from dflash_convert.target import Target


class Family(Protocol):
    """A module of this package: the architecture strings it reads, and how.

    ``FIELDS`` are its names in the table of fields, ``OPTIONS`` the overrides that mean something for it.
    """

    ARCHITECTURES: tuple[str, ...]
    FIELDS: tuple[str, ...]
    OPTIONS: tuple[str, ...]

    def describe(self, checkpoint: Checkpoint, target: Target, overrides: Overrides) -> Description: ...


FAMILIES: tuple[Family, ...] = (dflash, gemma4_dspark, deepseek_v4, eagle3, gemma4_assistant)
SPECULATORS = tuple(variant.family.lower() for variant in DFLASH.variants)  # speculators' names of the same
DRAFTER_FIELDS = ("dflash_config", "target_layer_ids", "aux_hidden_state_layer_ids", "speculators_model_type")


def known() -> tuple[str, ...]:
    """Every architecture string that a family reads."""
    return tuple(name for family in FAMILIES for name in family.ARCHITECTURES)


def describe(checkpoint: Checkpoint, target: Target, overrides: Overrides | None = None) -> Description:
    """Find the family and let it read the checkpoint; FamilyError when none fits.

    ``overrides`` is what the caller says instead of the drafter's.
    """
    overrides = overrides or Overrides()
    refuse_target(checkpoint.config, checkpoint.directory.name)
    checkpoint, wrapped = unwrap(checkpoint)
    names = architectures(checkpoint.config)
    refused.refuse(names, Config(checkpoint.config, checkpoint.config_file), plain_weights(checkpoint.tensors))
    for family in FAMILIES:
        if any(name in family.ARCHITECTURES for name in names):
            return _with_notes(_described(family, checkpoint, target, overrides), wrapped)
    found = _by_content(checkpoint, names)
    if found is None:
        raise unknown_family(checkpoint, names)
    family, why = found
    description = _described(family, checkpoint, target, overrides)
    return _with_notes(description, [*wrapped, Note("derived", f"{description.family}: {why}")])


def _described(family: Family, checkpoint: Checkpoint, target: Target, overrides: Overrides) -> Description:
    """What the contract and the caller say first, then the family's own reading."""
    notes = contract.check(Config(checkpoint.config, checkpoint.config_file), family.FIELDS)
    stated = overrides.stated()
    for name in stated:
        if name not in family.OPTIONS:
            raise UsageError(
                f"--{name} means nothing for a drafter of the family {family.FIELDS[0]}", tip="leave it out"
            )
    if stated:
        given = ", ".join(spelled(name, value) for name, value in stated.items())
        notes.append(Note("info", f"given by the caller, whatever config.json says: {given}"))
    return _with_notes(family.describe(checkpoint, target, overrides), notes)


def _by_content(checkpoint: Checkpoint, names: list[str]) -> tuple[Family, str] | None:
    """Checkpoints without an architecture string, and EAGLE-3 heads under their backbone's."""
    config, tensors = checkpoint.config, checkpoint.tensors
    if eagle3.looks_like(config, tensors):
        return eagle3, "draft_vocab_size and a single layer with its own fc"
    if deepseek_v4.matches(Config(config)):
        return deepseek_v4, "a DeepSeek-V4 checkpoint with dspark fields; its stages mtp.N are the drafter"
    if names:
        return None
    if config.get("speculators_model_type") in SPECULATORS or "dflash_config" in config:
        return dflash, "config.json has no architectures, but a drafter's fields"
    bare = {name.removeprefix("model.") for name in tensors}
    if {"fc.weight", "hidden_norm.weight"} <= bare and any(field in config for field in DRAFTER_FIELDS):
        return dflash, "config.json has no architectures, but taps and a feature fusion"
    return None


def _with_notes(description: Description, notes: Sequence[Note]) -> Description:
    return replace(description, notes=(*notes, *description.notes))


def refuse_target(
    config: Mapping[str, Any], name: str, usage: str = "dflash-convert DRAFTER --target-model-dir TARGET"
) -> None:
    """FamilyError when ``config`` is a target's or of a method that is not ours: known from config.json alone, before
    any weight is fetched or read."""
    method = other_method(config)
    if method is not None:
        raise refused.not_run(method, architectures(config))
    if looks_like_target(config):
        shown = classes(config)[0]
        raise FamilyError(
            f"{name}: {shown} is a {model_name(shown)} target model, not a DFlash drafter; did you swap the arguments?",
            tip=usage + refused.prediction_layers(config),
        )


def unknown_family(checkpoint: Checkpoint, names: list[str]) -> FamilyError:
    shown = names[0] if names else "no architecture"
    close = difflib.get_close_matches(shown, known(), n=1, cutoff=0.8)  # a slip of the pen, not another family
    return FamilyError(
        f"config.json: architecture {shown} is not a known drafter" + (f", the nearest is {close[0]}" if close else ""),
        tip="known: " + ", ".join(known()),
    )


def other_method(config: Mapping[str, Any]) -> refused.Method | None:
    """The method of a drafter that is none of ours, by its class or fields; EAGLE-1 and -2 heads carry their target's
    class over one layer."""
    found = refused.method_of(architectures(config), config, known())
    if found is None and _is_causal(config) and Config(config).fields.get("num_hidden_layers") == 1:
        return refused.EAGLE
    return found


def looks_like_target(config: Mapping[str, Any]) -> bool:
    """A causal or conditional-generation model, or a wrapper around one, without a drafter's class or fields."""
    return _is_causal(config) and other_method(config) is None


def _is_causal(config: Mapping[str, Any]) -> bool:
    names = classes(config)
    if any(name in known() or name in refused.ARCHITECTURES for name in names):
        return False
    return any(n.endswith(("ForCausalLM", "ForConditionalGeneration")) for n in names) and not any(
        field in DRAFTER_FIELDS or field == "draft_vocab_size" or field.startswith("dspark_") for field in config
    )


def model_name(architecture: str) -> str:
    """'Gemma4ForConditionalGeneration' -> 'Gemma 4'."""
    stem = architecture.split("For")[0]
    letters = stem.rstrip("0123456789_")
    digits = stem[len(letters) :].strip("_").replace("_", ".")
    return f"{letters} {digits}".strip()
