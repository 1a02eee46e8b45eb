"""Contests as a report shows them, played on a machine that exists as a cost model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from contest.machines import MACHINES, Machine, drafter

from dflash_convert.contest.budget import Need
from dflash_convert.contest.candidates import NOTHING, Candidate
from dflash_convert.contest.engines import LlamaCpp
from dflash_convert.contest.judge import rule
from dflash_convert.contest.prepare import Contest
from dflash_convert.contest.trial import Store, Work, run
from dflash_convert.contest.tune import tune
from dflash_convert.engine.trace import EngineInfo, Launch, Request
from dflash_convert.report.contest import Shown, render
from dflash_convert.text import MIB
from dflash_convert.validation.prompts import Item

EVIL = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>"
KINDS = ("code", "prose", "reasoning", "chat")
REQUESTS = tuple(Request(f"prompt {i}", 96) for i in range(16))
WORK = Work("one request at a time", tuple(f"p{i}" for i in range(16)), KINDS * 4, REQUESTS)
GIGABYTE = 10**9
RIGHT = {"dflash-Qwen3-8B-Q8_0": 0.82, "dflash-Qwen3-8B-Q4_0": 0.8, "eagle3-Qwen3-8B-F16": 0.6, "ngram-mod": 0.2}


def candidates(evil: bool = False) -> tuple[Candidate, ...]:
    q8, q4, eagle, ngram = RIGHT
    found = [
        drafter(q8, 7, GIGABYTE),
        drafter(q4, 7, GIGABYTE // 2),
        replace(drafter(eagle, 5, 800_000_000), methods=("draft-eagle3",), p_min=0.3),
        replace(drafter(ngram, 7, 0), methods=("ngram-mod",)),
    ]
    files = [replace(each, drafter=Path(f"{each.name}.gguf") if each.size else None) for each in found]
    named = replace(files[0], name=EVIL, n_max=3) if evil else replace(files[0], name="second", n_max=3)
    return (NOTHING, *files, named)


def made(found: tuple[Candidate, ...], evil: bool = False) -> Contest:
    needs = {each.name: Need(5000 * MIB + each.size) for each in found}
    info = EngineInfo("llama-server", None, "b11434", devices=("CUDA0: NVIDIA GeForce RTX 3060 (12288 MiB)",))
    items = tuple(Item(f"p{i}", kind, 96, prompt="x") for i, kind in enumerate(WORK.kinds))
    refused = {EVIL if evil else "dflash-other": "taps: the target has 28 layers, the drafter reads layer 33"}
    engines = LlamaCpp(info, Launch(Path("Qwen3-8B-Q4_K_M.gguf"), ctx_size=4096))
    return Contest(found, refused, items, False, engines, Store(None, ""), needs)


def comparison(machine: str = "RTX 3060", *, evil: bool = False) -> Shown:
    found = candidates(evil)
    engines = Machine(MACHINES[machine], 7, RIGHT | {EVIL: 0.8, "second": 0.8}, fade=0.95)
    book = run(engines, found, WORK, 3, Store(None, ""))
    kinds = [rule(kind, found, book, WORK, kind) for kind in KINDS]
    several = replace(WORK, label="4 requests at a time", parallel=4)
    busy = run(engines, found, several, 3, Store(None, ""))
    works = [rule(WORK.label, found, book, WORK), rule(several.label, found, busy, several)]
    return Shown(made(found, evil), works, kinds)


def tuning(machine: str = "RTX 3060") -> Shown:
    drafters = candidates()[1:3]
    found = tune(Machine(MACHINES[machine], 3, RIGHT, fade=0.9), drafters, WORK, Store(None, ""))
    return Shown(made((NOTHING, *drafters)), [found.ruling], found=found)


def page(shown: Shown) -> str:
    return render(shown, "llama-server -m Qwen3-8B-Q4_K_M.gguf --spec-type draft-dflash -fa on", "version = 1\n")
