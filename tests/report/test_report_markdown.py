"""The Markdown section of a model card."""

from __future__ import annotations

from report_results import result

from dflash_convert.report.markdown import escape, render


def test_totals_prompts_and_sweep() -> None:
    page = render(result("n"))
    assert "1,331 of 3,244 drafts accepted (48.1 %), mean accepted length 2.64; greedy text identical but for" in page
    assert (
        "**healthy**, here faster: 1.91 x the speed without the drafter \\(1.85 to 1.98; 3 rounds of 2 prompts\\)"
        in page
    )
    assert "| code 1 | 2142 | 1331 | 3244 | 62.0 % | 2.64 | 91.5 | 48.0 |" in page
    assert "Recommended here: n-max 4; faster than no drafter." in page


def test_names_cannot_break_out_of_a_line_or_cell() -> None:
    assert escape("a|b\n# c <b>") == r"a\|b \# c &lt;b&gt;"
    assert escape("![x](http://e/y.png)") == r"\!\[x\]\(http:\/\/e/y.png\)"
    page = render(result())
    assert "<script" not in page
    rows = [line for line in page.splitlines() if line.startswith("| ") and "alert" in line]
    assert len(rows) == 1
    page.encode("utf-8")
