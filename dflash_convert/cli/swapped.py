"""Drafter and target in each other's place: the answer is the line that was meant."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dflash_convert.cli.terminal import PROGRAM, running
from dflash_convert.errors import DflashError

IS_DRAFTER, IS_TARGET = "drafter", "target"


@contextmanager
def put_right(
    drafters: str | Sequence[str], target: str | Sequence[str], read: tuple[Path, Path] | None = None
) -> Iterator[None]:
    """An error inside, where a drafter and a target stand in each other's place, gets the right line as its tip.

    Words as they were typed; ``read``: what was read for the only two, where that is not the words themselves.
    """
    try:
        yield
    except DflashError as error:
        tip = _tip(_words(drafters), _words(target), read)
        if tip:
            error.tip = tip
        raise


def _words(given: str | Sequence[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _tip(drafters: list[str], targets: list[str], read: tuple[Path, Path] | None) -> str | None:
    places = {word: Path(word).expanduser() for word in (*drafters, *targets)}
    if read is not None:
        places |= {drafters[0]: read[0], targets[0]: read[1]}
    wrong = next((word for word in targets if side(places[word]) == IS_DRAFTER), None)
    other = next((word for word in drafters if side(places[word]) == IS_TARGET), None)
    if wrong is None or other is None:
        return None
    return f"drafter and target stand in each other's place: {shlex.join(_exchanged(running().argv, wrong, other))}"


def _exchanged(argv: Sequence[str], one: str, other: str) -> list[str]:
    """The line with the first ``one`` and the first ``other`` exchanged; a path counts however it is spelled."""
    words, left = [PROGRAM], {one: other, other: one}
    for word in argv:
        same = next((name for name in left if Path(name) == Path(word)), None)
        words.append(word if same is None else left.pop(same))
    return words


def side(path: Path) -> str | None:
    """Drafter or target, by the header of a GGUF or a config.json; None for anything else."""
    from dflash_convert.checkpoint import read_config
    from dflash_convert.container.reader import open_gguf
    from dflash_convert.families.detect import known, looks_like_target
    from dflash_convert.gguf_kind import DRAFTER, FORK, MODEL, kind_of
    from dflash_convert.hparams import classes

    try:
        if path.is_file():
            return {DRAFTER: IS_DRAFTER, FORK: IS_DRAFTER, MODEL: IS_TARGET}.get(kind_of(open_gguf(path)).group)
        config = read_config(path)
        if looks_like_target(config):
            return IS_TARGET
        return IS_DRAFTER if set(classes(config)) & set(known()) else None
    except (DflashError, OSError):
        return None
