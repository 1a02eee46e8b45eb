"""dflash-convert verify OUT.gguf DRAFTER_DIR"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dflash_convert import hub
from dflash_convert.cli import complete, nextsteps
from dflash_convert.cli.common import Given, json_option, override_options, takes, verbosity_options
from dflash_convert.cli.terminal import echo, emit, stays_fetched, width
from dflash_convert.container.reader import open_gguf, require_file
from dflash_convert.errors import UsageError
from dflash_convert.target import Target
from dflash_convert.text import columns, percent

if TYPE_CHECKING:
    from dflash_convert.drafter import Overrides
    from dflash_convert.verification.tensors import TensorReport, VerifyResult


@dataclass(frozen=True, kw_only=True)
class VerifyGiven(Given):
    gguf: Path
    drafter: str
    target: str | None
    fidelity: bool
    target_gguf: Path | None
    pre: str | None
    tokenizer_model: Path | None
    manifest: Path | None
    overrides: Overrides
    threads: int | None


@click.command("verify")
@click.argument("gguf", type=click.Path(path_type=Path), metavar="OUT.gguf")
@click.argument("drafter", metavar="DRAFTER", shell_complete=complete.places)
@click.option(
    "--target-model-dir",
    "target",
    metavar="TARGET",
    shell_complete=complete.places,
    help="The target: checks the vocabulary too.",
)
@click.option(
    "--fidelity",
    is_flag=True,
    help="Also run source and file through the numpy forward; drafts need the target's weights.",
)
@click.option(
    "--target-gguf",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The target's weights, for a head of its own and for --fidelity (a small Qwen3-type one).",
)
@click.option("--pre", help="As given to convert.")
@click.option("--tokenizer-model", type=click.Path(path_type=Path), metavar="FILE", help="As given to convert.")
@click.option("--threads", type=click.IntRange(1), help="Processes that share the work; default: all cores.")
@click.option("--manifest", type=click.Path(path_type=Path), metavar="DIR", help="A package that must list this file.")
@override_options
@json_option
@verbosity_options
@takes(VerifyGiven)
def command(given: VerifyGiven) -> None:
    """Compare OUT.gguf with the checkpoint it was made from.

    Every tensor against its source (bit-equal where copied, error figures where quantized), every key against
    config and tokenizer; with a target and an engine also how llama.cpp splits probe texts. Files of other
    converters are welcome. Exit code 5 lists every difference.
    """
    if given.target_gguf and not (given.fidelity and given.target) and not _has_head(given.gguf):
        raise UsageError("--target-gguf works with --fidelity and --target-model-dir: its tokenizer reads the prompts")
    require_file(given.gguf)
    show = given.progress
    stays_fetched(given.drafter, given.target)
    source = hub.resolve_drafter(given.drafter, progress=show).path
    target = Target(gguf=given.target_gguf)
    if given.target:
        target = Target.of(hub.resolve_target(given.target, progress=show), gguf=given.target_gguf)
    from dflash_convert.verification.tensors import verify

    with given.bar("comparing", "weights") as bar:
        result = verify(
            given.gguf,
            source,
            target,
            overrides=given.overrides,
            tokenizer_model=given.tokenizer_model,
            pre=given.pre,
            threads=given.threads,
            engine=target.known,
            begin=bar.begin,
            progress=bar.update,
        )
    if given.fidelity:
        from dflash_convert.verification.drafts import add_fidelity

        with given.bar("numpy forward", "contexts") as bar:
            result = add_fidelity(result, source, target, overrides=given.overrides, watch=bar)
    if given.manifest:
        from dflash_convert.release.manifest import listed_problems

        problems = tuple(str(problem) for problem in listed_problems(given.gguf, given.manifest))
        result = replace(result, differences=(*result.differences, *problems))
    if given.as_json:
        emit(result.json())
    else:
        _table(result, given.verbose)
    given.show_notes(result.notes)
    result.raise_for_status()
    given.say(f"{given.gguf} is what its source says")
    nextsteps.after_file(given, given.gguf)


def _has_head(path: Path) -> bool:
    from dflash_convert.head.expected import has_head

    return path.is_file() and has_head(open_gguf(path))


def _table(result: VerifyResult, verbose: int) -> None:
    rows = [("type", "tensors", "status", "worst SNR", "RMSE", "max error", "decoder")]
    groups: dict[tuple[str, str], list[TensorReport]] = {}
    for tensor in result.tensors:
        groups.setdefault((tensor.type, tensor.status), []).append(tensor)
    for (kind, status), tensors in groups.items():
        snr = min((t.snr_db for t in tensors if t.snr_db is not None), default=None)
        worst = "-" if snr is None else f"{snr:.1f} dB"
        rmse, top = max(t.rmse for t in tensors), max(t.max_error for t in tensors)
        rows.append((kind, str(len(tensors)), status, worst, f"{rmse:.3g}", f"{top:.3g}", tensors[0].decoder))
    echo("\n".join(columns(rows, "<><>>><", width())))
    if verbose:
        for t in result.tensors:
            snr_text = "" if t.snr_db is None else f"  {t.snr_db:.1f} dB  cosine {t.cosine:.6f}"
            echo(f"  {t.name:<36} {t.source_type:>8} -> {t.type:<6} {t.status}{snr_text}")
    echo(f"{result.keys_checked} keys checked, {len(result.differences)} differences")
    if result.fidelity is not None:
        for row in result.fidelity.rows:
            text = f"cosine {row.cosine:.6f} (worst {row.worst_cosine:.6f}), logit distance {row.logit_distance:.4f}"
            if row.agreement is not None and row.expected_loss is not None:
                text += f", same drafts {percent(row.agreement)}, expected loss {percent(row.expected_loss)}"
            echo(f"fidelity over {result.fidelity.blocks} blocks: {text}")
    for difference in result.differences:
        echo(f"DIFFERENT  {difference}")
