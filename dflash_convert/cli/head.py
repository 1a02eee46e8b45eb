"""dflash-convert head IN.gguf TARGET OUT.gguf"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dflash_convert.cli.common import Given, json_option, takes, verbosity_options
from dflash_convert.cli.terminal import emit
from dflash_convert.container.reader import open_gguf, require_file
from dflash_convert.errors import UsageError
from dflash_convert.output import check_output_path

if TYPE_CHECKING:
    from dflash_convert.container.reader import Gguf
    from dflash_convert.head.ranking import Ranking
    from dflash_convert.shrink import Choice

PATH = click.Path(path_type=Path)


@dataclass(frozen=True, kw_only=True)
class HeadGiven(Given):
    source: Path
    target: Path
    output: Path
    keep: int | None
    full: bool
    from_run: Path | None
    text: tuple[Path, ...]
    ranking: Path | None
    only_ranked: bool
    head_type: str
    own_embeddings: str | None
    cover: float
    force: bool
    threads: int | None


@click.command("head")
@click.argument("source", metavar="IN.gguf", type=PATH)
@click.argument("target", metavar="TARGET", type=PATH)
@click.argument("output", metavar="OUT.gguf", type=PATH)
@click.option("--keep", type=click.IntRange(1), metavar="N", help="Rows of a reduced head.")
@click.option("--full", is_flag=True, help="A head of every token.")
@click.option("--from-run", type=PATH, metavar="R.json", help="Rank by the target's own answers in a stored run.")
@click.option("--text", type=PATH, multiple=True, metavar="FILE", help="Rank by text, a kind each; repeat.")
@click.option("--ranking", type=PATH, metavar="FILE", help="A ranking: an id a line, best first, or id and count.")
@click.option("--only-ranked", is_flag=True, help="Without the tokens that are kept whatever the ranking says.")
@click.option("--head-type", default="copy", show_default=True, metavar="TYPE", help="Type of the head's rows.")
@click.option("--own-embeddings", metavar="TYPE", help="Embeddings of the drafter's own too; copy or a type.")
@click.option(
    "--cover", type=click.FloatRange(0, 1), default=0.995, show_default=True, help="Least share of held-out tokens."
)
@click.option("--force", is_flag=True, help="Replace an existing output.")
@click.option("--threads", type=click.IntRange(1), help="Worker processes; default: all cores.")
@json_option
@verbosity_options
@takes(HeadGiven)
def command(given: HeadGiven) -> None:
    """Give a drafter an output head of its own, with the target's rows that are worth keeping.

    A reduced head is smaller and faster; with embeddings of its own the drafter borrows nothing from its target and
    may sit on another device. The target still verifies every token. TARGET is its GGUF or its directory.
    """
    require_file(given.source, given.target)
    from dflash_convert.head.build import Head, default_name, plan_head
    from dflash_convert.head.matrix import target_matrices
    from dflash_convert.quantize import write_file
    from dflash_convert.shrink import check_type, choose

    _check_options(given)
    drafter = open_gguf(given.source)
    output = given.output
    if output.is_dir():
        output = output / default_name(given.source, given.keep)
    check_output_path(output, force=given.force, inputs=[given.source, given.target])
    matrices = target_matrices(given.target)
    hidden = matrices.head.shape[1]
    ranked = _ranking(given, drafter)
    choice = None
    if ranked and given.keep:
        choice = choose(drafter, ranked, given.keep, given.cover, only_ranked=given.only_ranked)
    if choice is not None:
        given.show_notes(choice.notes)
        _say_coverage(choice, given)
    head = Head(
        None if choice is None else choice.ids,
        check_type(given.head_type, "--head-type", hidden),
        given.own_embeddings is not None,
        check_type(given.own_embeddings, "--own-embeddings", hidden),
        ranked,
        None if choice is None else choice.coverage,
    )
    plan = plan_head(drafter, matrices, head)
    from tqdm import tqdm

    total = sum(tensor.rows * tensor.shape[-1] for tensor in drafter.tensors.values())
    with tqdm(total=total, unit=" weights", unit_scale=True, disable=not given.progress) as bar:
        nbytes = write_file(plan, output, force=given.force, threads=given.threads, progress=bar.update)
    given.say(f"{output}: {nbytes / 1e6:,.1f} MB")
    if given.as_json:
        emit(_document(output, nbytes, choice))
    else:
        click.echo(output)


def _check_options(given: HeadGiven) -> None:
    if (given.keep is None) is not given.full:
        raise UsageError("one of --keep N and --full is needed", tip="--keep 65536 keeps the 64k best rows")
    sources = [name for name in ("from_run", "text", "ranking") if getattr(given, name)]
    if given.full and (sources or given.only_ranked):
        raise UsageError("--full keeps every row, so a ranking has no effect")
    if given.keep and len(sources) != 1:
        raise UsageError(
            "--keep needs a ranking: one of --from-run R.json, --text FILE and --ranking FILE",
            tip="the target's own answers rank best: dflash-convert validate … --json > R.json",
        )


def _ranking(given: HeadGiven, drafter: Gguf) -> Ranking | None:
    from dflash_convert.head import ranking
    from dflash_convert.head.vocabulary import read_vocabulary
    from dflash_convert.shrink import tokenizer

    if given.full:
        return None
    size = read_vocabulary(drafter).size
    if given.from_run:
        return ranking.from_run(given.from_run, size)
    if given.ranking:
        return ranking.from_file(given.ranking, size)
    with tokenizer(drafter, given.target) as tokenize:
        return ranking.from_text(given.text, tokenize, size)


def _say_coverage(choice: Choice, given: HeadGiven) -> None:
    if choice.coverage is None:
        return
    kinds = ", ".join(f"{kind} {100 * share:.2f} %" for kind, share in sorted(choice.coverage.by_kind.items()))
    share = f"{100 * choice.coverage.share:.2f} % of {choice.coverage.tokens} held-out tokens"
    given.say(f"  {len(choice.ids)} rows cover {share}")
    given.say(f"  by kind: {kinds}")
    if choice.predicted is not None:
        given.say(f"  predicted mean length: {choice.predicted:.2f}")


def _document(output: Path, nbytes: int, choice: Choice | None) -> dict[str, Any]:
    found = None if choice is None else choice.coverage
    return {
        "schema": 1,
        "path": str(output),
        "bytes": nbytes,
        "rows": None if choice is None else len(choice.ids),
        "coverage": None if found is None else {"share": found.share, "by_kind": found.by_kind, "tokens": found.tokens},
        "predicted_mean_length": None if choice is None else choice.predicted,
    }
