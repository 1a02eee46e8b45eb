"""dflash-convert [convert] DRAFTER --target-model-dir TARGET"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dflash_convert import hub
from dflash_convert.cli import complete
from dflash_convert.cli.answers import refuse_gguf
from dflash_convert.cli.common import (
    Given,
    head_options,
    json_option,
    override_options,
    takes,
    type_options,
    verbosity_options,
)
from dflash_convert.cli.terminal import echo, emit, leaving, stays_fetched
from dflash_convert.encode.pool import pool_for
from dflash_convert.errors import InputError, UsageError
from dflash_convert.naming import check_target_name
from dflash_convert.output import refuse_special
from dflash_convert.target import Target
from dflash_convert.text import one_line, size

if TYPE_CHECKING:
    from dflash_convert.arrivals import Arrivals
    from dflash_convert.drafter import Overrides
    from dflash_convert.encode.pool import Pool
    from dflash_convert.head.options import HeadOptions
    from dflash_convert.pipeline import Made, Prepared, Proving, Task
    from dflash_convert.plan import TypeOptions


@dataclass(frozen=True, kw_only=True)
class ConvertGiven(Given):
    drafter: str
    target: str | None
    outtypes: tuple[str, ...]
    output: Path | None
    dry_run: bool
    force: bool
    plain: bool
    model_name: str | None
    target_name: str | None
    pre: str | None
    tokenizer_model: str | None
    types: TypeOptions
    overrides: Overrides
    force_pair: bool
    head: HeadOptions | None
    target_gguf: Path | None
    threads: int | None
    validate: Path | None
    prompts: Path | None
    n_max: str | None
    quick: bool
    keep_failed: bool


@click.command(
    "convert",
    epilog="Example: dflash-convert z-lab/Qwen3-8B-DFlash-b16 --target-model-dir Qwen/Qwen3-8B -t q8_0,q4_k_m. "
    "The types are listed by: dflash-convert quantize --help",
)
@click.argument("drafter", shell_complete=complete.places)
@click.option(
    "--target-model-dir",
    "target",
    metavar="TARGET",
    shell_complete=complete.places,
    help="The target: directory, GGUF or Hub id. Required.",
)
@click.option(
    "-t",
    "--outtype",
    "outtypes",
    metavar="TYPE[,TYPE…]",
    shell_complete=complete.types,
    multiple=True,
    default=("auto",),
    callback=lambda _, __, given: tuple(each.strip() for text in given for each in text.split(",")),
    help="Output type, or several; auto: as the checkpoint is stored.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Output file, or directory for the default names."
)
@click.option("--dry-run", is_flag=True, help="Print the plan and write nothing.")
@click.option("--force", is_flag=True, help="Replace an existing output.")
@click.option("--plain", is_flag=True, help="Exactly the reference converter's file: no extra keys.")
@click.option("--model-name", help="general.name of the drafter.")
@click.option("--target-name", help="The target's name in default file names.")
@click.option("--pre", help="Pre-tokenizer name, when it cannot be recognised.")
@click.option("--tokenizer-model", metavar="FILE|REPO", help="A tokenizer.model for a target that lacks it.")
@type_options
@override_options
@click.option("--force-pair", is_flag=True, help="Write a pair that is refused, and say so in the file.")
@head_options
@click.option(
    "--target-gguf",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The target's weights for a head of its own; default: those in TARGET.",
)
@click.option("--threads", type=click.IntRange(1), help="Processes that share the work; default: all cores.")
@click.option(
    "--validate", metavar="TARGET.gguf", type=click.Path(path_type=Path), help="Then check, verify and validate."
)
@click.option("--prompts", metavar="FILE.jsonl", type=click.Path(path_type=Path), help="Prompts for --validate.")
@click.option("--n-max", metavar="N,N…", help="Draft lengths for --validate.")
@click.option("--quick", is_flag=True, help="Only the main run of --validate.")
@click.option("--keep-failed", is_flag=True, help="Keep an output that --validate refused.")
@json_option
@verbosity_options
@takes(ConvertGiven)
def command(given: ConvertGiven) -> None:
    """Convert a drafter checkpoint to GGUF for llama.cpp.

    DRAFTER is a directory or a Hub id (owner/name[@revision]). One file is written for each -t, in one pass
    over the weights.
    """
    local = Path(given.drafter)
    with ExitStack() as coming:
        started = None
        if local.is_dir() and not given.dry_run:  # they import while this process does
            started = coming.enter_context(pool_for(local, given.threads))
        _convert(given, task_of(given, coming), started)


def _convert(given: ConvertGiven, task: Task, started: Pool | None) -> None:
    from dflash_convert import pipeline
    from dflash_convert.cli.watch import Shown, show_plan, show_result

    if given.dry_run:
        prepared = pipeline.prepare(task)
        show_plan(prepared, given)
        _print_plan(prepared, given)
        return
    remote = stays_fetched(given.drafter, given.target)
    with Shown(given, given.threads) as watcher, leaving(watcher.left, goes_on=remote):
        result = pipeline.run(task, watcher, started)
    show_result(result, given, given.validate or task.target.gguf)
    if given.as_json:
        emit([_result(made, result.prepared) for made in result.files])
    else:
        for made in result.files:
            click.echo(made.written.path)


def task_of(given: ConvertGiven, coming: ExitStack | None = None) -> Task:
    """What is to be done; Hub ids are fetched, and what is derived on the way is shown.

    Within ``coming`` a drafter's weights may still be on their way; of a dry run they do not set out before something
    asks for them.
    """
    refuse_gguf(given.drafter)
    check_options(given)
    stays_fetched(given.drafter, given.target)

    def later(weights: Arrivals) -> None:
        if coming is not None:
            coming.enter_context(weights)
        if not given.dry_run:
            weights.begin()

    show, fetch = given.progress, later if coming is not None else None
    drafter = hub.resolve_drafter(given.drafter, progress=show, accept=_not_a_target, later=fetch)
    given.show_notes(drafter.notes)
    target = hub.resolve_target(str(given.target), progress=given.progress)
    from dflash_convert import conversion as convert
    from dflash_convert.pipeline import Task
    from dflash_convert.vocab.twin import find_tokenizer_model

    tokenizer_model, notes = find_tokenizer_model(target, given.tokenizer_model)
    given.show_notes((*target.notes, *notes))
    options = convert.Options(
        outtypes=given.outtypes,
        types=given.types,
        model_name=given.model_name,
        target_name=given.target_name,
        pre=given.pre,
        tokenizer_model=tokenizer_model,
        plain=given.plain,
        overrides=given.overrides,
        force_pair=given.force_pair,
    )
    source = convert.Source(drafter.path, drafter.name if drafter.repo else None, drafter.revision)
    read = Target.of(target, gguf=given.target_gguf)
    return Task(source, read, options, given.output, given.force, given.threads, _proving(given), given.head)


def check_options(given: ConvertGiven) -> None:
    if given.target is None:
        raise UsageError(
            "--target-model-dir is missing: a drafter borrows its target's tokenizer",
            tip="give the directory, GGUF or Hub id of the model this drafter was trained for, for example "
            + (_proposed_target(given.drafter) or "Qwen/Qwen3-8B"),
        )
    check_target_name(given.target_name)
    if given.output is not None:
        refuse_special(given.output)
    if given.target_gguf and given.head is None:
        raise UsageError("--target-gguf has no effect without --keep N or --full")
    if given.target_gguf and given.target_gguf.is_dir():
        raise InputError(
            f"--target-gguf {given.target_gguf}: a directory, and the target's GGUF is wanted",
            tip=f"weights in a target's directory are read by: --target-model-dir {given.target_gguf}",
        )
    if given.plain and given.head is not None:
        raise UsageError(
            "--plain writes exactly the reference converter's file, which has no head of its own",
            tip="convert with --plain first, then: dflash-convert head OUT.gguf TARGET …",
        )


def _proving(given: ConvertGiven) -> Proving | None:
    from dflash_convert.pipeline import Proving
    from dflash_convert.validation.options import Options, parse_n_max

    if given.validate is None:
        return None
    n_max = parse_n_max(given.n_max) if given.n_max else ()
    wanted = Options(Path(), given.validate, prompts=given.prompts, n_max=n_max, quick=given.quick)
    return Proving(wanted, keep_failed=given.keep_failed)


def _not_a_target(directory: Path) -> None:
    from dflash_convert.checkpoint import read_config
    from dflash_convert.families.detect import refuse_target

    refuse_target(read_config(directory), directory.name)


def _proposed_target(drafter: str) -> str | None:
    """The target that a local speculators checkpoint names itself."""
    from dflash_convert.checkpoint import read_config
    from dflash_convert.families.spellings import proposed_target

    directory = Path(drafter)
    return proposed_target(read_config(directory)) if (directory / "config.json").is_file() else None


def _result(made: Made, prepared: Prepared) -> dict[str, Any]:
    one = made.written
    found = {
        "path": str(one.path),
        "type": one.outtype,
        "bytes": one.nbytes,
        "tensor_types": one.tensor_types,
        "seconds": round(one.seconds, 3),
    }
    if prepared.choice is not None:
        found["head"] = prepared.choice.json()
    return found | (made.proof.json() if made.proof else {})


def _print_plan(prepared: Prepared, given: ConvertGiven) -> None:
    from dflash_convert.container.writer import layout
    from dflash_convert.plan import plan_to_json, shown_key

    plans = []
    for plan, path in zip(prepared.conversion.files, prepared.paths, strict=True):
        nbytes = layout(plan.keys, plan.entries).size
        plans.append(plan_to_json(plan, nbytes - plan.padded_bytes) | {"path": str(path)})
        if given.as_json:
            continue
        echo(f"{path}  {plan.outtype}  {size(nbytes)}")
        for kv in plan.keys:
            echo(one_line(f"  {shown_key(kv)}"))
        for tensor, kind in plan.tensors:
            shape = " x ".join(map(str, tensor.shape))
            source = ", ".join(s.name for s in tensor.sources) or tensor.transform
            echo(f"  {tensor.name:<36} {kind.name:<6} {shape:<16} <- {source}")
    if given.as_json:
        emit(plans)
