"""The winner as a command and as a preset."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from machines import drafter

from dflash_convert.contest import preset
from dflash_convert.contest.candidates import NOTHING
from dflash_convert.errors import UsageError

TARGET = Path("models/target.gguf")
CHOSEN = replace(drafter("a", 7), drafter=Path("a dir/a.gguf"), p_min=0.5)


def test_command_and_preset_say_the_same() -> None:
    told = preset.command(TARGET, CHOSEN)
    assert told.startswith("llama-server -m models/target.gguf --spec-type draft-dflash")
    assert "--spec-draft-model 'a dir/a.gguf'" in told
    rows = dict(line.split(" = ") for line in preset.text(TARGET, CHOSEN).splitlines() if " = " in line)
    assert rows == {"version": "1", "flash-attn": "on", "model": str(TARGET)} | dict(preset.options(CHOSEN))
    assert rows["spec-draft-p-min"] == "0.5"
    assert preset.options(NOTHING) == []


@pytest.mark.parametrize("name", ["a;b", "a#b", "a[1]", "a\\b", "a\nb"])
def test_names_that_a_preset_would_cut_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot stand in a preset"):
        preset.text(Path(f"{name}.gguf"), NOTHING)
    with pytest.raises(UsageError, match="cannot stand in a preset"):
        preset.text(TARGET, replace(CHOSEN, drafter=Path(name)))
