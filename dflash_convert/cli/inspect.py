"""dflash-convert inspect PATH"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dflash_convert import hub
from dflash_convert.cli import complete, nextsteps
from dflash_convert.cli.common import Given, json_option, override_options, takes, verbosity_options
from dflash_convert.cli.terminal import echo, emit, stays_fetched, width
from dflash_convert.errors import UsageError
from dflash_convert.text import columns, number, one_line, size

if TYPE_CHECKING:
    from dflash_convert.drafter import Overrides
    from dflash_convert.inspect_file import Inspection
    from dflash_convert.memory.plan import MemoryPlan, Model, Serving
    from dflash_convert.target import Target

MEMORY_ROWS = (
    ("weights", "weights_mib"),
    ("of them embeddings, host", "embeddings_host_mib"),
    ("KV cache", "kv_mib"),
    ("sliding-window KV cache", "swa_kv_mib"),
    ("compute (estimate)", "compute_mib"),
    ("draft sampling (estimate)", "sampling_mib"),
    ("compute on the host (estimate)", "compute_host_mib"),
    ("tapped hidden states, host", "taps_host_mib"),
    ("total", "total_mib"),
)


@dataclass(frozen=True, kw_only=True)
class InspectGiven(Given):
    path: Path
    target: str | None
    memory: bool
    fit: str | None
    ctx_size: int
    parallel: str
    cache_type_k: str
    cache_type_v: str
    outtype: str
    overrides: Overrides


@click.command("inspect")
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--target-model-dir",
    "target",
    metavar="TARGET",
    shell_complete=complete.places,
    help="The target: a directory, a GGUF or a Hub id.",
)
@click.option("--memory", is_flag=True, help="Add the memory plan of the pair.")
@click.option("--fit", metavar="12GiB", help="With --memory: the largest context that fits.")
@click.option("-c", "--ctx-size", type=int, default=0, metavar="N", help="Context in tokens; 0: as trained.")
@click.option("-np", "--parallel", default="auto", metavar="auto|N", help="Slots of the server.")
@click.option("-ctk", "--cache-type-k", default="f16", metavar="TYPE", help="Type of the target's cached keys.")
@click.option("-ctv", "--cache-type-v", default="f16", metavar="TYPE", help="Type of the target's cached values.")
@click.option(
    "-t",
    "--outtype",
    default="auto",
    metavar="TYPE",
    shell_complete=complete.types,
    help="A drafter directory as if converted to TYPE.",
)
@override_options
@json_option
@verbosity_options
@takes(InspectGiven)
def command(given: InspectGiven) -> None:
    """Describe a GGUF, a drafter directory or a target directory.

    --memory adds what the pair needs: exact weights and caches, estimated compute buffers, in MiB. --fit finds the
    largest context for each encoding of the drafter and each type of the target's cache, and without a drafter.
    """
    hub.existing(given.path)
    from dflash_convert.inspect_file import inspect

    target = _target(given)
    found = inspect(given.path, target, given.outtype, given.overrides)
    if given.fit is not None:
        _show_fit(found, target, given)
        return
    plan = _memory(found, target, given) if given.memory else None
    if given.as_json:
        document = found.json() | ({"memory": plan.json()} if plan else {})
        emit(document, str)
        return
    _show(found.data | {"kind": found.kind})
    if plan:
        _table(plan)
    given.show_notes((*found.notes, *(plan.notes if plan else ())))
    nextsteps.show(given, _next(found, given))


def _next(found: Inspection, given: InspectGiven) -> list[tuple[str, list[str]]]:
    target = given.target or (nextsteps.TARGET if found.kind == "drafter-gguf" else nextsteps.TARGET_DIR)
    if found.kind == "drafter":
        return [("convert it", [nextsteps.command("convert", given.path, "--target-model-dir", target)])]
    if found.kind == "drafter-gguf":
        return [("see whether it fits its target", [nextsteps.command("check", given.path, target)])]
    drafter = nextsteps.DRAFTER if found.kind == "gguf" else nextsteps.DRAFTER_DIR
    return [("see whether a drafter fits it", [nextsteps.command("check", drafter, given.path)])]


def _target(given: InspectGiven) -> Target | None:
    if given.target is None:
        return None
    from dflash_convert.target import Target

    stays_fetched(given.target)
    found = hub.resolve_target(given.target, progress=given.progress)
    given.show_notes(found.notes)
    return Target.of(found)


def _memory(found: Inspection, target: Target | None, given: InspectGiven) -> MemoryPlan:
    from dflash_convert.inspect_file import target_model
    from dflash_convert.memory.plan import plan_memory

    drafter, request = _planned(found, given)
    return plan_memory(drafter, target_model(target) if target else None, request)


def _planned(found: Inspection, given: InspectGiven) -> tuple[Model, Serving]:
    from dflash_convert.memory.plan import Serving

    if not found.is_drafter or found.model is None:
        raise UsageError(
            f"{found.path} is not a drafter that llama.cpp loads: --memory plans a pair",
            tip="dflash-convert inspect DRAFTER --target-model-dir TARGET --memory",
        )
    request = Serving(
        ctx_size=given.ctx_size,
        parallel=_parallel(given.parallel),
        cache_k=given.cache_type_k,
        cache_v=given.cache_type_v,
        n_max=found.max_drafts,
    )
    return found.model, request


def _show_fit(found: Inspection, target: Target | None, given: InspectGiven) -> None:
    from dflash_convert.inspect_file import encodings, target_model
    from dflash_convert.memory.fit import fits, fits_json, parse_size

    size = parse_size(given.fit or "", "--fit")
    _, request = _planned(found, given)
    if not given.memory or given.ctx_size or (given.cache_type_k, given.cache_type_v) != ("f16", "f16"):
        tip = "dflash-convert inspect DRAFTER --target-model-dir TARGET.gguf --memory --fit 12GiB"
        raise UsageError("--fit goes with --memory and finds the context for every cache type", tip=tip)
    main = target_model(target) if target else None
    if main is None or main.weights is None:
        raise UsageError("--fit counts the target's weights", tip="give its GGUF with --target-model-dir TARGET.gguf")
    rows = fits(encodings(given.path, target, given.overrides), main, request, size)
    if given.as_json:
        emit(found.json() | {"fit": fits_json(rows, size, request)}, str)
        return
    _show(found.data | {"kind": found.kind})
    echo(f"largest context in {given.fit}, {request.slots} slots, by the type of the target's cache")
    lines = [["cache", *(each.drafter or "no drafter" for each in rows)]]
    lines += [[kind, *(_cells(each.contexts[kind]) for each in rows)] for kind in rows[0].contexts]
    echo("\n".join(f"  {line}" for line in columns(lines, "<>", width())))
    if main.context_length:
        given.say(f"  at most {main.context_length} tokens a slot, as the target was trained; compute is an estimate")


def _cells(context: int | None) -> str:
    """Seven characters at most: what is cut off would fit as well."""
    if context is None:
        return "-"
    return str(context) if context < 1_000_000 else f"{context // 1024}k"


def _parallel(text: str) -> int | None:
    if text.lower() == "auto":
        return None
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"--parallel is {text!r}, expected auto or a number of slots")
    return int(text)


def _show(data: dict[str, Any]) -> None:
    first = ("kind", "what", "family", "architecture")
    for name in (*first, *(key for key in data if key not in first)):
        value = data.get(name)
        if name == "taps" and value:
            # the file counts layer inputs, config.json layer outputs: one more, and easily confused
            from dflash_convert.drafter import Taps

            echo(f"{'taps':<30} {Taps.from_outputs(value['outputs'])}")
            echo(f"{'  in the file (layer inputs)':<30} {_text(value['inputs'])}")
        elif isinstance(value, dict):
            stated = {inner: item for inner, item in value.items() if item is not None}
            if stated:
                echo(f"{name.replace('_', ' ')}")
            for inner, item in stated.items():
                echo(f"  {one_line(inner):<28} {_text(item, '' if name == 'tokenizer' else inner)}")
        elif value not in (None, []):
            echo(f"{name.replace('_', ' '):<30} {_text(value, name)}")


def _text(value: Any, name: str = "") -> str:
    if name in ("size", "bytes") and isinstance(value, int):
        return size(value)
    if isinstance(value, dict):
        return ", ".join(f"{one_line(str(key))} {_text(item, key)}" for key, item in value.items() if item is not None)
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(item) for item in value)
    if isinstance(value, float):
        return number(value)
    return one_line(str(value))


def _table(plan: MemoryPlan) -> None:
    data = plan.json()
    sides = [side for side in ("drafter", "target") if data[side]]
    echo(f"memory, MiB, at {plan.ctx_size} tokens of context, {plan.slots} slots")
    rows = [["", *sides]]
    for name, key in MEMORY_ROWS:
        values = [data[side][key] for side in sides]
        rows.append([name, *("-" if value is None else f"{value:,.2f}" for value in values)])
    echo("\n".join(f"  {line}" for line in columns(rows, "<>", width())))
