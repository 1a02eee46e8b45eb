"""Figures from llama.cpp's log, in the forms it has been seen to write."""

from __future__ import annotations

import pytest

from dflash_convert.engine import logs

NEW = """
0.00.152.652 I slot print_timing: id  0 | task 0 |    graphs reused =         19
0.00.152.671 I slot print_timing: id  0 | task 0 | \
draft acceptance = 0.50000 (   73 accepted /   146 generated), mean len =  4.48
0.00.152.686 I slot print_timing: id  0 | task 0 |      acc per pos = (0.952, 0.714, 0.619, 0.429, 0.286, 0.238, 0.238)
0.00.152.726 I spec common_specu: \
statistics     draft-dflash: #calls(b,g,a) =    1     21     21, #gen drafts =     21, \
#acc drafts =    20, #gen tokens =    146, #acc tokens =    73, #mean acc len = 4.48, #acc rate/pos = (0.952, 0.714)
"""
OLD = "slot print_timing: id  0 | task 0 | draft acceptance rate = 0.57576 (   19 accepted /    33 generated)"
PUBLISHED = "draft acceptance = 0.10901 ( 1174 accepted / 10770 generated), mean len = 2.64"


def test_new_form() -> None:
    stats = logs.parse_request(NEW)
    assert (stats.drafted, stats.accepted, stats.mean_length, stats.total_accepts) == (146, 73, 4.48, 21)
    assert stats.position_rates[:2] == (0.952, 0.714)
    assert logs.steps_of(stats, 0, 73) == 21
    assert logs.position_counts(stats.position_rates, 21, 73) == (20, 15, 13, 9, 6, 5, 5)


def test_running_count_is_a_difference() -> None:
    assert logs.steps_of(logs.LoggedStats(total_accepts=109), 7, 297) == 102


def test_old_form_has_counts_only() -> None:
    stats = logs.parse_request(OLD)
    assert (stats.drafted, stats.accepted) == (33, 19)
    assert (stats.mean_length, stats.position_rates, stats.total_accepts) == (None, (), None)
    assert logs.steps_of(stats, 0, 19) is None


def test_published_line_with_no_running_count() -> None:
    stats = logs.parse_request(PUBLISHED)
    assert (stats.drafted, stats.accepted, stats.mean_length) == (10770, 1174, 2.64)
    # 714, 715, ... 717 steps all print as 2.64: not known exactly
    assert logs.steps_of(stats, None, 1174) is None


def test_nothing_drafted() -> None:
    assert logs.parse_request("slot print_timing: total time = 98.20 ms / 107 tokens") == logs.LoggedStats()


@pytest.mark.parametrize(
    ("rates", "steps", "accepted"),
    [((0.952, 0.714), 21, 36), ((0.95, 0.714), 21, 35), ((), 21, 35), ((0.952,), None, 20)],
)
def test_rates_that_do_not_add_up_give_no_counts(rates: tuple[float, ...], steps: int | None, accepted: int) -> None:
    assert logs.position_counts(rates, steps, accepted) is None


def test_build_line() -> None:
    log = "0.1 I cmn common_param: common_params_print_info: build 7 (abc) with GNU 12 for Linux\nother"
    assert logs.build_of(log) == "build 7 (abc) with GNU 12 for Linux"
    assert logs.build_of("build: 4242 (abc1234) with a compiler") == "4242 (abc1234) with a compiler"
    assert logs.build_of("nothing") == ""


def test_memory_is_all_buffers_and_the_largest_compute_buffer_of_each_context() -> None:
    """A context's compute buffer is reserved again when drafting begins; that is no second one."""
    log = """
load_tensors:   CPU_Mapped model buffer size =     3.07 MiB
llama_context: constructing llama_context
llama_kv_cache:        CPU KV buffer size =    12.00 MiB
sched_reserve:        CPU compute buffer size =     7.52 MiB
sched_reserve:      CUDA0 compute buffer size =     1.00 MiB
load_tensors:   CPU_Mapped model buffer size =     0.80 MiB
llama_context: constructing llama_context
llama_kv_cache:        CPU KV buffer size =     6.00 MiB
sched_reserve:        CPU compute buffer size =     7.01 MiB
sched_reserve:        CPU compute buffer size =     7.77 MiB
"""
    assert logs.memory_of(log) == pytest.approx(3.07 + 12 + 7.52 + 1 + 0.8 + 6 + 7.77)
    assert logs.memory_of("load_tensors: done") is None
