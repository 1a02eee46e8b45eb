"""The differential run's small form: seeded variations, and what must hold of each without llama.cpp."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dflash_convert.container.reader import open_gguf
from dflash_convert.container.types import KV
from dflash_convert.container.writer import Entry, GgufOutput, layout
from differential.compare import differences
from differential.properties import broken
from differential.purpose import PURPOSE, Facts, purpose_of
from differential.variations import variation

ROOT = Path(__file__).resolve().parents[2]
CASES, SEED = 64, 20


@pytest.mark.parametrize("part", range(4))
def test_every_variation_keeps_the_properties(tmp_path: Path, count: Callable[[str, int], None], part: int) -> None:
    for number in range(part, CASES, 4):
        v = variation(SEED, number)
        wrong = broken(v, tmp_path / v.name, plain=number % 2 == 0, workers=number == part)
        assert not wrong, (v.name, v.changes, wrong)
    count("variations of drafters checked", CASES // 4)


def test_a_variation_is_the_same_everywhere() -> None:
    for number in range(12):
        a, b = variation(3, number), variation(3, number)
        assert (a.config, a.target, a.changes, list(a.tensors)) == (b.config, b.target, b.changes, list(b.tensors))
        assert a.changes, "a variation that changes nothing tests nothing"


def test_a_property_that_breaks_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dflash_convert.encode import rows

    v = next(v for v in (variation(1, number) for number in range(99)) if v.family == "dflash2")
    v.outtype = "bf16"
    monkeypatch.setattr(rows, "write", lambda *given: None)  # the weights stay zeros
    assert any("verify" in text for text in broken(v, tmp_path / "x", plain=True))


def rewritten(path: Path, to: Path, change: Callable[[KV], KV | None], spoil: str = "") -> Path:
    gguf = open_gguf(path)
    keys = [kv for kv in map(change, gguf.keys.values()) if kv is not None]
    entries = [Entry(info.name, info.shape, info.type) for info in gguf.tensors.values()]
    with GgufOutput(to, entries, layout(keys, entries)) as output:
        for entry in entries:
            data = gguf.data(entry.name).copy()
            if entry.name == spoil:
                data.reshape(-1).view("<f4")[0] *= np.float32(1.0000001)
            output.write_at(output.offset(entry.name), data.tobytes())
        output.commit()
    return to


def test_each_kind_of_difference_is_told(fixtures: Path, tmp_path: Path) -> None:
    base = fixtures / "tiny-js" / "target-bf16.gguf"
    assert differences(base, base) == []
    other = rewritten(base, tmp_path / "a.gguf", lambda kv: None if kv.name == "qwen3.block_count" else kv)
    assert differences(base, other) == ["key qwen3.block_count: UINT32 6 instead of nothing"]
    more = rewritten(base, tmp_path / "b.gguf", lambda kv: kv, "output_norm.weight")
    (found,) = differences(base, more)
    assert re.fullmatch(r"tensor output_norm.weight: other values, at most [19]e-0[78] apart", found)


def test_the_list_explains_only_its_own(tmp_path: Path) -> None:
    """Each entry has a reason, and no entry explains what nobody put on the list."""
    assert len({each.name for each in PURPOSE}) == len(PURPOSE)
    facts = Facts(variation(1, 0), None, None)
    for difference in (
        "key dflash.block_count: UINT32 2 instead of UINT32 3",
        "key tokenizer.ggml.merges: nothing instead of STRING ['a b']",
        "tensor fc.weight: other values",
        "order of tensors",
        "refused: config.json: something new",
    ):
        assert purpose_of(facts, difference) is None, difference


def test_the_page_is_made_from_the_list() -> None:
    call = [sys.executable, str(ROOT / "docs" / "make_differences.py"), "--check"]
    assert subprocess.run(call, check=False).returncode == 0, "run docs/make_differences.py"


CONVERTER = '''
"""Stands for convert_hf_to_gguf.py: copies what ours made, or fails as asked."""
import shutil, sys
from pathlib import Path

def main():
    drafter, out = Path(sys.argv[1]), Path(sys.argv[5])
    if "eagle3" in (drafter / "config.json").read_text():
        raise ValueError("not this one")
    out.write_bytes(Path(OURS).read_bytes())
'''


def test_the_run_tells_failures_from_what_is_listed(tmp_path: Path, fixtures: Path) -> None:
    """Against a converter that writes the same file for every drafter: all that converts is off the list."""
    tree = tmp_path / "llama.cpp"
    (tree / "conversion").mkdir(parents=True)
    (tree / "conversion" / "__init__.py").write_text("")
    (tree / "conversion" / "base.py").write_text("class TextModel:\n    def get_vocab_base_pre(self, t): return 'x'\n")
    ours = json.dumps(str(fixtures / "tiny-js" / "target-bf16.gguf"))
    (tree / "convert_hf_to_gguf.py").write_text(f"OURS = {ours}\n{CONVERTER}")
    call = [sys.executable, "-m", "differential", "--llama-cpp", str(tree), "--python", sys.executable, "--cases", "6"]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    assert "key general.architecture" in done.stdout
    assert re.search(r"[1-6] cases with a difference off the list", done.stdout)
    wrong = subprocess.run([*call[:4], str(tmp_path), *call[5:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "no convert_hf_to_gguf.py there" in wrong.stderr
