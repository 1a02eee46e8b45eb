"""One drafter on several targets: a sibling keeps the acceptance, a stranger of the same shape loses it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_target import write_target

from dflash_convert.cli import main
from dflash_convert.container.reader import open_gguf
from dflash_convert.container.types import TensorType
from dflash_convert.engine import embedded

ROOT = Path(__file__).resolve().parents[2]
PAIR = ROOT / "fixtures" / "tiny-js"
TARGET = PAIR / "target-bf16.gguf"


def changed(path: Path, change: Callable[[Any], None]) -> Path:
    """The target with ``change`` made to every bf16 matrix, as 16-bit words."""
    data = bytearray(TARGET.read_bytes())
    for info in open_gguf(TARGET).tensors.values():
        if info.type is TensorType.BF16:
            change(np.frombuffer(data, np.uint16, info.nbytes // 2, info.offset))
    path.write_bytes(data)
    return path


def rounded(words: Any) -> None:
    """To five bits of mantissa (bf16 has seven): another encoding of the same model."""
    words[:] = (words + 2) & np.uint16(0xFFFC)


def shuffled(words: Any) -> None:
    """A stranger of the same shape, vocabulary and name."""
    np.random.default_rng(1).shuffle(words)


@pytest.mark.engine
@pytest.mark.skipif(embedded.installed() is None, reason="needs xllamacpp")
def test_siblings_keep_the_acceptance_and_strangers_lose_it(
    drafter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sibling = changed(tmp_path / "sibling.gguf", rounded)
    stranger = changed(tmp_path / "stranger.gguf", shuffled)
    refused = write_target(PAIR / "target", tmp_path / "gemma.gguf", "gemma4")
    lines = (PAIR / "prompts.jsonl").read_text().splitlines()[:4]
    prompts = tmp_path / "four.jsonl"
    prompts.write_text("\n".join(lines) + "\n")
    options = ["--prompts", prompts, "--n-predict", 32, "--fresh", "-t", 1]
    call = ["compare", "--targets", TARGET, sibling, stranger, refused, drafter, *options]
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in (*call, "--json")])
    assert not end.value.code
    found = json.loads(capsys.readouterr().out)
    own, near, far, other = found["targets"]
    assert (found["kind"], own["kept"]) == ("siblings", 1.0)
    assert near["kept"] > 0.9
    assert far["kept"] < 0.3
    assert "does not fit gemma.gguf" in other["refused"]
    assert other["work"] is None
    assert ["keeps" in text for text in found["advice"]] == [True, False, False]


def test_one_row_a_target_within_80_columns(
    drafter: Path, tmp_path: Path, fake_server: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    long = tmp_path / f"{'a-target-with-a-long-name-' * 3}.gguf"
    long.write_bytes(TARGET.read_bytes())
    prompts = tmp_path / "one.jsonl"
    prompts.write_text('{"prompt": "one", "n_predict": 31}\n')
    call = ["compare", "--targets", TARGET, long, drafter, "--prompts", prompts, "--fresh"]
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in (*call, "--llama-server", fake_server("normal"))])
    out = capsys.readouterr().out
    assert not end.value.code
    table = out.split("\n\n")[0].splitlines()[1:]
    assert max(map(len, table)) <= 80
    assert len(table) == 3
    assert "100 %" in table[2]


def test_a_drafter_among_the_targets_is_told_before_anything_runs(played: Callable[..., Any], drafter: Path) -> None:
    ran = played("compare", "--targets", drafter)
    assert ran.code == 3
    assert "is a drafter" in ran.err
    assert "round" not in ran.err


def test_a_copied_target_is_told(played: Callable[..., Any], drafter: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    shutil.copy(TARGET, copy)
    ran = played("compare", "--targets", first=[TARGET, copy, drafter])
    assert ran.code == 0, ran.err
    assert f"WARNING: {copy} holds the same bytes as {TARGET}: one target" in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--html", "x.html"], "does not go with --html"), (["--thinking"], "does not go with --thinking")],
)
def test_what_does_not_go_together(played: Callable[..., Any], words: list[str], said: str) -> None:
    ran = played("compare", "--targets", TARGET, *words)
    assert ran.code == 2
    assert said in ran.err
