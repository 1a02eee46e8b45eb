"""What llama.cpp is stands in one module, and its rules hold for every row."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from dflash_convert import llama
from dflash_convert.container.keys import Keys
from dflash_convert.drafter import Taps
from dflash_convert.errors import ContainerError
from quant.recipe import FTYPES

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [path for package in ("dflash_convert", "quant") for path in sorted((ROOT / package).rglob("*.py"))]


def constants(path: Path) -> set[str]:
    """Every string of a module that is not a docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documents = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents
    }


def test_each_drafters_architecture_and_method_is_named_in_one_module() -> None:
    words = {row.name for row in llama.DRAFTERS} | {v.spec_type for v in llama.variants()}
    words |= {variant.prefix for variant in llama.variants()}
    named = {path.name for path in SOURCES if words & constants(path)}
    assert named == {"llama.py"}


def test_no_module_builds_a_drafters_key_by_hand() -> None:
    """``dflash.block_size`` and the like come from the row; only forks' keys, nested under their own prefix, do not."""
    prefixes = tuple(f"{row.name}." for row in llama.DRAFTERS)
    found = {path.name for path in SOURCES if any(text.startswith(prefixes) for text in constants(path))}
    assert found == {"migrate.py"}


def test_the_builds_number_stands_once() -> None:
    number = llama.BUILD.removeprefix("b")
    found = [path.name for path in SOURCES for _ in re.findall(number, path.read_text(encoding="utf-8"))]
    assert found == ["llama.py"]


def test_every_row_has_a_method_for_every_file() -> None:
    for row in llama.DRAFTERS:
        assert not row.variants[-1].mark, f"{row.name}: the last method must fit any file"
        assert row.parts
        assert row.last_layer <= llama.TAPPABLE
        names = [variant.family for variant in row.variants]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("family", "anchor", "drafts"),
    [
        ("DFlash", None, 7),
        ("DFlash", True, 7),
        ("DFlash2", None, 7),
        ("DSpark", None, 8),
        ("DSpark", True, 8),
        ("DSpark", False, 7),
    ],
)
def test_the_most_drafts_of_a_block(family: str, anchor: bool | None, drafts: int) -> None:
    variant = next(variant for variant in llama.variants() if variant.family == family)
    assert variant.max_drafts(8, anchor) == drafts
    assert llama.DFLASH.max_drafts([variant.mark], 8, anchor) == drafts
    assert variant.max_drafts(1, False) == 0


def test_without_a_block_size_the_runtimes_defaults_count() -> None:
    assert llama.DFLASH.max_drafts([], None) == llama.DEFAULT_BLOCK - 1
    assert llama.EAGLE3.max_drafts([], None) is None
    assert llama.EAGLE3.n_max([], None) == llama.DEFAULT_N_MAX
    assert llama.DFLASH.n_max([], 1) == 1


@pytest.mark.parametrize(("block", "drafts"), [(1, 1), (2, 1), (7, 6), (8, 7), (9, 7), (16, 7), (None, 7)])
def test_nobody_drafts_a_whole_block_unmeasured(block: int | None, drafts: int) -> None:
    """A block of 16 costs more than it brings on most machines; ``tune`` says where it does not."""
    assert llama.DFLASH.n_max([], block) == drafts
    assert llama.DFLASH.n_max([llama.MARKOV_W1], block) == min(block or 16, 7)


def test_methods_are_told_by_tensors() -> None:
    cases = {
        ("dflash", ("fc.weight",)): "draft-dflash",
        ("dflash", ("selector_hidden.weight",)): "draft-dflash",
        ("dflash", ("markov_w1.weight", "selector_hidden.weight")): "draft-dspark",
        ("eagle3", ()): "draft-eagle3",
        ("gemma4-assistant", ("blk.0.attn_q.weight",)): "draft-mtp",
        ("qwen35", ("blk.40.nextn.eh_proj.weight",)): "draft-mtp",
    }
    for (architecture, names), spec_type in cases.items():
        found = llama.method(architecture, names)
        assert found is not None
        assert (found.spec_type, found.prefix) == (spec_type, spec_type.removeprefix("draft-") + "-")
    assert llama.method("qwen3", ("blk.0.attn_q.weight",)) is None
    assert llama.method("dflash-draft", ()) is None


def test_file_types_are_those_written_here_and_those_only_read() -> None:
    names = llama.file_types()
    assert {names[number] for number in FTYPES.values()} <= set(FTYPES)
    assert names[21] == "Q2_K_S"
    assert (names[15], names[38], names[31]) == ("Q4_K_M", "MXFP4_MOE", "IQ1_M")
    assert len(set(names.values())) == len(names)
    assert llama.file_type_name(4) is None
    assert llama.file_type_name(None) is None


def test_the_last_layer_is_each_methods_own() -> None:
    """DFlash reads t_layer_inp behind the last layer, EAGLE-3 the hidden state before the final norm."""
    assert "gpt-oss" in llama.EAGLE3.last_layer
    assert "gpt-oss" not in llama.DFLASH.last_layer
    assert "nemotron_h" in llama.DFLASH.last_layer
    assert "nemotron_h" not in llama.EAGLE3.last_layer
    assert "mimo2" in llama.DFLASH.last_layer & llama.EAGLE3.last_layer


class TestTaps:
    def test_both_countings(self) -> None:
        taps = Taps.from_outputs([1, 3, 4])
        assert taps == Taps.from_inputs((2, 4, 5))
        assert (taps.outputs, taps.inputs, len(taps)) == ((1, 3, 4), (2, 4, 5), 3)
        assert str(taps) == "outputs of target layers 1, 3, 4"
        assert str(Taps.from_inputs([0, 1])) == "the embeddings and output of target layer 0"
        assert str(Taps.from_outputs([7])) == "output of target layer 7"
        assert not Taps()

    def test_bare_numbers_make_none(self) -> None:
        with pytest.raises(TypeError):
            Taps((1, 3, 4))  # type: ignore[misc]

    def test_distinct_and_ascending(self) -> None:
        assert not Taps.from_outputs([1, 1]).distinct
        assert not Taps.from_inputs([-1, 2]).distinct
        assert Taps.from_inputs([0, 2]).distinct
        assert not Taps.from_outputs([3, 1]).ascending


class TestKeys:
    KEYS = Keys(
        "x.gguf",
        {"a.n": 3, "a.list": [2, 5], "a.flag": True, "a.text": "t", "a.real": 1.5, "a.negative": -1, "a.bad": [1, "2"]},
        "a.",
    )

    def test_values_of_the_right_kind(self) -> None:
        keys = self.KEYS
        assert (keys.integer("n"), keys.number("n"), keys.number("real")) == (3, 3.0, 1.5)
        assert (keys.boolean("flag"), keys.text("text"), keys.integers("list")) == (True, "t", [2, 5])
        assert (keys.first("n"), keys.first("list"), keys.first("none")) == (3, 5, None)
        assert (keys.per_layer("n", 2), keys.per_layer("list", 2), keys.per_layer("none", 2)) == ([3, 3], [2, 5], None)
        assert [getattr(keys, kind)("none") for kind in ("integer", "number", "boolean", "text", "items")] == [None] * 5
        assert "n" in keys
        assert "none" not in keys

    @pytest.mark.parametrize(
        ("kind", "name", "words"),
        [
            ("integer", "flag", "key a.flag is True, expected a whole number"),
            ("integer", "text", "key a.text is 't', expected a whole number"),
            ("integer", "real", "key a.real is 1.5, expected a whole number"),
            ("number", "flag", "expected a number"),
            ("boolean", "n", "key a.n is 3, expected true or false"),
            ("text", "n", "expected a string"),
            ("integers", "bad", "expected a list of whole numbers"),
            ("integers", "text", "expected a list of whole numbers"),
            ("integers", "n", "expected a list of whole numbers"),
            ("items", "text", "expected an array"),
        ],
    )
    def test_others_are_named(self, kind: str, name: str, words: str) -> None:
        with pytest.raises(ContainerError, match=re.escape(words)):
            getattr(self.KEYS, kind)(name)

    def test_bounds_and_absence(self) -> None:
        keys = self.KEYS
        with pytest.raises(ContainerError, match="at least 4"):
            keys.integer("n", low=4)
        with pytest.raises(ContainerError, match="at most 2"):
            keys.integer("n", high=2)
        with pytest.raises(ContainerError, match="is -1, expected a whole number of at least 0"):
            keys.per_layer("negative", 2)
        with pytest.raises(ContainerError, match=r"x\.gguf: key a\.list is \[2, 5\], expected 3 values"):
            keys.per_layer("list", 3)
        with pytest.raises(ContainerError, match=r"key a\.none is missing, expected the depth"):
            keys.need("none", keys.integer("none"), "the depth")
