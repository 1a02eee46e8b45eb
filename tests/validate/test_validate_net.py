"""One drafter beside another: what is left of a cheaper step after a shorter draft, in all and on each kind."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from dflash_convert.engine.trace import Trace
from dflash_convert.validation.gain import Timed
from dflash_convert.validation.net import net

TOKENS, STEPS = 121, 40


def side(ms: Sequence[float], accepted: Sequence[int]) -> list[tuple[Trace, ...]]:
    """Three rounds of the prompts."""
    one = tuple(Trace(9, (), "", 280, n, TOKENS, 1.0, each, STEPS) for each, n in zip(ms, accepted, strict=True))
    return [one, one, one]


def timed(base: list[tuple[Trace, ...]], own: list[tuple[Trace, ...]]) -> Timed:
    names = tuple(f"p{i}" for i in range(len(base[0])))
    return Timed(names, base, own, ((0, 3, 4), (1, 2, 5)))


def test_gain_and_loss_by_kind() -> None:
    """Code keeps its length and is faster; prose loses a quarter of it and more than the step saves: so much depends
    on the prompts that nothing is claimed of all of them."""
    kinds = ["code"] * 4 + ["prose"] * 4
    theirs = side([1000] * 8, [120] * 4 + [80] * 4)
    own = side([700] * 4 + [1100] * 4, [120] * 4 + [50] * 4)
    found = net("b.gguf", "a.gguf", kinds, timed(theirs, own))
    assert (found.total.mean_length, found.total.beside_mean_length, found.total.gain) == (3.125, 3.5, "no gain")
    assert found.total.loss == pytest.approx(0.1071, abs=1e-4)
    prose, code = found.by_kind
    assert (prose.kind, prose.gain, prose.mean_length, prose.beside_mean_length) == ("prose", "slower", 2.25, 3.0)
    assert prose.loss == 0.25
    assert (code.kind, code.gain, code.speedup, code.loss) == ("code", "faster", 1.4286, 0.0)
    assert found.lines == [
        "net: b.gguf beside a.gguf: no difference beyond noise: mean length 3.50 -> 3.12 (-10.7 %), 1.11 x its speed "
        f"({found.total.low:.2f} to {found.total.high:.2f}); it loses most on prose",
        f"  prose: mean length 3.00 -> 2.25 (-25.0 %), 0.91 x its speed ({prose.low:.2f} to {prose.high:.2f})",
        f"  code: mean length 4.00 -> 4.00 (+0.0 %), 1.43 x its speed ({code.low:.2f} to {code.high:.2f})",
    ]


@pytest.mark.parametrize(
    ("ms", "rounds", "words"),
    [
        (1300.0, 3, "it costs more than it saves"),
        (1000.0, 3, "no difference beyond noise"),
        (700.0, 1, "the speed was not measured"),
    ],
)
def test_the_verdict(ms: float, rounds: int, words: str) -> None:
    both = timed(side([1000] * 4, [120] * 4), side([ms] * 4, [120] * 4))
    order = (both.order[0][:rounds], both.order[1][:rounds])
    found = net("b", "a", ["code"] * 4, Timed(both.names, both.base[:rounds], both.drafted[:rounds], order))
    assert found.sentence.startswith(f"b beside a: {words}: mean length 4.00 -> 4.00")
    assert found.by_kind == ()
    assert (found.total.speedup is None) is (rounds == 1)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "kinds.jsonl"
    path.write_text("".join(f'{{"prompt": "{i}", "n_predict": 31, "set": "{"ab"[i % 2]}"}}\n' for i in range(4)))
    return path


def test_validate_beside(
    fixtures: Path,
    drafters: dict[str, Path],
    cli: Callable[..., Any],
    fake_server: Callable[[str], Path],
    prompts: Path,
    tmp_path: Path,
) -> None:
    target, server = fixtures / "tiny-js" / "target-bf16.gguf", fake_server("normal")
    call = ("validate", drafters["bf16"], target, "--prompts", prompts, "--llama-server", server, "--quick")
    ran = cli(*call, "--rounds", 3, "--n-max", 4, "--beside", drafters["q8_0"], "--json", "--html", tmp_path / "r.html")
    found = ran.json["beside"]
    assert (found["drafter"], found["beside"]) == (drafters["bf16"].name, drafters["q8_0"].name)
    assert (found["total"]["gain"], found["total"]["speedup"], found["total"]["loss"]) == ("no gain", 1.0, 0.0)
    assert {part["kind"] for part in found["by_kind"]} == {"a", "b"}
    assert found["sentence"].split(" -> ")[0] in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert ran.json["sweep"] is None  # the other drafter is no n-max
    told = cli(*call, "--n-max", 4, "--beside", drafters["q8_0"]).out
    assert "the speed was not measured: mean length" in told
    copy = tmp_path / "copy.gguf"
    shutil.copy(drafters["bf16"], copy)
    assert f"{copy} holds the same bytes as {drafters['bf16']}: one drafter" in cli(*call, "--beside", copy).err
    itself = cli(*call, "--beside", drafters["bf16"])
    assert (itself.code, "is the drafter itself" in itself.err) == (2, True)
    missing = cli(*call, "--beside", tmp_path / "nowhere.gguf")
    assert (missing.code, "nowhere.gguf: no such file" in missing.err) == (3, True)
