"""The HTML report: one well-formed file that loads nothing, says everything and believes no name."""

from __future__ import annotations

import dataclasses
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from report_results import EVIL, EXTRAS, POSITIONS, result

from dflash_convert.measure.speed import Gain
from dflash_convert.report.charts import Bar, bars, columns
from dflash_convert.report.extras import Extras, gather
from dflash_convert.report.html import render
from dflash_convert.target import Target
from dflash_convert.validation.gain import Round, SpeedReport
from dflash_convert.validation.result import Divergence, Failure, ValidationResult, figures


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
    wanted = ["The pair", "Static check", "Acceptance", "Speed", "Draft length", "Tensors", "Thresholds"]
    assert headings == wanted
    everything = texts(tree)
    for value in (
        *("48.1 %", "2.64", "1.91 ×", "against no drafter (1.85 to 1.98)", "healthy", "faster here", "28.8 ms"),
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


def test_the_tile_tells_the_text_of_all_runs() -> None:
    base = result("n")
    same = dataclasses.replace(base.prompts[0], divergence=None)
    other = dataclasses.replace(
        same, divergence=Divergence(3, 9, "a", "b", 2.5), figures=dataclasses.replace(same.figures, identical=False)
    )
    long = dataclasses.replace(base.runs[0], label="long-context", temperature=0.0, prompts=(other,))
    tile = "greedy text, all runs"

    def shown(found: ValidationResult) -> str:
        tiles = [t for t in ET.fromstring(render(found, Extras())).iter("div") if t.get("class") == "tile"]
        return next("".join(t.itertext()) for t in tiles if tile in "".join(t.itertext()))

    main = dataclasses.replace(base, prompts=(same,), runs=())
    assert shown(main) == f"identical{tile}"
    assert shown(dataclasses.replace(main, runs=(long,))) == f"1 of 2 differ{tile}"


def test_nothing_is_loaded_from_anywhere(page: str, tree: ET.Element) -> None:
    allowed = {"html", "head", "meta", "title", "style", "body", "main", "header", "footer", "section", "div"}
    allowed |= {"h1", "h2", "p", "span", "b", "ul", "li", "pre", "details", "summary", "figure", "figcaption"}
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
    assert len(charts) == 6
    for chart in charts:
        assert chart.get("role") == "img"
        title, desc = chart.find("title"), chart.find("desc")
        assert title is not None
        assert desc is not None
        assert title.text
        assert desc.text
        assert chart.get("aria-label") == f"{title.text}. {desc.text}"
    positions = next(c for c in charts if "block position" in (c.get("aria-label") or ""))
    assert positions.get("aria-label", "").endswith("1: 82 %; 2: 61 %; 3: 40 %")
    heights = [float(rect.get("height", "0")) for rect in positions.iter("rect")]
    assert heights == [pytest.approx(120 * rate, abs=0.06) for rate in POSITIONS]


def test_tables_have_captions_and_headers(tree: ET.Element) -> None:
    for table in tree.iter("table"):
        assert table.find("caption") is not None
        for row in table.iter("tr"):
            assert row.find("th") is not None


def test_light_dark_phone_and_print_are_styled(page: str) -> None:
    for rule in ("prefers-color-scheme: dark", "max-width: 30rem", "@media print", "width=device-width"):
        assert rule in page


def test_an_engine_failure_has_a_report_too() -> None:
    failed = dataclasses.replace(
        result(),
        verdict="engine-failure",
        prompts=(),
        runs=(),
        sweep=None,
        reference=None,
        total=figures(()),
        failure=Failure("oom", "out of memory " + EVIL, "use a smaller context", "log " + EVIL),
    )
    page = render(failed, Extras())
    everything = texts(ET.fromstring(page))
    assert "engine failure" in everything
    assert "use a smaller context" in everything
    assert "nan" not in everything.lower()


def test_missing_figures_are_dashes_not_none() -> None:
    bare = dataclasses.replace(result("n"), runs=(), sweep=None, total=dataclasses.replace(figures(()), generated=5))
    everything = texts(ET.fromstring(render(bare, Extras())))
    assert "None" not in everything


def test_types_and_memory_come_from_the_files(fixtures: Path, tmp_path: Path) -> None:
    from dflash_convert.convert import Options, Source, prepare, write

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
    # 3 layers x 4096 cells x 2 x 128 elements x 2 bytes
    assert extras.memory.drafter.kv == 3 * 4096 * 2 * 128 * 2
    assert "6.00" in texts(ET.fromstring(render(real)))


def test_files_that_are_gone_only_leave_their_sections_out() -> None:
    headings = [h.text for h in ET.fromstring(render(result())).iter("h2")]
    assert "Tensors" not in headings
    assert "Acceptance" in headings


def test_bars_scale_to_the_largest_or_the_given_top() -> None:
    def widths(svg: str) -> list[float]:
        return [float(r.get("width", "0")) for r in ET.fromstring(svg).iter("rect")]

    a, b = widths(bars("t", [Bar("x", 2.0, "2"), Bar("y", 4.0, "4")]))
    assert b == pytest.approx(2 * a, abs=0.2)
    assert widths(bars("t", [Bar("x", 0.5, "")], top=1.0))[0] == pytest.approx(
        widths(bars("t", [Bar("x", 1.0, "")], top=1.0))[0] / 2, abs=0.2
    )
    assert bars("t", []) == ""
    assert columns("t", []) == ""
