"""Rankings: where they come from, what is always kept, what they cover."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from dflash_convert.container.reader import Gguf
from dflash_convert.contest.trial import Done
from dflash_convert.engine.trace import Trace
from dflash_convert.errors import ConfigError, UsageError, ValidationError
from dflash_convert.head import ranking
from dflash_convert.head.base import Base
from dflash_convert.head.options import HeadOptions
from dflash_convert.head.ranking import Ranking
from dflash_convert.head.vocabulary import Vocabulary, always_kept, read_vocabulary
from dflash_convert.jsonfile import read_bounded
from dflash_convert.shrink import choose, tokenizer


def made(parts: list[tuple[str, list[int]]], size: int = 512) -> ranking.Ranking:
    return ranking.from_parts("test", "", parts, size)


def test_every_fourth_part_of_a_kind_judges() -> None:
    ranked = made([("a", [1]), ("b", [9]), ("a", [2]), ("a", [3]), ("a", [4, 4])])
    assert ranked.counts.nonzero()[0].tolist() == [1, 2, 3, 4, 9]
    assert ranked.sample.nonzero()[0].tolist() == [1, 2, 3, 9]
    assert {kind: counts.nonzero()[0].tolist() for kind, counts in ranked.held_out.items()} == {"a": [4]}


def test_order_is_by_count_then_id_after_what_is_always_kept() -> None:
    counts = np.array([0, 5, 7, 5, 0], dtype=np.int64)
    assert ranking.order(counts, np.array([4], dtype=np.int64)).tolist() == [4, 2, 1, 3, 0]


def test_coverage_and_the_rows_that_would_do() -> None:
    held = {"x": np.array([6, 2, 1, 1], dtype=np.int64)}
    ranked = np.array([0, 1, 2, 3])
    found = ranking.coverage(ranked[:2], held)
    assert found is not None
    assert found.share == 0.8
    assert ranking.rows_for(ranked, held, 0.8) == 2
    assert ranking.rows_for(ranked, held, 0.81) == 3
    assert ranking.rows_for(ranked[:2], held, 1.0) is None


def test_predicted_length_falls_with_every_position() -> None:
    assert ranking.predicted_length((0.5, 0.25), 1.0) == 1.75
    assert ranking.predicted_length((0.5, 0.25), 0.5) == 1 + 0.25 + 0.0625
    assert ranking.predicted_length((), 0.5) is None


def test_control_end_byte_and_single_characters_are_kept(drafter: Gguf) -> None:
    vocabulary = read_vocabulary(Base.of(drafter))
    kept = set(always_kept(vocabulary, []).tolist())
    assert vocabulary.ends <= kept
    controls = {i for i, kind in enumerate(vocabulary.types) if kind == 3}
    assert controls <= kept
    assert {i for i, name in enumerate(vocabulary.names) if len(name) == 1} <= kept


def test_too_little_coverage_is_refused_with_the_number_that_would_do(drafter: Gguf) -> None:
    parts = [("js", list(range(300, 400)))] * 3 + [("js", list(range(300, 500)))]
    with pytest.raises(ValidationError, match=r"cover 50\.\d+ % of 200 held-out tokens") as caught:
        choose(Base.of(drafter), made(parts), 110, 0.9, only_ranked=True)
    assert "would do" in str(caught.value.tip)


def test_fewer_rows_than_must_be_kept_are_refused(drafter: Gguf) -> None:
    with pytest.raises(UsageError, match="always kept"):
        choose(Base.of(drafter), made([("a", [1])]), 8, None)


def test_rows_that_nobody_ranked_need_a_held_out_part(drafter: Gguf, tmp_path: Path) -> None:
    """Else the head would be the first tokens by their numbers, which cover little, and nobody would know."""
    path = tmp_path / "ids.txt"
    path.write_text("500\n400\n300\n")
    ranked = ranking.from_file(path, 512)
    assert choose(Base.of(drafter), ranked, 3, None, only_ranked=True).ids.tolist() == [300, 400, 500]
    with pytest.raises(UsageError, match="7 of --keep 10 rows would be the first not ranked") as caught:
        choose(Base.of(drafter), ranked, 10, None, only_ranked=True)
    assert "--keep 3" in str(caught.value.tip)
    nothing = Ranking("the answers in run.json", "", np.zeros(512, np.int64), np.zeros(512, np.int64), {})
    with pytest.raises(UsageError, match=r"too few tokens in the answers in run\.json: 10 of") as caught:
        choose(Base.of(drafter), nothing, 10, None, only_ranked=True)
    assert "--keep" not in str(caught.value.tip)


def test_tokens_of_the_template_bytes_and_scripts_are_kept() -> None:
    names = ("<s>", "<|user|>", "<|tool|>", "<0x0A>", "<unused7>", "▁the", "a", "Ж", "é", "the", "\u4e2d")
    kinds = (3, 4, 4, 6, 3, 1, 1, 1, 1, 1, 1)
    texts = (*names[:5], " the", *names[6:])
    vocabulary = Vocabulary(names, texts, kinds, frozenset((9,)), "{{ '<|user|>' + content }}")
    kept = {names[i] for i in always_kept(vocabulary, [5])}
    assert kept == {"<s>", "<|user|>", "<|tool|>", "<0x0A>", "a", "é", "Ж", "\u4e2d", "the"}


def test_filling_up_is_said(drafter: Gguf) -> None:
    choice = choose(Base.of(drafter), made([("a", [1, 2, 3])] * 4), 10, None, only_ranked=True)
    assert any("filled up by token id" in note.text for note in choice.notes)
    assert choice.ids.tolist() == sorted(choice.ids.tolist())


def test_text_goes_through_the_targets_tokenizer(drafter: Gguf, fixtures: Path, tmp_path: Path) -> None:
    text = tmp_path / "code.js"
    text.write_text("﻿const items = [1, 2, 3];\n" * 400, encoding="utf-8")
    with tokenizer(Base.of(drafter), fixtures / "tiny-js" / "target") as tokenize:
        ranked = ranking.from_text([text], tokenize, 512)
    assert ranked.counts.sum() > 400
    assert list(ranked.held_out) == ["code"]


def test_a_ranking_file(tmp_path: Path) -> None:
    path = tmp_path / "ids.txt"
    path.write_text("7\n3\n9\n")
    assert ranking.order(ranking.from_file(path, 16).counts, np.array([], dtype=np.int64))[:3].tolist() == [7, 3, 9]
    for text, message in (("7 x\n", "line 1"), ("99\n", "beyond the drafter's vocabulary"), ("3\n3\n", "occurs twice")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            ranking.from_file(path, 16)
    for text, message in (("3 0\n3 1\n", "token 3 occurs twice"), ("3 7\n4\n", "no count"), ("3\n4 7\n", "a count")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=f"line 2: {message}"):
            ranking.from_file(path, 16)
    for text, message in (("", "holds no token"), ("3 0\n4 0\n", "every count is 0")):
        path.write_text(text)
        with pytest.raises(UsageError, match=message):
            ranking.from_file(path, 16)


def test_a_run_that_compare_kept(tmp_path: Path) -> None:
    traces = [
        Trace(9, (i, i, 300 + i), "", 14, 6, 8, 1.0, 2.0, 2, accepted_per_position=(2, 2, 1, 1, 0, 0, 0))
        for i in range(4)
    ]
    path = tmp_path / "kept.json"
    path.write_text(json.dumps(asdict(Done(tuple(traces), (), 0))))
    ranked = ranking.from_run(path, 512)
    assert ranked.counts.nonzero()[0].tolist() == [0, 1, 2, 3, 300, 301, 302, 303]
    assert (ranked.counts[0], ranked.counts[300]) == (2, 1)
    assert ranked.held_out["answers"].sum() == 3
    assert ranked.curve[:4] == (1.0, 1.0, 0.5, 0.5)
    path.write_text(json.dumps({"traces": [{"tokens": "x"}]}))
    with pytest.raises(ConfigError, match="is damaged"):
        ranking.from_run(path, 512)
    path.write_text(json.dumps({"kind": "comparison"}))
    with pytest.raises(ConfigError, match="no answers") as caught:
        ranking.from_run(path, 512)
    assert "--keep DIR" in str(caught.value.tip)


def test_a_run_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"kind": "something"}))
    with pytest.raises(ConfigError, match="not a validation result"):
        ranking.from_run(path, 512)
    for token in (600, 10**25):
        with pytest.raises(ConfigError, match=f"token {token} is beyond the drafter's vocabulary"):
            made([("a", [3, token])])
    with pytest.raises(ConfigError, match="token -7 is negative"):
        made([("a", [600, -7])])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 200_000, "nested too deeply"),
        ('{"traces": [{"tokens": [1], "drafted": 1' + "0" * 400 + "}]}", "is damaged"),
        ("{", "not valid JSON"),
        ("[]", "a JSON object was expected"),
    ],
)
def test_a_hostile_run(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        ranking.from_run(path, 512)


@pytest.mark.parametrize("accepted", [float("nan"), -1, 10**400, 3])
def test_a_curve_is_of_shares(accepted: float, tmp_path: Path) -> None:
    path, trace = tmp_path / "run.json", Trace(9, (1, 2), "", 14, 6, 8, 1.0, 2.0, 2, accepted_per_position=(2,) * 7)
    document = asdict(Done((trace,), (), 0))
    path.write_text(json.dumps(document, default=list))
    ranking.from_run(path, 512)
    document["traces"][0]["accepted_per_position"] = [accepted] * 7
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match="is damaged"):
        ranking.from_run(path, 512)


def test_only_regular_files_are_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, long = tmp_path / "pipe", tmp_path / "long.txt"
    os.mkfifo(pipe)
    readers = (ranking.from_run, ranking.from_file, lambda path, size: ranking.from_text([path], lambda text: [], size))
    for path, kind in ((Path("/dev/zero"), "a device"), (pipe, "a pipe")):
        for read in readers:
            with pytest.raises(ConfigError, match=f"{path}: {kind}, not "):
                read(path, 512)
    long.write_bytes(b"0" * 11)
    assert read_bounded(long, 11) == b"0" * 11
    with pytest.raises(ConfigError, match="larger than"):
        read_bounded(long, 10)
    stated, real = os.stat_result((stat.S_IFREG, 0, 0, 1, 0, 0, 0, 0, 0, 0)), os.fstat  # a size of 0, as in /proc
    monkeypatch.setattr(os, "fstat", lambda fd: stated if real(fd).st_size == 11 else real(fd))
    assert read_bounded(long, 11) == b"0" * 11
    with pytest.raises(ConfigError, match="larger than"):
        read_bounded(long, 10)


@pytest.mark.parametrize("cover", [float("nan"), -0.1, 1.1])
def test_a_share_is_a_number_from_0_to_1(cover: float) -> None:
    with pytest.raises(UsageError, match="not a share"):
        HeadOptions(cover=cover)
