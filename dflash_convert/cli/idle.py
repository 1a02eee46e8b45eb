"""Options that can have no effect beside the others are refused: whoever gives one expects something of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from dflash_convert.errors import UsageError


class Idle(NamedTuple):
    """``names`` (of parameters) do nothing when ``when`` holds of the command's value; ``why`` ends the sentence."""

    when: Callable[[Any], object]
    names: tuple[str, ...]
    why: str


OVERRIDES = (
    *("block_size", "mask_token_id", "taps", "rope_dimension_count", "rope_theta", "rope_style", "sample_from_anchor"),
    "keep_unclaimed",
)
DRY = Idle(lambda given: given.dry_run, ("force", "threads"), "with --dry-run")
OVERWRITES = Idle(lambda given: not (given.preset or given.html), ("force",), "without --preset or --html")
KEPT = Idle(lambda given: given.fresh, ("keep",), "with --fresh: nothing is kept")
RULES: dict[str, tuple[Idle, ...]] = {
    "convert": (
        Idle(
            lambda given: not given.validate,
            ("prompts", "n_max", "quick", "keep_failed"),
            "without --validate TARGET.gguf",
        ),
        DRY,
        Idle(lambda given: given.dry_run, ("validate",), "with --dry-run"),
    ),
    "quantize": (DRY,),
    "migrate": (DRY,),
    "inspect": (
        Idle(
            lambda given: not given.memory,
            ("fit", "ctx_size", "parallel", "cache_type_k", "cache_type_v"),
            "without --memory",
        ),
        Idle(lambda given: Path(given.path).is_file(), ("outtype", *OVERRIDES), "on a GGUF"),
    ),
    "check": (Idle(lambda given: Path(given.drafter).is_file(), OVERRIDES, "on a GGUF"),),
    "verify": (Idle(lambda given: not given.target, ("pre", "tokenizer_model"), "without --target-model-dir"),),
    "validate": (
        Idle(lambda given: not given.reference, ("tolerance",), "without --reference"),
        Idle(
            lambda given: not (given.html or given.save or given.save_reference),
            ("force",),
            "without --html, --save or --save-reference",
        ),
        Idle(lambda given: given.quick, ("temperature", "seed", "no_sampled", "long_context"), "with --quick"),
        Idle(lambda given: given.no_sampled, ("temperature", "seed"), "with --no-sampled"),
    ),
    "compare": (OVERWRITES, KEPT),
    "tune": (OVERWRITES, KEPT),
    "package": (
        Idle(
            lambda given: given.check,
            (
                *("validation", "verification", "contest", "target_gguf", "name", "license", "repo", "drafter_repo"),
                *("target_repo", "target_name", "n_max", "force_pair", "force"),
            ),
            "with --check",
        ),
    ),
    "batch": (
        Idle(
            lambda given: given.list_jobs,
            ("workers", "scheduler", "job", "no_package", "threads", "force"),
            "with --list",
        ),
        Idle(lambda given: given.job is not None, ("no_package",), "with --job: it packages nothing"),
        Idle(lambda given: given.scheduler, ("threads",), "with --scheduler: its workers decide"),
    ),
}


def refuse_idle(context: click.Context, given: object) -> None:
    """UsageError for the first option on the command line that can have no effect."""
    options = {str(parameter.name): max(parameter.opts, key=len) for parameter in context.command.params}
    for rule in RULES.get(str(context.command.name), ()):
        stated = [name for name in rule.names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
        if stated and rule.when(given):
            raise UsageError(f"{options[stated[0]]} has no effect {rule.why}", tip="leave it out")
