"""What is asked of a head of the drafter's own, as the command line says it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dflash_convert.errors import UsageError

COVER = 0.995


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    """``keep`` rows, None for all of them; one of ``from_run``, ``text`` and ``ranking`` says which are best, and
    ``only_ranked`` leaves out what is kept whatever that says.

    ``head_type`` and ``own_embeddings`` are names of types or ``copy``; None for no embeddings of its own. Rows that
    cover less than the share ``cover`` of what was held out are refused.
    """

    keep: int | None = None
    from_run: Path | None = None
    text: tuple[Path, ...] = ()
    ranking: Path | None = None
    only_ranked: bool = False
    head_type: str = "copy"
    own_embeddings: str | None = None
    cover: float = COVER

    def __post_init__(self) -> None:
        """UsageError for options that contradict one another."""
        if not 0 <= self.cover <= 1:
            raise UsageError(f"--cover {self.cover}: not a share from 0 to 1")
        sources = [name for name in ("from_run", "text", "ranking") if getattr(self, name)]
        if self.keep is None and (sources or self.only_ranked):
            raise UsageError("--full keeps every row, so a ranking has no effect")
        if self.keep is not None and len(sources) != 1:
            raise UsageError(
                "--keep needs a ranking: one of --from-run R.json, --text FILE and --ranking FILE",
                tip="the target's own answers rank best: dflash-convert validate … --save R.json",
            )
