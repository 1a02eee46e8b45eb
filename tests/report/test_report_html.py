"""The HTML report: one well-formed file that loads nothing, says everything and believes no name."""

from __future__ import annotations

import dataclasses
import re
import shlex
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import click
import pytest
from report_results import EVIL, EXTRAS, POSITIONS, figures, result

from dflash_convert.cli import COMMANDS, cli
from dflash_convert.glossary import TERMS
from dflash_convert.measure.speed import Gain
from dflash_convert.memory.plan import MemoryPlan, Part
from dflash_convert.report.charts import SHARE, Bar, Scale, _ticks, bars
from dflash_convert.report.extras import Extras, Room, free_memory, gather
from dflash_convert.report.html import render
from dflash_convert.report.markup import WIDE
from dflash_convert.report.plots import BOTTOM, TOP, Curve, curves
from dflash_convert.target import Target
from dflash_convert.validation.gain import Round, SpeedReport
from dflash_convert.validation.net import Net
from dflash_convert.validation.net import Part as NetPart
from dflash_convert.validation.result import (
    NO_FIGURES,
    Divergence,
    Failure,
    PromptResult,
    Thresholds,
    ValidationResult,
)


@pytest.fixture(scope="module")
def page() -> str:
    return render(result(), EXTRAS)


@pytest.fixture(scope="module")
def tree(page: str) -> ET.Element:
    return ET.fromstring(page)


def texts(tree: ET.Element) -> str:
    return " ".join(tree.itertext())


def test_every_part_is_there(tree: ET.Element) -> None:
    headings = [h.text for h in tree.iter("h2")]
    wanted = ["Run it", "What to do next", "Acceptance", "Speed", "Draft length"]
    wanted += ["Static check", "Thresholds", "The record", "Words"]
    assert headings == wanted
    everything = texts(tree)
    for value in (
        *("48.1 %", "2.64", "1.91 ×", "1.85 to 1.98 × in 3 rounds", "healthy", "faster here", "28.8 ms"),
        *("Recommended here: n-max 4; faster than no drafter.", "differs at token 7, near tie"),
        "identical but for 1 near tie",
    ):
        assert value in everything, value


def badges(page: str) -> dict[str, str]:
    """Text and colour class of the verdicts."""
    spans = [s for s in ET.fromstring(page).iter("span") if "verdict" in (s.get("class") or "")]
    return {str(s.text): str(s.get("class")).removeprefix("verdict ") for s in spans}


@pytest.mark.parametrize(
    ("gain", "words"),
    [("slower", "slower here"), ("no gain", "no gain here"), ("disturbed", "speed disturbed")],
)
def test_no_green_healthy_beside_a_pair_that_does_not_pay(gain: Gain, words: str) -> None:
    page = render(dataclasses.replace(result("n"), gain=gain), Extras())
    assert badges(page) == {"healthy": "plain", words: gain.replace(" ", "-")}
    assert badges(render(result("n"), Extras())) == {"healthy": "healthy", "faster here": "faster"}


def test_a_disturbed_run_shows_no_speed_up() -> None:
    """As measured on a loaded machine: 29.96 times as fast with a mean length of 4.61."""
    wrong = dataclasses.replace(
        result("n").speed or SpeedReport(3, 2),
        speedup=None,
        low=None,
        high=None,
        tokens_per_second=None,
        passes=(Round(3.1, 92.9),),
        limit=4.61,
        reason="more was measured",
    )
    everything = texts(ET.fromstring(render(dataclasses.replace(result("n"), gain="disturbed", speed=wrong), Extras())))
    assert "against no drafter" not in everything.replace("faster than no drafter", "")
    assert "29.9" not in everything
    assert "more was measured" in everything


@pytest.mark.parametrize("gain", ["not measured", "disturbed"])
def test_speeds_that_are_no_claim_have_no_bars(gain: Gain) -> None:
    base = result("n")
    assert base.speed
    assert base.sweep
    unknown = dataclasses.replace(base.speed, rounds=1, speedup=None, low=None, high=None, passes=(Round(48.0, 91.5),))
    points = tuple(dataclasses.replace(p, speedup=None, low=None, high=None) for p in base.sweep.points)
    found = dataclasses.replace(
        base,
        gain=gain,
        speed=unknown,
        sweep=dataclasses.replace(base.sweep, points=points, pays=None),
        settings=dataclasses.replace(base.settings, rounds=1),
    )

    def charts(of: ValidationResult) -> list[str]:
        return [c.get("aria-label") or "" for c in ET.fromstring(render(of, Extras())).iter("svg")]

    assert sum(label.startswith("Speed") for label in charts(base)) == 2
    assert not [label for label in charts(found) if label.startswith("Speed")]
    captions = [c.text or "" for c in ET.fromstring(render(found, Extras())).iter("caption")]
    about = [c for c in captions if c.startswith(("Tokens per second", "What a step", "Sweep", "Other runs"))]
    assert len(about) == 4
    assert all("one round, not a claim" in c for c in about)


def test_no_line_runs_through_figures() -> None:
    items = [Bar(f"p{i}", i / 10, f"{10 * i} %") for i in range(1, 11)]
    tree = ET.fromstring(bars("t", items, SHARE._replace(line=(0.45, "average, 45 %"))))
    (line,) = [float(at.get("x1") or 0) for at in tree.iter("line") if at.get("class") == "average"]
    places = [float(t.get("x") or 0) for t in tree.iter("text") if t.get("class") == "value"]
    assert len(places) == len(items)
    assert min(places) > line
    page = texts(ET.fromstring(render(result("n"), Extras())))
    assert "dashed: average of all drafts, 48 %" in page


def test_a_prompt_named_by_its_words_says_them_once() -> None:
    one = dataclasses.replace(
        result("n").prompts[0], prompt="function parse(text) {\n  x", name="function parse(te… (2)"
    )
    page = texts(ET.fromstring(render(dataclasses.replace(result("n"), prompts=(one,)), Extras())))
    assert "begins" not in page
    assert "begins" in texts(ET.fromstring(render(result("n"), Extras())))


def test_the_tile_tells_the_text_of_all_runs() -> None:
    base = result("n")
    same = dataclasses.replace(base.prompts[0], divergence=None)
    other = dataclasses.replace(
        same, divergence=Divergence(3, 9, "a", "b", 2.5), figures=dataclasses.replace(same.figures, identical=False)
    )
    long = dataclasses.replace(base.runs[0], label="long-context", temperature=0.0, prompts=(other,))

    def shown(found: ValidationResult) -> tuple[str, str]:
        return tile(render(found, Extras()), "greedy text, all runs")

    main = dataclasses.replace(base, prompts=(same,), runs=())
    assert shown(main) == ("identical", "good")
    assert shown(dataclasses.replace(main, runs=(long,))) == ("1 of 2 differ", "bad")


def test_nothing_is_loaded_from_anywhere(page: str, tree: ET.Element) -> None:
    allowed = {"html", "head", "meta", "title", "style", "body", "main", "header", "footer", "section", "div"}
    allowed |= {"h1", "h2", "p", "span", "b", "ul", "li", "pre", "details", "summary", "figure", "figcaption"}
    allowed |= {"dl", "dt", "dd", "code", "small", "polyline", "circle"}
    allowed |= {"table", "caption", "thead", "tbody", "tr", "th", "td", "svg", "desc", "rect", "text", "line"}
    assert {element.tag for element in tree.iter()} <= allowed
    names = {name for element in tree.iter() for name in element.attrib}
    assert not names & {"src", "href", "style", "onerror", "onload", "srcset", "action"}
    assert not re.search(r"url\(|@import", page)
    policy = [m.get("content") for m in tree.iter("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


def test_hostile_names_are_text(page: str, tree: ET.Element) -> None:
    assert "<script" not in page
    assert "<img" not in page
    assert "<script>alert('x')</script>" in texts(tree)
    page.encode("utf-8")
    assert "\x00" not in page


def test_charts_have_text_alternatives_with_their_values(tree: ET.Element) -> None:
    charts = list(tree.iter("svg"))
    assert len(charts) == 5
    for chart in charts:
        assert chart.get("role") == "img"
        title, desc = chart.find("title"), chart.find("desc")
        assert title is not None
        assert desc is not None
        assert title.text
        assert desc.text
        assert chart.get("aria-label") == f"{title.text}. {desc.text}"
    positions = next(c for c in charts if "block position" in (c.get("aria-label") or ""))
    assert positions.get("aria-label", "").endswith("kept: 82 %, 61 %, 40 %")
    heights = [BOTTOM - float(dot.get("cy", "0")) for dot in positions.iter("circle")]
    assert heights == [pytest.approx((BOTTOM - TOP) * rate, abs=0.06) for rate in POSITIONS]


def test_tables_have_captions_and_headers(tree: ET.Element) -> None:
    for table in tree.iter("table"):
        assert table.find("caption") is not None
        for row in table.iter("tr"):
            assert row.find("th") is not None


def test_light_dark_phone_and_print_are_styled(page: str) -> None:
    for rule in (
        "prefers-color-scheme: dark",
        "max-width: 30rem",
        "@media print",
        "width=device-width",
        "scroll sideways for more",
    ):
        assert rule in page


def test_wide_tables_say_on_a_phone_that_they_scroll(tree: ET.Element) -> None:
    boxes = [div for div in tree.iter("div") if str(div.get("class")).startswith("scroll")]
    assert len(boxes) == len([*tree.iter("table")])
    for box in boxes:
        columns = max(len(row) for row in box.iter("tr"))
        assert (box.get("class") == "scroll wide") is (columns >= WIDE)
        assert box.get("tabindex") == "0"


def test_an_engine_failure_has_a_report_too() -> None:
    failed = dataclasses.replace(
        result(),
        verdict="engine-failure",
        prompts=(),
        runs=(),
        sweep=None,
        reference=None,
        total=NO_FIGURES,
        failure=Failure("oom", "out of memory " + EVIL, "use a smaller context", "log " + EVIL),
    )
    page = render(failed, Extras())
    everything = texts(ET.fromstring(page))
    assert "engine failure" in everything
    assert "use a smaller context" in everything
    assert "nan" not in everything.lower()


def test_missing_figures_are_dashes_not_none() -> None:
    bare = dataclasses.replace(result("n"), runs=(), sweep=None, total=dataclasses.replace(NO_FIGURES, generated=5))
    everything = texts(ET.fromstring(render(bare, Extras())))
    assert "None" not in everything


def test_types_and_memory_come_from_the_files(fixtures: Path, tmp_path: Path) -> None:
    from dflash_convert.conversion import Options, Source, prepare, write

    pair = fixtures / "tiny-js"
    path = tmp_path / "dflash-t-Q8_0.gguf"
    write(prepare(Source(pair / "drafter"), Target.read(pair / "target"), Options(outtypes=("Q8_0",))), [path])
    base = result("n")
    real: ValidationResult = dataclasses.replace(
        base,
        drafter=dataclasses.replace(base.drafter, path=str(path)),
        target=dataclasses.replace(base.target, path=str(pair / "target-bf16.gguf")),
    )
    extras = gather(real)
    assert [(row.type, row.count) for row in extras.types] == [("Q8_0", 22), ("F32", 14)]
    assert extras.memory is not None
    assert extras.findings is not None
    assert extras.room is None, "the engine of this result lists no memory"
    # 3 layers x 4096 cells x 2 x 128 elements x 2 bytes
    assert extras.memory.drafter.kv == 3 * 4096 * 2 * 128 * 2
    assert "KV cache 6.0 " in texts(ET.fromstring(render(real)))


def test_files_that_are_gone_only_leave_their_sections_out() -> None:
    found = headings(render(result()))
    assert "Memory" not in found
    assert "Acceptance" in found


def test_bars_scale_to_the_largest_or_the_given_top() -> None:
    def widths(svg: str) -> list[float]:
        return [float(r.get("width", "0")) for r in ET.fromstring(svg).iter("rect")]

    a, b = widths(bars("t", [Bar("x", 2.0, "2"), Bar("y", 4.0, "4")]))
    assert b == pytest.approx(2 * a, abs=0.2)
    half, whole = (widths(bars("t", [Bar("x", value, "")], SHARE))[0] for value in (0.5, 1.0))
    assert half == pytest.approx(whole / 2, abs=0.2)
    assert bars("t", []) == ""


@pytest.mark.parametrize("chart", ["bars", "curve"])
def test_charts_have_an_axis_a_grid_and_a_dashed_line(chart: str) -> None:
    axis = SHARE._replace(title="share", line=(0.5, "half"))
    items = [Bar("x", 0.3, "30 %"), Bar("y", 0.9, "90 %")]
    found = [Curve("c", (0.3, 0.9), 0)]
    svg = (
        bars("t", items, axis)
        if chart == "bars"
        else curves("t", found, "x axis", "share", percent=True, line=(0.5, "half"))
    )
    tree = ET.fromstring(svg)
    lines = [line.get("class") for line in tree.iter("line")]
    assert lines.count("average") == 1
    assert lines.count("axis") >= 5
    assert "dashed: half" in texts(tree)
    words = [t.text for t in tree.iter("text")]
    assert {"0 %", "100 %", "share"} <= set(words)
    assert chart == "bars" or "x axis" in words


@pytest.mark.parametrize(("top", "last"), [(1.0, 1.0), (97.0, 75.0), (0.007, 0.006), (4848.0, 4000.0)])
def test_ticks_are_round_and_stay_inside(top: float, last: float) -> None:
    found = _ticks(top)
    assert 3 <= len(found) <= 6
    assert found[-1] == pytest.approx(last)
    assert Scale().tick(found[1])


# --- the first screen


def tile(page: str, name: str) -> tuple[str, str]:
    """Value and colour of a tile."""
    tiles = [t for t in ET.fromstring(page).iter("div") if str(t.get("class")).split()[0] == "tile"]
    (found,) = [t for t in tiles if name in "".join(t.itertext())]
    return str(found[0].text), str(found.get("class")).removeprefix("tile").strip()


@pytest.mark.parametrize(
    ("gain", "speedup", "colour"), [("faster", 1.91, "good"), ("no gain", 1.01, "warn"), ("slower", 0.40, "bad")]
)
def test_the_tile_of_the_speed_up_has_the_colour_of_its_verdict(gain: Gain, speedup: float, colour: str) -> None:
    base = result("n")
    speed = dataclasses.replace(base.speed or SpeedReport(3, 2), speedup=speedup)
    page = render(dataclasses.replace(base, gain=gain, speed=speed), Extras())
    assert tile(page, "against no drafter") == (f"{speedup:.2f} ×", colour)


@pytest.mark.parametrize(
    ("acceptance", "verdict", "colour"), [(0.481, "healthy", "good"), (0.2, "weak", "warn"), (0.01, "broken", "bad")]
)
def test_the_tile_of_the_acceptance_has_the_colour_of_the_pair(acceptance: float, verdict: Any, colour: str) -> None:
    base = dataclasses.replace(result("n"), thresholds=Thresholds())
    page = render(dataclasses.replace(base, verdict=verdict, total=figures(acceptance=acceptance)), Extras())
    assert tile(page, "drafts accepted")[1] == colour


def headings(page: str) -> list[str | None]:
    return [h.text for h in ET.fromstring(page).iter("h2")]


def test_the_command_names_the_files_and_the_draft_length_that_pays() -> None:
    page = render(result("n"), Extras())
    (command,) = [p for p in ET.fromstring(page).iter("pre") if p.get("class") == "command"]
    assert "".join(command.itertext()) == (
        "llama-server -m target.gguf -md dflash-x.gguf --spec-type draft-dflash \\\n  --spec-draft-n-max 4 -fa on"
    )


def test_a_slower_pair_has_the_target_alone_beside_its_command() -> None:
    words = "the target alone is faster"
    swept = dataclasses.replace(result("n"), gain="slower")
    assert words not in render(swept, Extras()), "the recommended draft length pays"
    assert words in render(dataclasses.replace(swept, sweep=None), Extras())
    assert words not in render(dataclasses.replace(result("n"), sweep=None), Extras())


def test_a_broken_pair_has_no_command_and_says_what_to_do() -> None:
    page = render(dataclasses.replace(result("n"), verdict="broken", exit_code=6), Extras())
    assert "Run it" not in headings(page)
    everything = texts(ET.fromstring(page))
    assert "dflash-convert check dflash-x.gguf target.gguf" in everything
    assert "Do not deploy the pair" in everything


@pytest.mark.parametrize("verdict", ["healthy", "weak", "broken", "engine-failure"])
@pytest.mark.parametrize("gain", ["faster", "no gain", "slower", "disturbed", "not measured"])
def test_there_is_always_something_to_do_next(verdict: Any, gain: Gain) -> None:
    tree = ET.fromstring(render(dataclasses.replace(result("n"), verdict=verdict, gain=gain), Extras()))
    elements = [*tree.iter()]
    after = elements[[e.text for e in elements].index("What to do next") + 1]
    assert after.tag == "ul"
    assert len(after) >= 1
    for step in after:
        assert not step.text, "each begins with a command"
        assert step[0].tag == "code"
        words = shlex.split(str(step[0].text))
        assert words[1] in COMMANDS
        command = cli.get_command(click.Context(cli), words[1])
        assert command is not None
        command.make_context(words[1], words[2:])


def test_warnings_stand_in_a_banner_and_once() -> None:
    base = dataclasses.replace(result("n"), warnings=("a", "b"), retries=("b",))
    (banner,) = [d for d in ET.fromstring(render(base, Extras())).iter("div") if d.get("class") == "banner"]
    assert [li.text for li in banner.iter("li")] == ["a", "b"]
    none = render(dataclasses.replace(base, warnings=(), retries=()), Extras())
    assert 'class="banner"' not in none


def test_hashes_come_last_and_folded_up(page: str) -> None:
    assert page.index("Acceptance") < page.index("ab" * 32)
    (folded,) = [d for d in ET.fromstring(page).iter("details") if "SHA-256" in "".join(d.itertext())]
    assert folded.get("open") is None


def test_no_table_has_an_empty_column(tree: ET.Element) -> None:
    for table in tree.iter("table"):
        if table.get("class") == "facts":
            continue
        rows = [[*row] for row in table.iter("tr")]
        for column in zip(*rows, strict=True):
            assert any("".join(cell.itertext()).strip("–") for cell in column[1:]), "".join(column[0].itertext())


def test_acceptance_over_context() -> None:
    base = result("n")
    short, far = shifted(base, 30, 300, 400), shifted(base, 4000, 100, 400)
    long = dataclasses.replace(base.runs[0], label="long-context", temperature=0.0, prompts=(far,))
    page = render(dataclasses.replace(base, prompts=(short,), runs=(long,)), Extras())
    (chart,) = [c for c in ET.fromstring(page).iter("svg") if "by tokens of context" in (c.get("aria-label") or "")]
    assert (chart.get("aria-label") or "").endswith("accepted: 128: 75 %, 4,096: 25 %")
    assert "by tokens of context" not in render(dataclasses.replace(base, prompts=(short,), runs=()), Extras())


def shifted(base: ValidationResult, tokens: int, accepted: int, drafted: int) -> PromptResult:
    one = base.prompts[0]
    found = dataclasses.replace(one.figures, prompt_tokens=tokens, generated=96, accepted=accepted, drafted=drafted)
    return dataclasses.replace(one, figures=found)


def test_free_memory_is_that_of_the_card() -> None:
    chip, card = "CPU: A chip (9000 MiB, 8000 MiB free)", "CUDA0: A card (81000 MiB, 80000 MiB free)"
    assert free_memory((chip, card)) == Room("CUDA0: A card", 80000)
    assert free_memory((chip,)) == Room("CPU: A chip", 8000)
    assert free_memory(("CUDA0",)) is None


@pytest.mark.parametrize(
    ("context", "words"),
    [
        (32768, "contexts of up to 32,768 tokens fit."),
        (4096, "up to 4,096 tokens fit, which is all that the target was trained for: memory is not the limit."),
        (0, "the pair does not fit."),
        (None, "cannot be told."),
    ],
)
def test_memory_has_a_total_and_what_fits(context: int | None, words: str) -> None:
    part = Part(weights=30 << 20, kv=10 << 20, window_kv=0, compute=5 << 20, compute_host=0)
    plan = MemoryPlan(4096, 4, True, part, part)
    everything = texts(
        ET.fromstring(render(result("n"), Extras(memory=plan, room=Room("CUDA0", 80000, context, context == 4096))))
    )
    assert "The pair needs 90.0 MiB at 4,096 tokens of context. CUDA0 had 78.12 GiB free before the run:" in everything
    assert words in everything
    assert "total 45.0 45.0 90.0" in everything
    assert "sliding-window" not in everything


def test_threads_and_load_are_told(page: str) -> None:
    everything = texts(ET.fromstring(page))
    assert "processor cores 16" in everything
    assert "required acceptance 30.0 %" in everything
    assert "machine load before the run 2.5 busy cores" in everything


def test_the_words_are_those_of_the_glossary(page: str) -> None:
    (words,) = ET.fromstring(page).iter("dl")
    titles = {term.title for term in TERMS}
    assert len(words.findall("dt")) >= 8
    assert {dt.text for dt in words.findall("dt")} <= titles


def test_another_drafter_of_the_same_rounds() -> None:
    part = NetPart("", 4.0, 4.2, 0.05, "faster", 1.2, 1.1, 1.3)
    net = Net("a.gguf", "b.gguf", part, (), f"a.gguf beside b.gguf: faster: {part}")
    everything = texts(ET.fromstring(render(dataclasses.replace(result("n"), beside=net), Extras())))
    assert "a.gguf beside b.gguf: faster: mean length 4.20 -> 4.00" in everything
