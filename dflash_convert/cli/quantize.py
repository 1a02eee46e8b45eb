"""dflash-convert quantize IN.gguf OUT.gguf TYPE"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dflash_convert.cli import complete, nextsteps
from dflash_convert.cli.common import Given, json_option, takes, type_options, verbosity_options
from dflash_convert.cli.terminal import echo, emit, leaving
from dflash_convert.container.reader import open_gguf, require_file
from dflash_convert.text import duration, size

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


# as quant.recipe has them, which would load numpy for a help page; a test compares the two
TYPES = (
    "f32 f16 q4_0 q4_1 q8_0 q5_0 q5_1 q2_k q3_k_s q3_k_m q3_k_l q4_k_s q4_k_m q5_k_s q5_k_m q6_k q2_k_s iq4_nl iq4_xs "
    "bf16 mxfp4_moe q3_k q4_k q5_k mxfp4"
)


@click.command(
    "quantize",
    epilog=f"Types: {TYPES.replace(' ', ', ')}. Example: dflash-convert quantize drafter-BF16.gguf drafter-Q4_K_M.gguf "
    "q4_k_m",
)
@click.argument("source", metavar="IN.gguf", type=click.Path(path_type=Path))
@click.argument("output", metavar="OUT.gguf", type=click.Path(path_type=Path))
@click.argument("outtype", metavar="TYPE", shell_complete=complete.types)
@click.option("--force", is_flag=True, help="Replace an existing output.")
@click.option("--allow-requantize", is_flag=True, help="Quantize tensors that are quantized already.")
@click.option("--dry-run", is_flag=True, help="Print the plan and write nothing.")
@type_options
@click.option("--threads", type=click.IntRange(1), help="Processes that share the work; default: all cores.")
@json_option
@verbosity_options
@takes(QuantizeGiven)
def command(given: QuantizeGiven) -> None:
    """Quantize a drafter GGUF, with the bytes llama-quantize would write."""
    require_file(given.source)
    from dflash_convert.quantization import plan_quantize, quantize_file

    if given.dry_run:
        _print_plan(
            plan_quantize(open_gguf(given.source), given.outtype, given.types, allow_requantize=given.allow_requantize),
            given,
        )
        return
    given.check_outputs(output=given.output)
    total = sum(t.rows * t.shape[-1] for t in open_gguf(given.source).tensors.values())
    with given.bar("quantizing", "weights", total) as bar, leaving(f"{given.output} is as it was"):
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
    for name, info in open_gguf(given.output).tensors.items() if given.verbose else ():
        given.detail(f"  {name:<36} {info.type.name}")
    for text in done.fallbacks:
        given.say(f"  fallback: {text}")
    kinds = ", ".join(f"{n} {kind}" for kind, n in done.tensor_types.items())
    given.say(f"done: {size(done.nbytes)}, {kinds}, {duration(done.seconds)}")  # the path stands on stdout
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
    nextsteps.after_file(given, given.output)


def _print_plan(plan: FilePlan, given: QuantizeGiven) -> None:
    from dflash_convert.container.writer import layout
    from dflash_convert.plan import plan_to_json

    nbytes = layout(plan.keys, plan.entries).size
    data = plan_to_json(plan, nbytes - plan.padded_bytes)
    if given.as_json:
        emit(data)
        return
    echo(f"{plan.outtype}: {size(nbytes)}")
    for tensor in data["tensors"]:
        echo(f"  {tensor['name']:<36} {tensor['type']:<6} {' x '.join(map(str, tensor['shape']))}")
