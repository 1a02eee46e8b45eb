"""dflash-convert quantize IN.gguf OUT.gguf TYPE"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dflash_convert.cli.common import Given, echo, json_option, takes, type_options, verbosity_options
from dflash_convert.cli.terminal import emit
from dflash_convert.container.reader import open_gguf, require_file

if TYPE_CHECKING:
    from dflash_convert.plan import FilePlan, TypeOptions


@dataclass(frozen=True, kw_only=True)
class QuantizeGiven(Given):
    source: Path
    output: Path
    outtype: str
    force: bool
    allow_requantize: bool
    dry_run: bool
    types: TypeOptions
    threads: int | None


@click.command("quantize")
@click.argument("source", metavar="IN.gguf", type=click.Path(path_type=Path))
@click.argument("output", metavar="OUT.gguf", type=click.Path(path_type=Path))
@click.argument("outtype", metavar="TYPE")
@click.option("--force", is_flag=True, help="Replace an existing output.")
@click.option("--allow-requantize", is_flag=True, help="Quantize tensors that are quantized already.")
@click.option("--dry-run", is_flag=True, help="Print the plan and write nothing.")
@type_options
@click.option("--threads", type=click.IntRange(1), help="Worker processes; default: all cores.")
@json_option
@verbosity_options
@takes(QuantizeGiven)
def command(given: QuantizeGiven) -> None:
    """Quantize a drafter GGUF, with the bytes llama-quantize would write."""
    require_file(given.source)
    from dflash_convert.quantize import plan_quantize, quantize_file

    if given.dry_run:
        _print_plan(
            plan_quantize(open_gguf(given.source), given.outtype, given.types, allow_requantize=given.allow_requantize),
            given,
        )
        return
    from tqdm import tqdm

    total = sum(t.rows * t.shape[-1] for t in open_gguf(given.source).tensors.values())
    show = given.progress
    with tqdm(total=total, unit=" weights", unit_scale=True, disable=not show, desc="quantizing") as bar:
        done = quantize_file(
            given.source,
            given.output,
            given.outtype,
            given.types,
            allow_requantize=given.allow_requantize,
            force=given.force,
            threads=given.threads,
            progress=bar.update,
        )
    for text in done.fallbacks:
        given.say(f"  fallback: {text}")
    kinds = ", ".join(f"{n} {kind}" for kind, n in done.tensor_types.items())
    given.say(f"{given.output}: {done.nbytes / 1e6:,.1f} MB, {kinds}, {done.seconds:.1f} s")
    if given.as_json:
        result = {
            "path": str(given.output),
            "type": done.outtype,
            "bytes": done.nbytes,
            "tensor_types": done.tensor_types,
        }
        emit(result | {"fallbacks": done.fallbacks, "seconds": round(done.seconds, 3)})
    else:
        click.echo(given.output)


def _print_plan(plan: FilePlan, given: QuantizeGiven) -> None:
    from dflash_convert.container.writer import layout
    from dflash_convert.plan import plan_to_json

    size = layout(plan.keys, plan.entries).size
    data = plan_to_json(plan, size - plan.padded_bytes)
    if given.as_json:
        emit(data)
        return
    click.echo(f"{plan.outtype}: {size} bytes")
    for tensor in data["tensors"]:
        echo(f"  {tensor['name']:<36} {tensor['type']:<6} {' x '.join(map(str, tensor['shape']))}")
