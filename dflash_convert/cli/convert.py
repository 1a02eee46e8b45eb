"""dflash-convert [convert] DRAFTER --target-model-dir TARGET"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dflash_convert.cli.common import (
    echo,
    json_option,
    override_options,
    progress_wanted,
    say,
    show_notes,
    type_options,
    verbosity_options,
)
from dflash_convert.text import one_line

if TYPE_CHECKING:
    from dflash_convert.convert import Conversion, Options, Source, Written
    from dflash_convert.encode.workers import Pool
    from dflash_convert.hub import Resolved
    from dflash_convert.prove import Proof


@click.command("convert")
@click.argument("drafter")
@click.option("--target-model-dir", "target", metavar="TARGET", help="The target: a directory or a Hub id. Required.")
@click.option("-t", "--outtype", "outtypes", multiple=True, default=("auto",), help="Output type; repeat for several.")
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
@click.option("--threads", type=click.IntRange(1), help="Worker processes; default: all cores.")
@click.option(
    "--validate", metavar="TARGET.gguf", type=click.Path(path_type=Path), help="Then check, verify and validate."
)
@click.option("--prompts", metavar="FILE.jsonl", type=click.Path(path_type=Path), help="Prompts for --validate.")
@click.option("--n-max", metavar="N,N…", help="Draft lengths for --validate.")
@click.option("--quick", is_flag=True, help="Only the main run of --validate.")
@click.option("--keep-failed", is_flag=True, help="Keep an output that --validate refused.")
@json_option
@verbosity_options
def command(drafter: str, target: str | None, **given: Any) -> None:
    """Convert a drafter checkpoint to GGUF for llama.cpp.

    DRAFTER is a directory or a Hub id (owner/name[@revision]). One file is written for each -t, in one pass
    over the weights.
    """
    from dflash_convert import convert
    from dflash_convert.errors import UsageError
    from dflash_convert.vocab.twin import find_tokenizer_model

    if target is None:
        raise UsageError(
            "--target-model-dir is missing: a drafter borrows its target's tokenizer",
            tip="give the directory or Hub id of the model this drafter was trained for, for example "
            + (_proposed_target(drafter) or "Qwen/Qwen3-8B"),
        )
    if "/" in (given["target_name"] or ""):
        raise UsageError(
            f"--target-name {given['target_name']} holds a slash",
            tip="it is a part of file names; -o gives a directory",
        )
    idle = [name for name in ("prompts", "n_max", "quick", "keep_failed") if given[name] and not given["validate"]]
    if idle:
        raise UsageError(f"--{idle[0].replace('_', '-')} has no effect without --validate TARGET.gguf")
    quiet = given["quiet"]
    drafter_source, _ = _resolve("drafter", drafter, quiet)
    target_source, found = _resolve("target", target, quiet)
    tokenizer_model, notes = find_tokenizer_model(found, given["tokenizer_model"])
    show_notes(notes, quiet=quiet)
    options = convert.Options(
        outtypes=given["outtypes"],
        types=given["types"],
        model_name=given["model_name"],
        target_name=given["target_name"],
        pre=given["pre"],
        tokenizer_model=tokenizer_model,
        plain=given["plain"],
        overrides=given["overrides"],
        force_pair=given["force_pair"],
    )
    with _early_pool(drafter_source.path, given) as pool:
        _convert(drafter_source, target_source, options, given, pool)


def _early_pool(drafter: Path, given: dict[str, Any]) -> AbstractContextManager[Pool | None]:
    """Workers that start while the tokenizer is read, for a conversion that will want them."""
    from dflash_convert.encode.workers import Pool, pool_size

    if given["dry_run"]:
        return nullcontext()
    weights = sum(file.stat().st_size for file in drafter.glob("*.safetensors") if file.is_file()) // 2
    count = pool_size(given["threads"], weights)
    return Pool(count) if count else nullcontext()


def _convert(
    drafter_source: Source, target_source: Source, options: Options, given: dict[str, Any], pool: Pool | None
) -> None:
    from dflash_convert import convert

    quiet = given["quiet"]
    conversion = convert.prepare(drafter_source, target_source, options)
    paths = convert.output_paths(conversion, given["output"])
    _show_findings(conversion, quiet)
    if given["dry_run"]:
        _print_plan(conversion, paths, given)
        return
    proofs: list[Proof] = []
    if given["validate"]:
        from dflash_convert.output import withheld

        with withheld(paths, force=given["force"], keep_failed=given["keep_failed"]) as hidden:
            written = _write(conversion, hidden, given, pool)
            for one, final in zip(written, paths, strict=True):
                proofs.append(_prove(one, final, drafter_source, target_source, options, given))
        written = [replace(one, path=path) for one, path in zip(written, paths, strict=True)]
    else:
        written = _write(conversion, paths, given, pool)
    _summary(conversion, written, given["validate"], quiet)
    if given["as_json"]:
        results = [_result(one) for one in written]
        for result, proof in zip(results, proofs, strict=False):
            result |= proof.json()
        click.echo(json.dumps(results, indent=1))
    else:
        for one in written:
            click.echo(one.path)


def _show_findings(conversion: Conversion, quiet: bool) -> None:
    """What speaks against this pair and is written all the same: warnings, and errors that --force-pair overruled."""
    for finding in conversion.findings:
        forced = "refused, but forced: " if finding.severity == "error" else ""
        say(f"  WARNING: {forced}{finding}: {finding.cure}", quiet=quiet)


def _prove(
    one: Written, final: Path, drafter: Source, target: Source, options: Options, given: dict[str, Any]
) -> Proof:
    from dflash_convert.prove import prove
    from dflash_convert.validation import table
    from dflash_convert.validation.options import parse_n_max

    proof = prove(
        one.path,
        drafter.path,
        target.path,
        given["validate"],
        options=options,
        prompts=given["prompts"],
        n_max=parse_n_max(given["n_max"]) if given["n_max"] else (),
        quick=given["quick"],
        say=lambda text: say(text, quiet=given["quiet"]),
    )
    # the file moves to its own name when all is well: that is the name to show
    validated = replace(proof.validated, drafter=replace(proof.validated.drafter, path=str(final)))
    say(table.render(validated), quiet=given["quiet"])
    return replace(proof, verified=replace(proof.verified, path=final), validated=validated)


def _resolve(role: str, spec: str, quiet: bool) -> tuple[Source, Resolved]:
    """A directory or Hub id as a local source; what was fetched is said."""
    from dflash_convert import hub
    from dflash_convert.convert import Source

    progress = progress_wanted(quiet)
    if role == "drafter":
        found = hub.resolve_drafter(spec, progress=progress, accept=_not_a_target)
    else:
        found = hub.resolve_target(spec, progress=progress)
    show_notes(found.notes, quiet=quiet)
    return Source(found.path, found.name if found.repo else None, found.revision), found


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


def _write(conversion: Conversion, paths: list[Path], given: dict[str, Any], pool: Pool | None) -> list[Written]:
    from tqdm import tqdm

    from dflash_convert.convert import write

    total = sum(t.shape[-1] * max(1, _rows(t.shape)) for t in conversion.description.tensors)
    show = progress_wanted(given["quiet"])
    with tqdm(total=total, unit=" weights", unit_scale=True, disable=not show, desc="converting") as bar:
        return write(conversion, paths, force=given["force"], threads=given["threads"], progress=bar.update, pool=pool)


def _rows(shape: tuple[int, ...]) -> int:
    count = 1
    for n in shape[:-1]:
        count *= n
    return count


def _summary(conversion: Conversion, written: list[Written], target: Path | None, quiet: bool) -> None:
    d, v = conversion.description, conversion.vocabulary
    facts = {"block": d.block_size, "mask token": d.mask_token_id, "reads": d.taps or None}
    said = ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
    say(f"{d.family} drafter{': ' if said else ''}{said}", quiet=quiet)
    say(
        f"target {conversion.target_name}: {v.model} vocabulary of {v.size} tokens, "
        f"pre-tokenizer {v.pre} ({v.pre_source})",
        quiet=quiet,
    )
    show_notes(conversion.notes, quiet=quiet)
    for plan in conversion.files:
        for text in plan.fallbacks:
            say(f"  fallback: {text}", quiet=quiet)
    for one in written:
        kinds = ", ".join(f"{n} {kind}" for kind, n in one.tensor_types.items())
        say(f"{one.path}: {one.nbytes / 1e6:,.1f} MB, {kinds}, {one.seconds:.1f} s", quiet=quiet)
    say(f"run it: {_command(conversion, written[0].path, target)}", quiet=quiet)


def _command(conversion: Conversion, path: Path, target: Path | None) -> str:
    from dflash_convert.naming import server_command

    d = conversion.description
    return server_command(target or f"{conversion.target_name}.gguf", path, d.variant, d.n_max)


def _result(one: Written) -> dict[str, Any]:
    return {
        "path": str(one.path),
        "type": one.outtype,
        "bytes": one.nbytes,
        "tensor_types": one.tensor_types,
        "seconds": round(one.seconds, 3),
    }


def _print_plan(conversion: Conversion, paths: list[Path], given: dict[str, Any]) -> None:
    from dflash_convert.container.writer import layout
    from dflash_convert.plan import plan_to_json, shown_value

    plans = []
    for plan, path in zip(conversion.files, paths, strict=True):
        size = layout(plan.keys, plan.entries).size
        plans.append(plan_to_json(plan, size - plan.padded_bytes) | {"path": str(path)})
        if given["as_json"]:
            continue
        echo(f"{path}  {plan.outtype}  {size} bytes")
        for kv in plan.keys:
            click.echo(one_line(f"  {kv.name} = {shown_value(kv)}"))
        for tensor, kind in plan.tensors:
            shape = " x ".join(map(str, tensor.shape))
            source = ", ".join(s.name for s in tensor.sources) or tensor.transform
            echo(f"  {tensor.name:<36} {kind.name:<6} {shape:<16} <- {source}")
    if given["as_json"]:
        click.echo(json.dumps(plans, indent=1, ensure_ascii=False))
    else:
        show_notes(conversion.notes, quiet=given["quiet"])
