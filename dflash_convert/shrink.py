"""From a drafter, a target and a ranking to a drafter with a head of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dflash_convert.container.reader import Gguf
from dflash_convert.container.types import BLOCK, TensorType
from dflash_convert.engine import find
from dflash_convert.engine.session import start
from dflash_convert.engine.trace import Launch
from dflash_convert.errors import UsageError, ValidationError
from dflash_convert.head import build, ranking
from dflash_convert.head.vocabulary import always_kept, read_vocabulary
from dflash_convert.notes import Note
from dflash_convert.verification.vocabulary import library_of, write_carrier

HEAD_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS")


@dataclass(frozen=True)
class Choice:
    """The rows of a reduced head, what they cover, and what should be said about them."""

    ids: ranking.Ids
    coverage: ranking.Coverage | None
    predicted: float | None
    notes: tuple[Note, ...]


def choose(
    drafter: Gguf, ranked: ranking.Ranking, keep: int, cover: float | None, *, only_ranked: bool = False
) -> Choice:
    """The best ``keep`` tokens, ascending; ``only_ranked`` leaves out what would be kept whatever the ranking says.

    ValidationError when they cover less than ``cover`` of what was held out, with the number of rows that would do.
    """
    vocabulary = read_vocabulary(drafter)
    own = build.current_map(drafter)
    kept = always_kept(vocabulary, ranked.counts.nonzero()[0].tolist())
    if only_ranked:
        kept = kept[:0]
    if own is not None:
        kept = kept[_is_in(kept, own)]
    most = vocabulary.size if own is None else own.size
    if keep > most:
        raise UsageError(f"--keep {keep}: there are {most} rows to choose from", tip="--full keeps the whole head")
    if keep < kept.size:
        raise UsageError(
            f"--keep {keep} is less than the {kept.size} tokens that are always kept (control, end, template and byte "
            "tokens, single characters)",
            tip=f"keep at least {kept.size}, or say --only-ranked",
        )
    judged = ranking.order(ranked.sample, kept)
    final = ranking.order(ranked.counts, kept)
    if own is not None:
        judged, final = judged[_is_in(judged, own)], final[_is_in(final, own)]
    found = ranking.coverage(judged[:keep], ranked.held_out)
    _require(found, cover, judged, ranked, keep)
    ids = final[:keep].copy()
    ids.sort()
    notes = []
    unseen = int((ranked.counts[ids] == 0).sum()) - int((ranked.counts[kept] == 0).sum())
    if unseen > 0:
        notes.append(Note("warning", f"the ranking names too few tokens: {unseen} rows are filled up by token id"))
    if found is None:
        notes.append(Note("warning", "nothing was held out, so what these rows cover is not known"))
    share = None if found is None else ranking.predicted_length(ranked.curve, found.share)
    return Choice(ids, found, share, tuple(notes))


def _is_in(ids: ranking.Ids, own: ranking.Ids) -> ranking.Ids:
    return np.isin(ids, own)  # type: ignore[return-value]


def _require(
    found: ranking.Coverage | None, cover: float | None, judged: ranking.Ids, ranked: ranking.Ranking, keep: int
) -> None:
    if cover is None or found is None or found.share >= cover:
        return
    enough = ranking.rows_for(judged, ranked.held_out, cover)
    kinds = ", ".join(f"{kind} {100 * share:.1f} %" for kind, share in sorted(found.by_kind.items()))
    cure = f"--keep {enough} would do" if enough else "no number of rows would do: rank on more text of this kind"
    raise ValidationError(
        f"{keep} rows cover {100 * found.share:.2f} % of {found.tokens} held-out tokens ({kinds}), less than --cover "
        f"{cover:g}",
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
def tokenizer(drafter: Gguf, target: Path) -> Iterator[ranking.Tokenize]:
    """Text to ids: by the target's own library from a directory, else by the engine with the drafter's vocabulary."""
    if target.is_dir():
        yield library_of(target, add_bos=False, bos=None).text
        return
    keys = [kv for name, kv in drafter.keys.items() if name.startswith("tokenizer.ggml.")]
    with tempfile.TemporaryDirectory(prefix="dflash-vocab-") as folder:
        model = Path(folder) / "vocabulary.gguf"
        write_carrier(model, keys)
        launch = Launch(target=model, ctx_size=256, start_timeout=120.0, gpu_layers=0)
        with start(find.choose(None, launch), launch) as session:

            def split(text: str) -> Sequence[int]:
                return session.tokenize(text, special=False)

            yield split
