"""The report as one HTML file: no network, no script, readable in light and dark, on a phone and on paper."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

from dflash_convert import __version__
from dflash_convert.report import sections, summary
from dflash_convert.report.extras import Extras, gather
from dflash_convert.report.markup import tag, text, void
from dflash_convert.report.style import STYLE
from dflash_convert.validation.result import ValidationResult

# nothing may be loaded, whatever a name or text in the document says
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def render(result: ValidationResult, extras: Extras | None = None) -> str:
    """The whole document, well-formed as XML too.

    ``extras`` are what the two files tell, and are read from them when not given.
    """
    more = gather(result) if extras is None else extras
    body = [
        summary.header(result),
        sections.acceptance(result),
        sections.speed(result),
        sections.sweep(result),
        sections.memory(more),
        sections.checks(more),
        sections.thresholds(result),
        sections.identity(result, more),
        sections.glossary(),
    ]
    words = result.verdict if result.speed is None else f"{result.verdict}, {result.gain}"
    return document(f"{words}: {PurePath(result.drafter.path).name}", body)


def document(title: str, parts: Iterable[str]) -> str:
    """A page of ``parts``, which are markup; empty ones are left out."""
    body = [*parts, tag("footer", tag("p", text(f"dflash-convert {__version__}"), class_="soft"))]
    head = [
        void("meta", charset="utf-8"),
        void("meta", name="viewport", content="width=device-width, initial-scale=1"),
        void("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("title", text(title)),
        tag("style", STYLE),
    ]
    page = tag("head", "".join(head)) + tag("body", tag("main", "\n".join(part for part in body if part)))
    return f"<!DOCTYPE html>\n{tag('html', page, lang='en')}\n"
