"""dflash-convert quantize IN.gguf OUT.gguf TYPE"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from dflash_convert.cli.common import echo, json_option, progress_wanted, say, type_options, verbosity_options


@click.command("quantize")
@click.argument("source", metavar="IN.gguf", type=click.Path(path_type=Path))
@click.argument("output", metavar="OUT.gguf", type=click.Path(path_type=Path))
@click.argument("outtype", metavar="TYPE")
@click.option("--force", is_flag=True, help="Replace an existing output.")
@click.option("--plain", is_flag=True, help="Accepted for symmetry: quantize never adds keys.")
@click.option("--allow-requantize", is_flag=True, help="Quantize tensors that are quantized already.")
@click.option("--dry-run", is_flag=True, help="Print the plan and write nothing.")
@type_options
@click.option("--threads", type=click.IntRange(1), help="Worker processes; default: all cores.")
@json_option
@verbosity_options
def command(source: Path, output: Path, outtype: str, types: Any, **given: Any) -> None:
    """Quantize a drafter GGUF, with the bytes llama-quantize would write."""
    from dflash_convert.container.reader import open_gguf
    from dflash_convert.quantize import plan_quantize, quantize_file

    if given["dry_run"]:
        _print_plan(plan_quantize(open_gguf(source), outtype, types, allow_requantize=given["allow_requantize"]), given)
        return
    from tqdm import tqdm

    total = sum(t.rows * t.shape[-1] for t in open_gguf(source).tensors.values())
    show = progress_wanted(given["quiet"])
    with tqdm(total=total, unit=" weights", unit_scale=True, disable=not show, desc="quantizing") as bar:
        done = quantize_file(
            source,
            output,
            outtype,
            types,
            allow_requantize=given["allow_requantize"],
            force=given["force"],
            threads=given["threads"],
            progress=bar.update,
        )
    for text in done.fallbacks:
        say(f"  fallback: {text}", quiet=given["quiet"])
    kinds = ", ".join(f"{n} {kind}" for kind, n in done.tensor_types.items())
    say(f"{output}: {done.nbytes / 1e6:,.1f} MB, {kinds}, {done.seconds:.1f} s", quiet=given["quiet"])
    if given["as_json"]:
        result = {"path": str(output), "type": done.outtype, "bytes": done.nbytes, "tensor_types": done.tensor_types}
        click.echo(json.dumps(result | {"fallbacks": done.fallbacks, "seconds": round(done.seconds, 3)}, indent=1))
    else:
        click.echo(output)


def _print_plan(plan: Any, given: dict[str, Any]) -> None:
    from dflash_convert.container.writer import layout
    from dflash_convert.plan import plan_to_json

    size = layout(plan.keys, plan.entries).size
    data = plan_to_json(plan, size - plan.padded_bytes)
    if given["as_json"]:
        click.echo(json.dumps(data, indent=1, ensure_ascii=False))
        return
    click.echo(f"{plan.outtype}: {size} bytes")
    for tensor in data["tensors"]:
        echo(f"  {tensor['name']:<36} {tensor['type']:<6} {' x '.join(map(str, tensor['shape']))}")
