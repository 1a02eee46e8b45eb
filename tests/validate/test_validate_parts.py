"""The parts of a validation that need no engine."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from dflash_convert.container import shards
from dflash_convert.container.types import KV, TensorType, boolean, string, u32
from dflash_convert.container.writer import Entry, GgufOutput, layout
from dflash_convert.engine.trace import EngineInfo, Trace, sum_positions
from dflash_convert.errors import (
    ConfigError,
    ContainerError,
    DflashError,
    FamilyError,
    InputError,
    OutputError,
    UsageError,
)
from dflash_convert.validation import options, pair, prompts, reference, table
from dflash_convert.validation.compare import divergence
from dflash_convert.validation.result import (
    Divergence,
    Figures,
    FileFacts,
    PromptResult,
    ReferenceComparison,
    RunResult,
    Settings,
    Thresholds,
    ValidationResult,
    figures,
    from_json,
)
from dflash_convert.validation.verdict import judge, warnings


def trace(drafted: int, accepted: int, steps: int, tokens: tuple[int, ...] = (1, 2, 3), text: str = "abc") -> Trace:
    return Trace(5, tokens, text, drafted, accepted, accepted + steps + 1, 10.0, 500.0, steps, None)


def row(name: str, found: Divergence | None = None, numbers: Figures | None = None) -> PromptResult:
    return PromptResult(name, "set", "p", 8, None, "p", (1,), "t", "t", found, numbers or figures([trace(8, 4, 2)]))


class TestVerdict:
    @pytest.mark.parametrize(
        ("drafted", "accepted", "steps", "verdict", "code"),
        [
            (1807, 869, 264, "healthy", 0),
            (7844, 2, 1961, "broken", 6),  # the published pair with another variant of its target
            (7602, 6, 1134, "broken", 6),
            (10770, 1174, 716, "healthy", 0),  # 10.9 % of 15 drafts a step: mean length 2.64
            (100, 20, 50, "weak", 0),  # 20 %, mean length 1.4
            (100, 12, 100, "weak", 0),  # n-max 1: 12 % is above the floor of acceptance
            (0, 0, 0, "broken", 6),
        ],
    )
    def test_floors(self, drafted: int, accepted: int, steps: int, verdict: str, code: int) -> None:
        total = figures([trace(drafted, accepted, steps)])
        judged = judge(total, [row("a")], Thresholds())
        assert (judged.verdict, judged.exit_code) == (verdict, code)

    def test_text_that_differs(self) -> None:
        total = figures([trace(1807, 869, 264)])
        real = Divergence(3, 9, "let", "var", gap=2.5)
        tie = Divergence(3, 9, "let", "var", gap=0.01, near_tie=True)
        assert judge(total, [row("one", real)], Thresholds()).exit_code == 6
        assert "of one differs from token 4 on: 'let'" in judge(total, [row("one", real)], Thresholds()).reasons[0]
        assert judge(total, [row("one", tie)], Thresholds()).verdict == "healthy"
        assert "near tie" in warnings([row("one", tie)], [])[0]

    def test_long_context_that_collapses(self) -> None:
        good, bad = figures([trace(100, 60, 20)]), figures([trace(100, 20, 20)])
        run = RunResult("long-context", 4, None, 8192, 0.0, bad, ())
        judged = judge(good, [], Thresholds(), runs=[run])
        assert (judged.verdict, judged.exit_code) == ("weak", 0)
        assert judged.reasons == ("acceptance falls from 60.0 % to 20.0 % at 8,192 tokens of context",)
        assert judge(good, [], Thresholds(), runs=[dataclasses.replace(run, total=good)]).verdict == "healthy"

    def test_text_that_differs_in_another_run(self) -> None:
        total = figures([trace(1807, 869, 264)])
        found = row("two", Divergence(3, 9, "let", "var", gap=2.5))
        long = RunResult("long-context", 7, None, 8192, 0.0, total, (found,))
        judged = judge(total, [row("one")], Thresholds(), runs=[long])
        assert (judged.verdict, judged.exit_code) == ("broken", 6)
        assert "of two differs in the long-context run (n-max 7) from token 4 on" in judged.reasons[0]

    def test_reference(self) -> None:
        total = figures([trace(1807, 869, 264)])
        lost = ReferenceComparison("r", "e", 0.55, 0.07, 0.02, (), False, True, False)
        judged = judge(total, [row("a")], Thresholds(), lost)
        assert (judged.verdict, judged.exit_code) == ("weak", 6)
        assert "fell by 7.00 points" in judged.reasons[0]


class TestTrace:
    def test_estimated_steps(self) -> None:
        unknown = dataclasses.replace(trace(40, 20, 10), steps=None)
        assert unknown.known_steps == 10
        assert unknown.mean_length == 3.0

    def test_sums(self) -> None:
        assert sum_positions([(3, 2), (1, 1, 1)]) == (4, 3, 1)
        assert sum_positions([(3, 2), None]) is None

    def test_divergence(self) -> None:
        one, two = trace(1, 1, 1, (1, 2, 3), "abc"), trace(1, 1, 1, (1, 9, 3), "axc")
        assert divergence(one, one) is None
        assert divergence(one, two) == Divergence(1, 1, "bc", "xc")
        silent = dataclasses.replace(two, tokens=())
        assert divergence(one, silent) == Divergence(None, 1, "bc", "xc")
        assert divergence(one, dataclasses.replace(one, tokens=())) is None


class TestPrompts:
    def test_forms(self) -> None:
        text = '{"prompt": "a"}\n\n{"messages": [{"role": "user", "content": "b"}], "n_predict": 5}\n{"turns": ["c"]}'
        one, two, three = prompts.parse(text, "f", "mine")
        assert (one.prompt, one.n_predict, one.name) == ("a", 256, "a")
        assert (two.messages[0]["content"], two.n_predict) == ("b", 5)
        assert (three.turns, three.name) == (("c",), "c")
        assert [i.n_predict for i in prompts.parse(text, "f", "mine", 9)] == [9, 9, 9]

    def test_a_prompt_without_a_name_has_its_first_words(self) -> None:
        def named(*values: dict[str, object]) -> list[str]:
            return [i.name for i in prompts.parse("\n".join(map(json.dumps, values)), "f", "mine")]

        long = "function parse(text) {\n  return text.split(',')"
        assert named({"prompt": long}, {"prompt": long}, {"prompt": " \n"}) == [
            *("function parse(text) { return…", "function parse(text) { return… (2)", "mine 3"),
        ]
        image = [{"type": "image_url", "image_url": {"url": "data:"}}, {"type": "text", "text": "What is it?"}]
        chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": image}]
        assert named({"messages": chat}, {"turns": ["One.", "Two."]}, {"prompt": "x", "name": "y"}) == [
            *("What is it?", "One.", "y"),
        ]

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("", "holds no prompt"),
            ("nonsense", "line 1 is not JSON"),
            ("[" * 100_000, "line 1 is not JSON"),
            ('{"prompt": "\\ud800"}', "line 1: contains an unpaired surrogate"),
            ('{"turns": ["\\ud83d\\ude00", "\\ude00"]}', "line 1: contains an unpaired surrogate"),
            ("[]", "exactly one of"),
            ('{"prompt": "a", "turns": ["b"]}', "exactly one of"),
            ('{"prompt": 3}', "prompt must be text"),
            ('{"prompt": "a", "set": 1}', "set must be text"),
            ('{"prompt": "a", "n_predict": 0}', "n_predict must be a whole number"),
            ('{"prompt": "a", "n_predict": true}', "n_predict must be a whole number"),
            ('{"messages": ["a"]}', "messages must be"),
            ('{"turns": []}', "turns must be"),
        ],
    )
    def test_unusable(self, tmp_path: Path, line: str, words: str) -> None:
        file = tmp_path / "p.jsonl"
        file.write_text(line)
        with pytest.raises(ConfigError, match=words) as caught:
            prompts.read(file)
        assert str(file) in str(caught.value)

    def test_files_that_cannot_be_read(self, tmp_path: Path) -> None:
        (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe9"}')
        for name in ("none.jsonl", "latin.jsonl"):
            with pytest.raises(ConfigError, match=name):
                prompts.read(tmp_path / name)

    def test_bundled(self) -> None:
        assert {i.set for i in prompts.bundled(prompts.BUNDLED)} == set(prompts.BUNDLED)
        assert len(prompts.bundled(["javascript"])[0].turns) == 4
        with pytest.raises(UsageError, match="no bundled prompt set poetry"):
            prompts.bundled(["poetry"])


class TestOptions:
    def test_n_max(self) -> None:
        assert options.parse_n_max("4,8,15") == (4, 8, 15)
        for bad in ("", "0", "4,x", "999"):
            with pytest.raises(UsageError):
                options.parse_n_max(bad)

    @pytest.mark.parametrize(
        ("wanted", "cap", "quick", "values"),
        [
            ((), 7, False, (7, 4)),
            ((), 15, False, (15, 4, 8)),
            ((), 15, True, (15,)),
            ((), None, True, (4,)),
            ((), None, False, (4, 8, 15)),
            ((4, 8, 15), 7, False, (4, 7)),
            ((15,), 7, True, (7,)),
        ],
    )
    def test_capped(self, wanted: tuple[int, ...], cap: int | None, quick: bool, values: tuple[int, ...]) -> None:
        got, notes = options.n_max_values(wanted, cap, quick)
        assert got == values
        assert bool(notes) == any(cap is not None and n > cap for n in wanted)

    def test_thresholds_file(self, tmp_path: Path) -> None:
        file = tmp_path / "t.json"
        file.write_text('{"min_acceptance": 0.4, "tolerance": 0.01}')
        both = options.thresholds(options.read_thresholds(file), {"min_acceptance": 0.5, "min_speedup": None})
        assert (both.min_acceptance, both.tolerance, both.required) == (0.5, 0.01, {"acceptance": 0.5})

    @pytest.mark.parametrize(
        ("name", "text", "words"),
        [
            ("t.json", "{", "is not JSON"),
            ("t.toml", "a = = 1", "is not TOML"),
            ("t.json", "[]", "must hold an object"),
            ("t.json", '{"min_acceptence": 0.4}', "there is no threshold 'min_acceptence'"),
            ("t.json", '{"min_acceptance": "0.4"}', "must be a number"),
            ("t.json", '{"min_acceptance": NaN}', "must be a number"),
            ("t.json", '{"recorded_at": 1}', "there is no threshold"),
        ],
    )
    def test_unusable_thresholds(self, tmp_path: Path, name: str, text: str, words: str) -> None:
        (tmp_path / name).write_text(text)
        with pytest.raises(ConfigError, match=words):
            options.read_thresholds(tmp_path / name)


class TestPair:
    def test_trained_pair(self, fixtures: Path, drafters: dict[str, Path]) -> None:
        found = pair.read_pair(drafters["bf16"], fixtures / "tiny-js" / "target-bf16.gguf")
        assert (found.drafter.spec_type, found.drafter.block_size, found.n_max_cap) == ("draft-dflash", 8, 7)
        assert (found.drafter.file_type, found.target.architecture) == ("BF16", "qwen3")
        assert (found.trained_context, found.has_template) == (4096, True)

    def test_whole_block_for_anchor_first_dspark(self, tmp_path: Path) -> None:
        target = gguf(tmp_path / "t.gguf", [string("general.architecture", "qwen3")])
        head = [string("general.architecture", "dflash"), u32("dflash.block_size", 8)]
        markov = ("markov_w1.weight", (4, 4))
        anchor = boolean("dflash.sample_from_anchor", True)
        later = boolean("dflash.sample_from_anchor", False)
        for keys, tensors, spec, cap in (
            ([*head, anchor], (markov,), "draft-dspark", 8),
            ([*head, later], (markov,), "draft-dspark", 7),
            (head, (), "draft-dflash", 7),
        ):
            found = pair.read_pair(gguf(tmp_path / "d.gguf", keys, tensors), target)
            assert (found.drafter.spec_type, found.n_max_cap) == (spec, cap)

    def test_a_directory(self, fixtures: Path, drafters: dict[str, Path]) -> None:
        for files, tip in (
            ((drafters["bf16"], fixtures / "tiny-js" / "target"), "get the target's GGUF"),
            ((fixtures / "tiny-js" / "drafter", drafters["bf16"]), "a drafter's checkpoint is converted with"),
        ):
            with pytest.raises(InputError, match="a directory, not a GGUF") as caught:
                pair.read_pair(*files)
            assert tip in str(caught.value.tip)

    def test_dialect(self, tmp_path: Path) -> None:
        drafter = gguf(tmp_path / "d.gguf", [string("general.architecture", "dflash-draft")])
        with pytest.raises(FamilyError, match="fork's dialect") as caught:
            pair.read_pair(drafter, drafter)
        assert "migrate" in str(caught.value.tip)

    def test_split_target(self, tmp_path: Path) -> None:
        drafter = gguf(tmp_path / "d.gguf", [string("general.architecture", "dflash"), u32("dflash.block_size", 8)])
        keys = [string("general.architecture", "qwen3"), u32("split.count", 2)]
        first = gguf(tmp_path / "t-00001-of-00002.gguf", keys)
        with pytest.raises(InputError, match=r"t-00002-of-00002\.gguf is missing"):
            pair.read_pair(drafter, first)
        second = gguf(tmp_path / "t-00002-of-00002.gguf", keys)
        found = pair.read_pair(drafter, first)
        assert found.target.size == first.stat().st_size + second.stat().st_size
        assert shards.shard_paths(first) == (first, second)
        with pytest.raises(InputError, match="not the first shard"):
            pair.read_pair(drafter, second)
        renamed = gguf(tmp_path / "t.gguf", keys)
        with pytest.raises(ContainerError, match=r"split\.count is 2"):
            pair.read_pair(drafter, renamed)


def gguf(path: Path, keys: list[KV], tensors: tuple[tuple[str, tuple[int, ...]], ...] = ()) -> Path:
    """A file of F32 zeros."""
    entries = [Entry(name, shape, TensorType.F32) for name, shape in tensors or (("fc.weight", (4, 4)),)]
    with GgufOutput(path, entries, layout(keys, entries), force=True) as output:
        output.commit()
    return path


def result() -> ValidationResult:
    facts = FileFacts("d.gguf", 1, "dflash", "D", "BF16", 8, "draft-dflash", ("ab",))
    settings = Settings(
        *(7, (), 7, 4096, None, 1.0, 0.95, 64, 1, None, ("set",), None, None, None, None, (), "f16"),
        *("2026-01-01T00:00:00+00:00", 1.5),
    )
    rows = (row("one"), row("two", Divergence(0, 0, "a", "b", 0.01, True)))
    return ValidationResult(
        *("healthy", ("fine",), (), 0, EngineInfo("embedded", None, "1"), facts, facts, Thresholds(), settings),
        figures([trace(8, 4, 2)] * 2),
        rows,
        (RunResult("sweep", 4, True, 4096, 0.0, figures([trace(8, 4, 2)]), rows),),
    )


class TestDocuments:
    def test_round_trip(self) -> None:
        whole = json.loads(json.dumps(result().json()))
        assert whole["prompts"][0]["drafted"] == 8
        assert from_json(whole) == result()

    @pytest.mark.parametrize(
        "change",
        [{"kind": "other"}, {"schema": 2}, {"verdict": "splendid"}, {"prompts": 3}, {"total": {"drafted": "x"}}],
    )
    def test_damaged(self, change: dict[str, object]) -> None:
        with pytest.raises(ConfigError, match="here"):
            from_json({**result().json(), **change}, "here")

    def test_reference(self, tmp_path: Path) -> None:
        path = tmp_path / "r.json"
        reference.save(path, reference.document(result()))
        loaded = reference.load(path)
        assert (loaded.drafted, loaded.accepted, loaded.acceptance) == (16, 8, 0.5)
        assert [i.prompt for i in loaded.items()] == ["p", "p"]
        changed = loaded.apply(options.Options(Path("d"), Path("t"), context=1024))
        assert (changed.n_max, changed.quick, changed.context) == ((7,), True, 4096)

    def test_place_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "r.json").mkdir()
        with pytest.raises(OutputError, match="is a directory"):
            reference.save(tmp_path / "r.json", {})
        with pytest.raises(OutputError, match="is not a directory"):
            reference.save(tmp_path / "none" / "r.json", {})
        assert [p.name for p in tmp_path.iterdir()] == ["r.json"]

    @pytest.mark.parametrize("text", ["{", "[]", '{"kind": "validation-reference", "schema": 1}'])
    def test_unusable_reference(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "r.json"
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"r\.json"):
            reference.load(path)

    def test_failure_codes(self) -> None:
        ok = result()
        ok.raise_for_status()
        with pytest.raises(DflashError) as caught:
            dataclasses.replace(ok, verdict="broken", exit_code=6).raise_for_status()
        assert caught.value.exit_code == 6


class TestTable:
    """What a person sees of a result, by the room there is."""

    @staticmethod
    def rendered(width: int | None, count: int = 1807) -> list[str]:
        long = "write a function that parses a duration"
        numbers = dataclasses.replace(
            figures([trace(count, 869, 264)], [trace(0, 0, 869)]), identical=True, baseline_tokens_per_second=123.45
        )
        rows = (row(long, numbers=numbers), row("b", numbers=dataclasses.replace(numbers, identical=False)))
        runs = tuple(
            RunResult(label, 15, True, 8192, t, numbers, ()) for label, t in (("sampled", 0.8), ("long-context", 0.0))
        )
        made = dataclasses.replace(result(), prompts=rows, total=numbers, runs=runs)
        return table.render(made, width).splitlines()

    @pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
    @pytest.mark.parametrize("count", [1807, 1_234_567])
    def test_a_row_is_a_line(self, width: int, count: int) -> None:
        lines = self.rendered(width, count)
        inside = [lines[i - 1 : i + 4] for i, line in enumerate(lines) if line.startswith("---")]
        firsts = [block[0].split()[0] for block in inside]
        assert firsts == ["prompt", "b", "run"], "a head is one line, and so are the rows"
        for block in inside:
            assert max(map(len, block)) <= width
        for name in ("total", "b  ", "sampled", "long-cont"):
            assert sum(line.startswith(name) for line in lines) == 1

    def test_what_gives_way_first(self) -> None:
        heads = [next(line for line in self.rendered(width) if line.startswith("prompt")) for width in (200, 80, 46)]
        assert heads[0].endswith("same text")
        assert heads[1].split() == ["prompt", "accepted/drafted", "acceptance", "mean", "tok/s", "baseline", "text"]
        assert heads[2].split() == ["prompt", "accepted/drafted", "acceptance", "text"]
        assert sum(line.endswith("  NO") for line in self.rendered(46)) == 1

    def test_numbers_have_one_form(self) -> None:
        for width in (None, 80):
            text = "\n".join(self.rendered(width))
            assert "1,807" in text
            assert not re.search(r"\b1807\b|\b8192\b", text)
        total = figures([trace(1807, 869, 264)])
        assert "869 of 1,807 drafts" in judge(total, [row("a")], Thresholds()).reasons[0]
