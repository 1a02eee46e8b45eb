"""Reasons found in logs; the lines are as llama.cpp b11434 writes them."""

from __future__ import annotations

import signal

import pytest

from dflash_convert.engine import failures

LINES = [
    (
        "0.021 E llama_model_load: error loading model: unknown model architecture: 'dflasx'",
        failures.LOAD,
        "architecture dflasx",
    ),
    (
        "E llama_model_load: error loading model: done_getting_tensors: wrong number of tensors; expected 36, got 35",
        failures.LOAD,
        "36 tensors and llama.cpp claims 35",
    ),
    ("check_tensor_dims: tensor 'blk.0.attn_k.weight' not found", failures.LOAD, "blk.0.attn_k.weight is missing"),
    ("tensor 'blk.2.attn_v.weight' data is not within the file bounds, model is corrupted", failures.LOAD, "cut off"),
    ("gguf_init_from_reader: invalid magic characters: 'junk', expected 'GGUF'", failures.LOAD, "not a GGUF"),
    ("error: invalid argument: --nonsense", failures.OPTION, "option --nonsense"),
    (
        'error while handling argument "--spec-type": unknown speculative type: draft-foo',
        failures.OPTION,
        "method draft-foo",
    ),
    ("E allocating 4096.00 MiB on device 0: cudaMalloc failed: out of memory", failures.OUT_OF_MEMORY, "out of memory"),
    ("failed to allocate buffer for kv cache", failures.OUT_OF_MEMORY, "out of memory"),
    ("terminate called: std::bad_alloc", failures.OUT_OF_MEMORY, "out of memory"),
    (
        'speculative.cpp:1033: GGML_ASSERT(n > 0 && "DFlash model has no target_layer_ids") failed',
        failures.CRASH,
        "not a",
    ),
    ("ggml-backend.cpp:10: GGML_ASSERT(buffer != nullptr) failed", failures.CRASH, "buffer != nullptr"),
    (
        'llama-context.cpp:1: GGML_ASSERT(t_layer_inp[il] != nullptr && "layer input tensor is null") failed',
        failures.CRASH,
        "layer that the drafter taps",
    ),
    (
        "ggml-backend.cpp:1081: pre-allocated tensor (output.weight) in a buffer (CUDA0) that cannot run the operation",
        failures.CRASH,
        "needs output.weight on the device of the drafter, and it lies on CUDA0",
    ),
    ('x.cpp:1: GGML_ASSERT(n > 0 && "no rows") failed', failures.CRASH, 'assertion n > 0 && "no rows" (here)'),
    ("ggml.c:1: GGML_ASSERT(ggml_can_mul_mat(a, b)) failed", failures.CRASH, "sizes of drafter and target do not fit"),
    ("x.cpp:1: GGML_ASSERT(a == b) failed", failures.CRASH, "a == b"),
]


@pytest.mark.parametrize(("line", "kind", "words"), LINES)
def test_reason(line: str, kind: str, words: str) -> None:
    failure = failures.died(f"loading\n{line}\nE llama_model_load_from_file_impl: failed to load model\n", 1, "here")
    assert failure.kind == kind
    assert words in str(failure)
    assert failure.exit_code == 7
    assert line in failure.log


def test_signals_are_told_apart() -> None:
    crash = failures.died("all well\n", -signal.SIGSEGV, "during request 2")
    assert (crash.kind, "SIGSEGV" in str(crash), "request 2" in str(crash)) == (failures.CRASH, True, True)
    killed = failures.died("all well\n", -signal.SIGKILL, "while loading")
    assert killed.kind == failures.OUT_OF_MEMORY


def test_unknown_end_quotes_the_last_error() -> None:
    failure = failures.died("0.1 I fine\n0.2 E something new\n0.3 I cleaning up\n", 3, "while loading")
    assert failure.kind == failures.EXIT
    assert "status 3" in str(failure)
    assert "something new" in str(failure)


def test_the_memory_probe_is_no_reason() -> None:
    log = "failed to allocate compute pp buffers (this warning is normal during memory fitting)"
    assert not failures.out_of_memory(log)
    assert failures.out_of_memory("failed to allocate compute pp buffers")


def test_pinned_memory_is_no_reason() -> None:
    assert failures.find_cause("failed to allocate 12.00 MiB of pinned memory: ok") is None
