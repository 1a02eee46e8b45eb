"""The page of compare and tune: what to take and why first, every candidate beside the others, nothing believed."""

from __future__ import annotations

import random
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from contest_pages import EVIL, KINDS, comparison, page, tuning

from dflash_convert.contest.report import advice
from dflash_convert.contest.trees import Estimate
from dflash_convert.forward.tree import Lengths
from dflash_convert.report.contest import Shown, headline
from dflash_convert.report.plots import Axis, Curve, Point, curves, scatter


@pytest.fixture(scope="module")
def shown() -> Shown:
    return comparison()


@pytest.fixture(scope="module")
def tree(shown: Shown) -> ET.Element:
    return ET.fromstring(page(shown))


def words(tree: ET.Element) -> str:
    return " ".join("".join(tree.itertext()).split())


def test_what_to_take_and_why_comes_first(shown: Shown, tree: ET.Element) -> None:
    winner = shown.ruling.winner
    assert shown.ruling.pays
    assert winner.candidate.name == "dflash-Qwen3-8B-Q4_0", "of two that are equal the smaller"
    header = next(tree.iter("header"))
    assert winner.speed is not None
    top = words(header)
    assert top.startswith("Take dflash-Qwen3-8B-Q4_0 with n-max 7")
    assert f"{winner.speed.measured:.2f} × the speed without a drafter" in top
    assert "dflash-Qwen3-8B-Q8_0, n-max 7 is as fast within noise, but larger" in top
    assert [h.text for h in tree.iter("h2")] == [
        *("Run it", "Side by side", "By kind of prompt", "Other loads", "Measured on")
    ]


def test_the_table_is_sorted_by_speed_and_marks_the_winner(shown: Shown, tree: ET.Element) -> None:
    rows = next(tree.iter("tbody")).findall("tr")
    speeds = [float(row.findall("td")[4].text or "0") for row in rows]
    assert speeds == sorted(speeds, reverse=True)
    assert len(rows) == len(shown.ruling.standings)
    marked = [row for row in rows if row.get("class") == "marked"]
    assert [row.findall("td")[0].text for row in marked] == ["take this"]
    verdicts = [row.findall("td")[0].text for row in rows]
    assert verdicts.count("as fast, within noise") == sum(s.best for s in shown.ruling.standings) - 1


def test_each_kind_of_prompt_has_its_sentence(shown: Shown, tree: ET.Element) -> None:
    items = [item.text for item in tree.iter("li")]
    assert items == [advice(each) for each in shown.kinds]
    assert len(items) == len(KINDS)


def test_every_candidate_is_in_the_plots(shown: Shown, tree: ET.Element) -> None:
    plot, lines = list(tree.iter("svg"))[:2]
    assert len(list(plot.iter("circle"))) == len(shown.ruling.standings)
    said = plot.findtext("desc") or ""
    for each in shown.ruling.standings:
        assert f"{each.tokens_per_second:.1f} tokens/s" in said
    drafting = [each for each in shown.ruling.standings if each.curve]
    drawn = [line.get("points", "").split() for line in lines.iter("polyline")]
    longest = max(each.candidate.n_max for each in drafting if each.candidate.drafter)
    assert sorted(map(len, drawn)) == sorted(min(len(each.curve), longest) for each in drafting)


def test_trees_are_called_an_estimate(shown: Shown) -> None:
    found = Estimate("dflash-x", Path("x.gguf"), Lengths(4.26, {16: 5.39}))
    text = page(replace(shown, guessed=[found, Estimate(EVIL, Path("y.gguf"), reason="no dflash drafter")]))
    rows = [
        ["".join(cell.itertext()) for cell in row]
        for row in next(t for t in ET.fromstring(text).iter("tbody") if "5.39" in words(t))
    ]
    assert rows == [
        *(["dflash-x", "the chain", "4.26"], ["dflash-x", "16 nodes", "5.39"]),
        [EVIL, "no dflash drafter", "–"],
    ]
    assert "not runnable in llama.cpp" in text
    assert "What a tree would keep" not in page(shown)


def test_a_machine_where_nothing_pays_says_so() -> None:
    found = comparison("CPU")
    assert headline(found) == "Run this target without a drafter"
    text = page(found)
    assert "no gain here" in text
    assert "faster here" not in text


def test_a_search_shows_predicted_beside_measured() -> None:
    found = tuning()
    tree = ET.fromstring(page(found))
    assert found.found is not None
    assert "The search" in [h.text for h in tree.iter("h2")]
    broken = [line for line in tree.iter("polyline") if "guess" in (line.get("class") or "")]
    assert [len(line.get("points", "").split()) for line in broken] == [
        len(each) for each in found.found.predictions.values()
    ]
    assert "within 5 % of the best here" in words(tree) or "nothing pays" in words(tree)


@pytest.mark.parametrize("make", [lambda: comparison(evil=True), tuning])
def test_nothing_is_loaded_and_no_name_is_believed(make: object) -> None:
    assert callable(make)
    text = page(make())
    tree = ET.fromstring(text)
    allowed = {"html", "head", "meta", "title", "style", "body", "main", "header", "footer", "section", "div"}
    allowed |= {"h1", "h2", "p", "span", "b", "ul", "li", "pre", "details", "summary", "figure", "figcaption"}
    allowed |= {"table", "caption", "thead", "tbody", "tr", "th", "td", "svg", "desc", "rect", "text", "line"}
    allowed |= {"circle", "polyline"}
    assert {element.tag for element in tree.iter()} <= allowed
    names = {name for element in tree.iter() for name in element.attrib}
    assert not names & {"src", "href", "style", "onerror", "onload", "srcset", "action"}
    assert not re.search(r"url\(|@import|<script|<img", text)
    policy = [m.get("content") for m in tree.iter("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]
    if make is not tuning:
        assert EVIL in words(tree)


def test_every_value_lies_between_the_ends_of_its_axis() -> None:
    luck = random.Random(5)
    for _ in range(300):
        values = [luck.uniform(0, 10 ** luck.uniform(-3, 6)) for _ in range(luck.randint(1, 6))]
        for zero in (True, False):
            axis = Axis(values, (200, 10), zero)
            assert axis.low <= min(values)
            assert axis.high >= max(values)
            assert 2 <= len(axis.ticks) <= 11
            places = [axis.at(value) for value in sorted(values)]
            assert places == sorted(places, reverse=True)


def test_labels_of_dots_at_one_place_do_not_cover_each_other() -> None:
    svg = ET.fromstring(scatter("t", [Point(str(i), 5, 5, 5, 5, 0, "") for i in range(4)], "x", "y"))
    places = [(e.get("x"), e.get("y")) for e in svg.iter("text") if (e.text or "") in "0123" and not e.get("class")]
    assert len(set(places)) == 4


def test_no_values_make_no_plot() -> None:
    assert scatter("t", [], "x", "y") == ""
    assert curves("t", [Curve("a", (), 0)], "x", "y") == ""
