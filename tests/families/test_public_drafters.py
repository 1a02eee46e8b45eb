"""Every public drafter whose config is known is planned without error, or refused for a stated reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from family_cases import Key
from public_drafters import ROWS, Row, write_headers

from dflash_convert import conversion as convert
from dflash_convert.container.writer import layout
from dflash_convert.errors import DflashError
from dflash_convert.plan import plan_to_json
from dflash_convert.target import Target


def checkpoint(row: Row, where: Path, vocabulary: Path) -> tuple[convert.Source, convert.Source]:
    drafter, target = where / "drafter", where / "target"
    drafter.mkdir()
    target.mkdir()
    (drafter / "config.json").write_text(json.dumps(row.config))
    (target / "config.json").write_text(json.dumps(row.target))
    write_headers(drafter / row.file, row.shapes)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(vocabulary / name, target / name)
    return convert.Source(drafter), Target.read(target)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_planned_or_refused_for_a_stated_reason(row: Row, fixtures: Path, tmp_path: Path, key: Key) -> None:
    source = checkpoint(row, tmp_path, fixtures / "tiny-js" / "target")
    options = convert.Options(outtypes=("bf16", "q8_0"))
    if row.outcome:
        with pytest.raises(DflashError, match=row.outcome):
            convert.prepare(*source, options)
        return
    conversion = convert.prepare(*source, options)
    description = conversion.description
    for plan in conversion.files:
        size = layout(plan.keys, plan.entries).size
        shown = plan_to_json(plan, size - plan.padded_bytes)
        assert shown["bytes"] == size
        assert len(shown["tensors"]) == len(description.tensors)
    for name, value in row.expect.items():
        assert (len(description.tensors) if name == "tensors" else key(description, name)) == value
    written = {s.name for plan in description.tensors for s in plan.sources}
    assert written | {name for name, _ in description.skipped} == set(row.shapes)


def test_the_table_holds_every_family() -> None:
    names = {name for row in ROWS for name in row.config["architectures"]}
    assert len(ROWS) >= 50
    assert {"DFlashDraftModel", "DFlash2DraftModel", "Qwen3DSparkModel", "Gemma4DSparkModel"} <= names
    assert {"LlamaForCausalLMEagle3", "Gemma4AssistantForCausalLM", "MuseGlimmerAssistantModel"} <= names
