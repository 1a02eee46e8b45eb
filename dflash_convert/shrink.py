"""From a drafter, a target and a ranking to a drafter with a head of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dflash_convert.container.reader import open_gguf
from dflash_convert.container.types import BLOCK, TensorType
from dflash_convert.engine import find
from dflash_convert.engine.session import start
from dflash_convert.engine.trace import to_split
from dflash_convert.errors import UsageError, ValidationError
from dflash_convert.head import build, ranking
from dflash_convert.head.base import Base, current_map
from dflash_convert.head.build import Head
from dflash_convert.head.matrix import target_matrices
from dflash_convert.head.options import HeadOptions
from dflash_convert.head.provenance import NAMES
from dflash_convert.head.vocabulary import always_kept, read_vocabulary
from dflash_convert.notes import Note
from dflash_convert.pairing import check, refusal
from dflash_convert.pairing.drafters import drafter_plan
from dflash_convert.pairing.targets import target_directory, target_gguf
from dflash_convert.tables import HEAD
from dflash_convert.text import percent
from dflash_convert.verification.vocabulary import library_of, write_carrier

if TYPE_CHECKING:
    from dflash_convert.conversion import Conversion
    from dflash_convert.pairing.view import DrafterView
    from dflash_convert.plan import FilePlan
    from dflash_convert.target import Target

HEAD_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS")


@dataclass(frozen=True)
class Choice:
    """The rows of a reduced head, what they cover, and what should be said about them."""

    ids: ranking.Ids
    coverage: ranking.Coverage | None
    predicted: float | None
    notes: tuple[Note, ...]

    def json(self) -> dict[str, Any]:
        found = self.coverage
        return {
            "rows": len(self.ids),
            "coverage": found and {"share": found.share, "by_kind": found.by_kind, "tokens": found.tokens},
            "predicted_mean_length": self.predicted,
        }


WHOLE: dict[str, Any] = {"rows": None, "coverage": None, "predicted_mean_length": None}  # of every token


def shrink(
    bases: Sequence[Base], asked: HeadOptions, target: Target, *, force: bool = False
) -> tuple[tuple[FilePlan, ...], Choice | None]:
    """One drafter's files (its encodings) with a head of their own, and the rows it has; None: all of them.

    The rows are those of ``target``'s GGUF, else of the weights in its directory. ValidationError for rows that cover
    too little; PairingError, unless ``force``, for what ``check`` would refuse of the file and either of the two.
    """
    build.refuse(bases[0])
    if HEAD in bases[0].tensors and not force:  # a few of its rows tell less than all of them
        _refuse_pair(drafter_plan(bases[0].name, bases[0].plan), target)
    matrices = target_matrices(target.gguf or target.files)
    hidden = matrices.head.shape[1]
    kind, table = (
        check_type(name, option, hidden)
        for name, option in ((asked.head_type, "--head-type"), (asked.own_embeddings, "--own-embeddings"))
    )
    ranked = choice = None
    if asked.keep is not None:
        ranked = _ranked(bases[0], asked, target)
        choice = choose(bases[0], ranked, asked.keep, asked.cover, only_ranked=asked.only_ranked)
    ids, coverage = (choice.ids, choice.coverage) if choice else (None, None)
    head = Head(ids, kind, asked.own_embeddings is not None, table, ranked, coverage)
    plans = tuple(build.plan_head(base, matrices, head) for base in bases)
    if not force:
        _refuse_pair(drafter_plan(bases[0].name, plans[0]), target)
    return plans, choice


def _refuse_pair(drafter: DrafterView, target: Target) -> None:
    views = [] if target.gguf is None else [target_gguf(open_gguf(target.gguf))]
    views += [] if target.directory is None else [target_directory(target, vocab=drafter.vocab)]
    for view in views:
        refused = refusal(check(drafter, view), str(drafter.path), str(view.path))
        if refused is not None:
            raise refused


def shrink_conversion(
    conversion: Conversion, asked: HeadOptions, target: Target, *, force: bool = False
) -> tuple[Conversion, Choice | None]:
    """A conversion that writes the head in the same pass."""
    bases = [Base(conversion.checkpoint.directory.name, plan) for plan in conversion.files]
    files, choice = shrink(bases, asked, target, force=force)
    before = {plan.name: plan for plan in conversion.description.tensors}
    new = [plan for plan, _ in files[0].tensors]
    tensors = tuple(plan if plan.name in NAMES else before[plan.name] for plan in new)
    found = replace(
        conversion,
        description=replace(conversion.description, tensors=tensors),
        files=files,
        notes=(*conversion.notes, *(choice.notes if choice else ())),
        suffix=build.suffix(asked.keep),
    )
    return found, choice


def _ranked(drafter: Base, asked: HeadOptions, target: Target) -> ranking.Ranking:
    size = read_vocabulary(drafter).size
    if asked.from_run:
        return ranking.from_run(asked.from_run, size)
    if asked.ranking:
        return ranking.from_file(asked.ranking, size)
    with tokenizer(drafter, target.directory) as tokenize:
        return ranking.from_text(asked.text, tokenize, size)


def choose(
    drafter: Base, ranked: ranking.Ranking, keep: int, cover: float | None, *, only_ranked: bool = False
) -> Choice:
    """The best ``keep`` tokens, ascending; ``only_ranked`` leaves out what would be kept whatever the ranking says.

    ValidationError when they cover less than ``cover`` of what was held out, with the number of rows that would do;
    UsageError where nothing was held out and rows are left that the ranking does not name.
    """
    vocabulary, own = read_vocabulary(drafter), current_map(drafter)
    most = vocabulary.size if own is None else own.size
    if keep > most:
        raise UsageError(f"--keep {keep}: there are {most} rows to choose from", tip="--full keeps the whole head")

    def rows(counts: ranking.Counts) -> tuple[ranking.Ids, int]:
        """Tokens that have a row now, best first, and how many of them are kept whatever ``counts`` says."""
        kept = np.array([], dtype=np.int64) if only_ranked else always_kept(vocabulary, counts.nonzero()[0].tolist())
        ranked = ranking.order(counts, kept)
        if own is None:
            return ranked, kept.size
        return ranked[np.isin(ranked, own)], int(np.isin(kept, own).sum())

    final, kept = rows(ranked.counts)
    if keep < kept:
        raise UsageError(
            f"--keep {keep} is less than the {kept} tokens that are always kept (control, end, template and byte "
            "tokens, single characters)",
            tip=f"keep at least {kept}, or say --only-ranked",
        )
    judged, _ = rows(ranked.sample)
    found = ranking.coverage(judged[:keep], ranked.held_out)
    _require(found, cover, judged, ranked, keep)
    filled = int((ranked.counts[final[kept:keep]] == 0).sum())
    notes = _filled(ranked, keep, filled, found)
    predicted = None if found is None else ranking.predicted_length(ranked.curve, found.share)
    return Choice(np.sort(final[:keep]), found, predicted, (*notes, *_said(keep, found, predicted)))


def _filled(ranked: ranking.Ranking, keep: int, filled: int, found: ranking.Coverage | None) -> list[Note]:
    """What to say of rows that the ranking does not name; UsageError where nothing tells whether they are missed."""
    if filled and found is None:
        fewer = f"--keep {keep - filled} keeps those that it names" if keep > filled else "it names none of the rows"
        raise UsageError(
            f"too few tokens in {ranked.source}: {filled} of --keep {keep} rows would be the first not ranked",
            tip=f"{fewer}; text or a run also shows what rows cover",
        )
    if found is None:
        return [Note("warning", "nothing was held out, so what these rows cover is not known")]
    text = f"the ranking names too few tokens: {filled} rows are filled up by token id"
    return [Note("warning", text)] if filled else []


def _said(keep: int, found: ranking.Coverage | None, predicted: float | None) -> Iterator[Note]:
    if found is None:
        return
    text = f"{keep} rows cover {percent(found.share, 2)} of {found.tokens} held-out tokens"
    yield Note("info", f"{text} ({_kinds(found)})")
    if predicted is not None:
        yield Note("info", f"predicted mean length: {predicted:.2f}")


def _kinds(found: ranking.Coverage) -> str:
    return ", ".join(f"{kind} {percent(share, 2)}" for kind, share in sorted(found.by_kind.items()))


def _require(
    found: ranking.Coverage | None, cover: float | None, judged: ranking.Ids, ranked: ranking.Ranking, keep: int
) -> None:
    if cover is None or found is None or found.share >= cover:
        return
    enough = ranking.rows_for(judged, ranked.held_out, cover)
    cure = f"--keep {enough} would do" if enough else "no number of rows would do: rank on more text of this kind"
    raise ValidationError(
        f"{keep} rows cover {percent(found.share, 2)} of {found.tokens} held-out tokens ({_kinds(found)}), less than "
        f"--cover {percent(cover, 2)}",
        tip=f"{cure}; a lower --cover accepts it",
    )


def check_type(name: str | None, option: str, hidden: int) -> str | None:
    """A type of HEAD_TYPES in capitals that holds rows of ``hidden`` values; None for ``copy``."""
    if name is None or name.lower() == "copy":
        return None
    upper = name.upper()
    if upper not in HEAD_TYPES:
        raise UsageError(f"{option} {name}: not one of copy, {', '.join(t.lower() for t in HEAD_TYPES)}")
    if hidden % BLOCK[TensorType[upper]][0]:
        raise UsageError(f"{option} {name}: rows of {hidden} values do not fill its blocks", tip="take q8_0 or bf16")
    return upper


@contextmanager
def tokenizer(drafter: Base, directory: Path | None) -> Iterator[ranking.Tokenize]:
    """Text to ids: by the target's own library from its directory, else by the engine with the drafter's vocabulary."""
    if directory is not None:
        yield library_of(directory, add_bos=False, bos=None).text
        return
    keys = [kv for kv in drafter.plan.keys if kv.name.startswith("tokenizer.ggml.")]
    with tempfile.TemporaryDirectory(prefix="dflash-vocab-") as folder:
        model = Path(folder) / "vocabulary.gguf"
        write_carrier(model, keys)
        launch = to_split(model)
        with start(find.choose(None, launch), launch) as session:

            def split(text: str) -> Sequence[int]:
                return session.tokenize(text, special=False)

            yield split
