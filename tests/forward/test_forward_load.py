"""Loading: a checkpoint and its GGUF are one model; what cannot be run is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dflash_convert.container.types import KV, u32
from dflash_convert.drafter import Description
from dflash_convert.errors import ContainerError, FamilyError, PairingError, UsageError
from dflash_convert.forward.hyper import drafter_hyper, target_hyper
from dflash_convert.forward.load import (
    DrafterSource,
    Weights,
    drafter_from_checkpoint,
    drafter_from_gguf,
    target_from_checkpoint,
    target_from_gguf,
)
from dflash_convert.forward.target import Target
from dflash_convert.target import Target as TargetSource

KEYS: dict[str, Any] = {
    "general.architecture": "dflash",
    "dflash.block_count": 2,
    "dflash.embedding_length": 64,
    "dflash.attention.head_count": 4,
    "dflash.attention.head_count_kv": 2,
    "dflash.attention.layer_norm_rms_epsilon": 1e-6,
    "dflash.target_layers": [2, 3],
}


def test_checkpoint_and_gguf_are_one_model(
    tiny: Path, source: DrafterSource, description: Description, write_pair: Callable[..., tuple[Path, Path]]
) -> None:
    _, path = write_pair([*description.keys, *description.late_keys], source.weights)
    written = drafter_from_gguf(path)
    read = drafter_from_checkpoint(tiny / "drafter", TargetSource.read(tiny / "target"))
    assert written.hyper == read.hyper == source.hyper
    assert set(written.weights) == set(read.weights)
    assert all((written.weights[n] == read.weights[n]).all() for n in read.weights)
    assert all(read.weights[n].dtype == np.float32 for n in read.weights)


def test_runtime_defaults_apply_where_keys_are_absent() -> None:
    hyper = drafter_hyper(KEYS)
    assert (hyper.head_dim, hyper.block_size, hyper.mask_token, hyper.causal) == (16, 16, -1, False)
    assert (hyper.rope.base, hyper.rope.dims, hyper.rope.kind) == (10000.0, 16, "none")
    assert hyper.sample_from_anchor


def test_yarn_without_an_original_context_takes_the_trained_one() -> None:
    yarn = {"dflash.rope.scaling.type": "yarn", "dflash.rope.scaling.factor": 2.0, "dflash.context_length": 4096}
    assert drafter_hyper({**KEYS, **yarn}).rope.original_context == 4096


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"general.architecture": "eagle3"}, FamilyError, "dflash drafters, not 'eagle3'"),
        ({"dflash.hyper_connection.count": 4}, FamilyError, "DeepSeek-V4 stages"),
        ({"dflash.hidden_activation": "relu"}, FamilyError, "activation 'relu'"),
        ({"dflash.rope.scaling.type": "longrope"}, FamilyError, "longrope"),
        ({"dflash.block_count": None}, ContainerError, r"dflash\.block_count is missing"),
        ({"dflash.block_count": "2"}, ContainerError, r"dflash\.block_count is '2'"),
        ({"dflash.block_count": 0}, ContainerError, "at least 1"),
        ({"dflash.target_layers": []}, ContainerError, r"target_layers is \[\], expected the tapped layers"),
        ({"dflash.attention.head_count_kv": 3}, ContainerError, "divisor of the 4 heads"),
        ({"dflash.attention.causal": 1}, ContainerError, "true or false"),
        ({"dflash.attention.sliding_window": 8}, ContainerError, "2 flags beside a sliding window"),
        ({"dflash.attention.value_length": 8}, ContainerError, "the key length 16"),
        ({"dflash.rope.dimension_count": 18}, ContainerError, "even number up to the head size 16"),
    ],
)
def test_unusable_keys_are_named(change: dict[str, Any], kind: type[Exception], words: str) -> None:
    keys = {name: value for name, value in {**KEYS, **change}.items() if value is not None}
    with pytest.raises(kind, match=words):
        drafter_hyper(keys, "x.gguf")


def test_other_targets_are_refused(tiny: Path) -> None:
    with pytest.raises(FamilyError, match="qwen3 targets, not 'gemma4'") as caught:
        target_hyper({"general.architecture": "gemma4"})
    assert caught.value.tip is not None
    with pytest.raises(FamilyError, match="Qwen3ForCausalLM targets only"):
        target_from_checkpoint(tiny / "drafter")


def test_a_drafter_is_no_target(
    source: DrafterSource, description: Description, write_pair: Callable[..., tuple[Path, Path]]
) -> None:
    first, second = write_pair([*description.keys, *description.late_keys], source.weights)
    with pytest.raises(FamilyError, match="not 'dflash'"):
        target_from_gguf(second)
    with pytest.raises(FamilyError, match="not 'qwen3'"):
        drafter_from_gguf(first)


def changed(source: DrafterSource, **arrays: Any) -> Weights:
    """The source's weights with some replaced, or dropped where None; ``__`` stands for a dot."""
    replaced = {name.replace("__", "."): array for name, array in arrays.items()}
    kept = {name: source.weights[name] for name in source.weights} | replaced
    return Weights({name: lambda a=a: a for name, a in kept.items() if a is not None})  # type: ignore[misc]


def test_missing_tensors_are_named(target: Target, source: DrafterSource) -> None:
    lacking = DrafterSource(changed(source, blk__1__ffn_up__weight=None), source.hyper)
    drafter = lacking.drafter(target)
    with pytest.raises(ContainerError, match=r"lacks tensor blk\.1\.ffn_up\.weight"):
        drafter.draft(drafter.new_cache(), 1, 7)


def test_fc_must_fit_the_taps(target: Target, source: DrafterSource) -> None:
    wrong = DrafterSource(changed(source, fc__weight=np.zeros((128, 256), np.float32)), source.hyper)
    with pytest.raises(ContainerError, match=r"fc\.weight is \[128, 256\], 3 taps need \[128, 384\]"):
        wrong.drafter(target)


def test_another_hidden_size_is_a_wrong_pair(source: DrafterSource) -> None:
    wide = changed(source, token_embd__weight=np.zeros((512, 64), np.float32))
    with pytest.raises(PairingError, match="rows of 64, the drafter's hidden size is 128"):
        DrafterSource(wide, source.hyper).drafter()


def test_a_mask_outside_the_embeddings_is_refused(
    description: Description, source: DrafterSource, target: Target
) -> None:
    keys = {kv.name: kv.value for kv in (*description.keys, *description.late_keys)}
    keys |= {"general.architecture": "dflash", "tokenizer.ggml.mask_token_id": 512}
    drafter = DrafterSource(source.weights, drafter_hyper(keys)).drafter(target)
    with pytest.raises(PairingError, match="mask token 512 lies outside the 512"):
        drafter.draft(drafter.new_cache(), 1, 7)


def test_a_selector_without_its_keys_is_refused(target: Target, source: DrafterSource) -> None:
    weights = changed(source, selector_hidden__weight=np.zeros((16, 128), np.float32))
    with pytest.raises(ContainerError, match="selector_top_k"):
        DrafterSource(weights, source.hyper).drafter(target)


def test_decoded_weights_stay_within_the_budget() -> None:
    reads: list[str] = []

    def reader(name: str) -> Callable[[], Any]:
        def read() -> Any:
            reads.append(name)
            return np.zeros(10, np.float32)

        return read

    weights = Weights({name: reader(name) for name in "abc"}, budget=80)
    for name in "ababca":
        assert weights[name].nbytes == 40
    assert reads == ["a", "b", "c", "a"]  # c pushes a out, which then has to be read again
    assert ("a" in weights, "d" in weights, len(weights), list(weights)) == (True, False, 3, ["a", "b", "c"])
    with pytest.raises(KeyError):
        weights["d"]


def test_the_source_needs_tables_to_draft(source: DrafterSource) -> None:
    drafter = source.drafter()
    with pytest.raises(UsageError, match="no embeddings or head"):
        drafter.block(drafter.new_cache(), 1, 4)


def test_integer_tensors_stay_integers(
    source: DrafterSource, description: Description, write_pair: Callable[..., tuple[Path, Path]]
) -> None:
    ids = np.array([3, 70_000_000_001], np.int64)
    extra: list[KV] = [u32("dflash.unused", 1)]
    _, path = write_pair([*description.keys, *description.late_keys, *extra], {"d2t": ids, **source.weights})
    assert (drafter_from_gguf(path).weights["d2t"] == ids).all()
