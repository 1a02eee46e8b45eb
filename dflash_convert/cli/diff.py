"""dflash-convert diff A.gguf B.gguf"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from dflash_convert.cli import nextsteps
from dflash_convert.cli.common import Given, json_option, takes, verbosity_options
from dflash_convert.cli.terminal import echo, emit
from dflash_convert.container.reader import require_file


@dataclass(frozen=True, kw_only=True)
class DiffGiven(Given):
    a: Path
    b: Path


@click.command("diff")
@click.argument("a", type=click.Path(path_type=Path), metavar="A.gguf")
@click.argument("b", type=click.Path(path_type=Path), metavar="B.gguf")
@json_option
@verbosity_options
@takes(DiffGiven)
def command(given: DiffGiven) -> None:
    """Show keys and tensors in which two GGUF files differ.

    Tensors are decoded and compared by value where their bytes differ, A taken for the truth. The exit code is
    0 whether or not they differ; --json says "identical".
    """
    require_file(given.a, given.b)
    from dflash_convert.verification.diff import diff

    result = diff(given.a, given.b)
    if given.as_json:
        emit(result.json())
        return
    for key in result.keys:
        echo(f"key     {key.name}\n        A: {key.a or '-'}\n        B: {key.b or '-'}")
    for tensor in result.tensors:
        figures = ""
        if tensor.cosine is not None:
            snr = "" if tensor.snr_db is None else f", SNR {tensor.snr_db:.1f} dB"
            figures = f"  RMSE {tensor.rmse:.3g}, max {tensor.max_error:.3g}{snr}, cosine {tensor.cosine:.6f}"
        echo(f"tensor  {tensor.name:<36} {tensor.a or '-'} | {tensor.b or '-'}{figures}")
    if not result.order and not result.keys and not result.tensors:
        echo("order   the same keys and tensors stand in another order")
    given.say(
        f"{len(result.keys)} keys and {len(result.tensors)} tensors differ, "
        f"{result.equal_keys} keys and {result.equal_tensors} tensors are equal"
    )
    compare = [nextsteps.command("verify", path, nextsteps.DRAFTER_DIR) for path in (given.a, given.b)]
    nextsteps.show(given, [("compare one with the checkpoint it was made from", compare)])
