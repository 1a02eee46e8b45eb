"""Drafters with heads of their own in the embedded llama.cpp: nothing changes where all rows are kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from make_checkpoints import CASES, write_case
from make_target import write_target

from dflash_convert import conversion as convert
from dflash_convert.container.reader import Gguf, open_gguf
from dflash_convert.engine import embedded, find, session
from dflash_convert.engine.trace import Launch, Request, Trace
from dflash_convert.head import ranking
from dflash_convert.head.base import Base
from dflash_convert.head.build import Head
from dflash_convert.shrink import choose
from dflash_convert.target import Target

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(embedded.installed() is None, reason="needs xllamacpp"),
]
N_MAX = 7


def traces(target: Path, drafter: Path, prompts: list[str | tuple[int, ...]], count: int, spec: str) -> list[Trace]:
    launch = Launch(target, drafter, spec_type=spec, n_max=N_MAX, ctx_size=512, threads=1, verbosity=4)
    with session.start(find.choose(None, launch), launch) as engine:
        return [engine.complete(Request(prompt, count, ignore_eos=True)) for prompt in prompts]


def counts(found: list[Trace]) -> list[tuple[int, int]]:
    return [(trace.drafted, trace.accepted) for trace in found]


def mean_length(found: list[Trace]) -> float:
    steps = sum(trace.known_steps for trace in found)
    return 1 + sum(trace.accepted for trace in found) / steps


@pytest.fixture(scope="module")
def prompts(fixtures: Path) -> list[str]:
    lines = (fixtures / "tiny-js" / "prompts.jsonl").read_text().splitlines()
    return [json.loads(line)["prompt"] for line in lines]


@pytest.fixture(scope="module")
def target(fixtures: Path) -> Path:
    return fixtures / "tiny-js" / "target-bf16.gguf"


@pytest.fixture(scope="module")
def borrowed(drafter: Gguf, target: Path, prompts: list[str]) -> list[Trace]:
    return traces(target, drafter.path, prompts, 96, "draft-dflash")


def test_all_rows_shuffled_draft_as_the_borrowed_head(
    drafter: Gguf, make: Callable[..., Gguf], target: Path, prompts: list[str], borrowed: list[Trace]
) -> None:
    ids = np.random.default_rng(7).permutation(512).astype(np.int64)
    found = traces(target, make(drafter, Head(ids)).path, prompts, 96, "draft-dflash")
    assert counts(found) == counts(borrowed)


def test_own_embeddings_and_head_borrow_nothing(
    drafter: Gguf, make: Callable[..., Gguf], target: Path, prompts: list[str], borrowed: list[Trace]
) -> None:
    made = make(drafter, Head(None, own_table=True))
    assert counts(traces(target, made.path, prompts, 96, "draft-dflash")) == counts(borrowed)


def test_fewer_rows_by_the_targets_own_output(
    drafter: Gguf,
    make: Callable[..., Gguf],
    target: Path,
    prompts: list[str],
    borrowed: list[Trace],
    fixtures: Path,
) -> None:
    """Ranked on the target's answers to other prompts: half the rows keep the length, random rows lose it."""
    lines = (fixtures / "tiny-js" / "ranking-prompts.jsonl").read_text().splitlines()
    others = [json.loads(line)["prompt"] for line in lines]
    assert not set(others) & set(prompts)
    answers = traces(target, drafter.path, others, 128, "draft-dflash")
    ranked = ranking.from_parts("answers", "", [("js", trace.tokens) for trace in answers], 512)
    length = {}
    for keep in (256, 64, 32):
        ids = choose(Base.of(drafter), ranked, keep, None, only_ranked=True).ids
        length[keep] = mean_length(traces(target, make(drafter, Head(ids)).path, prompts, 96, "draft-dflash"))
    random = np.sort(np.random.default_rng(1).permutation(512)[:256]).astype(np.int64)
    lost = mean_length(traces(target, make(drafter, Head(random)).path, prompts, 96, "draft-dflash"))
    full = mean_length(borrowed)
    assert length[256] > 0.93 * full
    assert length[256] > length[64] > length[32] > lost


@pytest.fixture(scope="module")
def family(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Gguf, Path]]:
    """family(case) -> its drafter's GGUF and a random target's."""
    vocabulary = fixtures / "tiny-js" / "target"
    root = tmp_path_factory.mktemp("family")
    random_target = write_target(vocabulary, root / "target.gguf", "qwen3")

    def run(name: str) -> tuple[Gguf, Path]:
        drafter, where = write_case(CASES[name](), root / name)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(vocabulary / file, where / file)
        conversion = convert.prepare(convert.Source(drafter), Target.read(where), convert.Options(("bf16",)))
        place = root / f"{name}.gguf"
        convert.write(conversion, [place], threads=1)
        return open_gguf(place), random_target

    return run


@pytest.mark.parametrize(
    ("name", "spec"),
    [("dspark_specforge", "draft-dspark"), ("dspark_deepspec", "draft-dspark"), ("dflash2", "draft-dflash")],
)
def test_other_families_with_every_row_draft_as_before(
    name: str, spec: str, family: Callable[[str], tuple[Gguf, Path]], make: Callable[..., Gguf]
) -> None:
    """DSpark's Markov rows follow the head's; DFlash2's selector reads the scattered logits."""
    drafter, target = family(name)
    prompt = [tuple(range(40, 60)), tuple(range(100, 130))]
    ids = np.random.default_rng(3).permutation(
        drafter.tensors["markov_w1.weight"].shape[0] if spec == "draft-dspark" else 512
    )
    made = make(drafter, Head(ids.astype(np.int64)), target)
    before, after = (traces(target, path, prompt, 24, spec) for path in (drafter.path, made.path))
    assert counts(before) == counts(after)
    assert sum(trace.drafted for trace in after) > 0
    assert [trace.tokens for trace in before] == [trace.tokens for trace in after]
    fewer = make(drafter, Head(np.sort(ids[:200]).astype(np.int64)), target)
    assert sum(trace.drafted for trace in traces(target, fewer.path, prompt, 24, spec)) > 0
