"""What ``compare`` and ``tune`` share: the options of a contest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dflash_convert.cli.common import Given, sets_option
from dflash_convert.cli.swapped import put_right
from dflash_convert.errors import UsageError
from dflash_convert.text import counted, named

if TYPE_CHECKING:
    from dflash_convert.contest.candidates import Candidate
    from dflash_convert.contest.prepare import Contest, Options

FILE = click.Path(path_type=Path)


@dataclass(frozen=True, kw_only=True)
class ContestGiven(Given):
    """``words``: the candidates, then the arguments for llama-server behind ``--``."""

    target: Path
    words: tuple[str, ...]
    prompts: Path | None
    sets: tuple[str, ...]
    n_predict: int | None
    ctx_size: int
    llama_server: str | None
    device: str | None
    draft_device: str | None
    gpu_layers: int | None
    threads: int | None
    keep: Path | None
    fresh: bool
    budget: str | None
    rounds: int
    preset: Path | None
    html: Path | None
    force: bool

    @property
    def candidates(self) -> tuple[str, ...]:
        return self.words[: self._arguments]

    @property
    def engine_args(self) -> tuple[str, ...]:
        return self.words[self._arguments :]

    @property
    def _arguments(self) -> int:
        return next((i for i, word in enumerate(self.words) if word.startswith("-")), len(self.words))

    @property
    def users(self) -> int:
        """The most requests at a time, for which memory is planned."""
        return 1

    @property
    def kept(self) -> str:
        """What an interrupt leaves."""
        return "nothing was kept" if self.fresh else "finished runs are kept"

    def options(self) -> Options:
        """``--prompts`` and ``--set`` exclude each other."""
        from dflash_convert.contest.prepare import Options
        from dflash_convert.memory.fit import parse_size
        from dflash_convert.validation.prompts import SETS

        if self.prompts and self.sets:
            raise UsageError("--prompts and --set exclude each other")
        return Options(
            self.target,
            self.candidates,
            prompts=self.prompts,
            sets=self.sets or SETS,
            n_predict=self.n_predict,
            context=self.ctx_size,
            threads=self.threads,
            gpu_layers=self.gpu_layers,
            device=self.device,
            draft_device=self.draft_device,
            llama_server=self.llama_server,
            extra_args=self.engine_args,
            keep=self.keep,
            fresh=self.fresh,
            budget=None if self.budget is None else parse_size(self.budget, "--budget"),
            parallel=self.users,
        )

    def prepared(self, example: str) -> Contest:
        """What takes part; what does not is told with the reason. ``example``: a whole call."""
        from dflash_convert.contest import preset
        from dflash_convert.contest.prepare import prepare

        if not self.candidates:
            command = example.split()[1]
            raise UsageError(f"{command} needs a {'drafter' if command == 'tune' else 'candidate'}", tip=example)
        self.check_outputs(preset=self.preset, html=self.html)
        self.say(f"{example.split()[1]}: {counted(len(self.candidates), 'candidate')} on {self.target.name}")
        with put_right(self.candidates, str(self.target)):
            made = prepare(self.options(), self.detail)
        self.check_outputs(preset=self.preset, html=self.html, inputs=made.candidates)
        for name, reason in made.refused.items():
            self.say(f"not run: {name}: {reason}")
        self.show_notes(made.notes)
        prompts = f"{counted(len(made.items), 'prompt')} ({named([item.name for item in made.items])})"
        self.say(f"will run {prompts}, {counted(self.rounds, 'round')}")
        for each in made.candidates if self.preset or self.html else ():
            preset.text(self.target, each)  # a name that no preset can hold is told before hours of runs
        return made

    def write_preset(self, winner: Candidate) -> None:
        """``--preset``, when it was given."""
        from dflash_convert.contest import preset
        from dflash_convert.output import write_text

        if self.preset:
            write_text(self.preset, preset.text(self.target, winner), force=self.force)

    def write_html(self, winner: Candidate, page: Callable[[str, str], str]) -> None:
        """``--html``, when it was given; ``page`` makes it of the winner's command and preset."""
        from dflash_convert.contest import preset
        from dflash_convert.output import write_text

        if self.html:
            made = page(preset.command(self.target, winner), preset.text(self.target, winner))
            write_text(self.html, made, force=self.force)


def contest_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--force", is_flag=True, help="Replace an existing preset or report."),
        click.option("--html", type=FILE, metavar="OUT", help="Write a report as one HTML file."),
        click.option("--preset", type=FILE, metavar="FILE", help="Write the winner's settings as a preset.ini."),
        click.option("--budget", metavar="12GiB", help="Leave out what needs more memory by plan."),
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
        sets_option,
        click.option("--prompts", type=FILE, metavar="FILE.jsonl", help="Prompts, one JSON object a line."),
    ):
        command = option(command)
    return command
