"""What ``compare`` and ``tune`` share: the options of a contest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dflash_convert.errors import UsageError

if TYPE_CHECKING:
    from dflash_convert.contest.prepare import Options

FILE = click.Path(path_type=Path)
NAMES = ("prompts", "n_predict", "threads", "gpu_layers", "device", "draft_device", "llama_server", "keep", "fresh")


def contest_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--fresh", is_flag=True, help="Run everything anew and keep nothing."),
        click.option("--keep", type=FILE, metavar="DIR", help="Where finished runs are kept. [the user's cache]"),
        click.option("-t", "--threads", type=click.IntRange(1), metavar="N", help="CPU threads of the engine."),
        click.option("-ngl", "--n-gpu-layers", "gpu_layers", type=int, metavar="N", help="Target layers on the GPU."),
        click.option("--spec-draft-device", "draft_device", metavar="DEV", help="llama-server's drafter device."),
        click.option("--device", metavar="DEV", help="llama-server's --device."),
        click.option("--llama-server", metavar="PATH", help="Use this program [env: DFLASH_LLAMA_SERVER]."),
        click.option(
            "-c", "--ctx-size", type=click.IntRange(64), default=4096, show_default=True, metavar="N", help="Context."
        ),
        click.option("--n-predict", type=click.IntRange(1), metavar="N", help="Tokens per prompt."),
        click.option("--set", "sets", multiple=True, metavar="NAME", help="Bundled set of prompts; repeat."),
        click.option("--prompts", type=FILE, metavar="FILE.jsonl", help="Prompts, one JSON object a line."),
    ):
        command = option(command)
    return command


def contest(target: Path, candidates: tuple[str, ...], given: dict[str, Any]) -> Options:
    """The options of a contest from what was typed; ``--prompts`` and ``--set`` exclude each other."""
    from dflash_convert.contest.prepare import Options
    from dflash_convert.validation.prompts import SETS

    if given["prompts"] and given["sets"]:
        raise UsageError("--prompts and --set exclude each other")
    chosen = {name: given[name] for name in NAMES}
    return Options(
        target,
        candidates,
        sets=given["sets"] or SETS,
        context=given["ctx_size"],
        extra_args=given["engine_args"],
        **chosen,
    )


def split(words: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Candidates, and the arguments for llama-server behind ``--``."""
    at = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    return words[:at], words[at:]
