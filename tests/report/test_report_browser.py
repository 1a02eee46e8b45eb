"""The report in a real browser: rendered, nothing on the console, nothing wider than the screen."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from html import escape
from pathlib import Path

import pytest
from contest_pages import comparison, tuning
from contest_pages import page as contest_page
from report_results import EXTRAS, result

from dflash_convert.report.html import render
from dflash_convert.validation.result import Failure

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
WIDTHS = (360, 800, 1280)
QUIET = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")


@pytest.fixture(scope="module")
def browser() -> str:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"needs a browser: none of {', '.join(BROWSERS)} is installed")
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(result(), EXTRAS), encoding="utf-8")
    return path


def open_page(browser: str, page: Path, tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    call = [browser, "--headless", "--no-sandbox", "--disable-gpu", *QUIET, "--enable-logging=stderr", "--v=0"]
    call += [f"--user-data-dir={tmp_path / 'profile'}", *options, page.as_uri()]
    return subprocess.run(call, capture_output=True, text=True, timeout=120, check=False)


FAILURE = Failure("oom", "out of memory", "use a smaller context", "a line of the log " * 40)


def pages() -> dict[str, str]:
    """Every kind of page."""
    broken = dataclasses.replace(result("n" * 80), verdict="broken", gain="slower", exit_code=6)
    failed = dataclasses.replace(result(), verdict="engine-failure", failure=FAILURE)
    found = {"validate": result(), "broken": broken, "failed": failed}
    contests = {"compare": comparison(evil=True), "nothing pays": comparison("CPU", evil=True), "tune": tuning()}
    return {name: render(each, EXTRAS) for name, each in found.items()} | {
        name: contest_page(each) for name, each in contests.items()
    }


def framed(page: str, width: int, name: str) -> str:
    """The page in a frame of this width, since a browser's own window has a least width; without its policy, which
    would hold here too."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*/>', "", page)
    style = f"width:{width}px;height:1400px;border:0"
    return f'<iframe title="{name} {width}" style="{style}" srcdoc="{escape(text)}"></iframe>'


def test_it_renders_without_console_messages(browser: str, page: Path, tmp_path: Path) -> None:
    done = open_page(browser, page, tmp_path, "--dump-dom")
    assert done.returncode == 0
    assert done.stdout.count("<svg") == 5
    assert "<script" not in done.stdout
    assert "CONSOLE" not in done.stderr


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("kind", ["validate", "compare"])
def test_the_screenshot_is_not_blank(browser: str, tmp_path: Path, kind: str, dark: bool) -> None:
    page, image = tmp_path / "page.html", tmp_path / "page.png"
    frames = "".join(framed(pages()[kind], width, kind) for width in WIDTHS)
    page.write_text(f'<!DOCTYPE html><body style="margin:0;white-space:nowrap">{frames}</body>', encoding="utf-8")
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    size = (f"--window-size={sum(WIDTHS)},900", "--hide-scrollbars", f"--screenshot={image}")
    done = open_page(browser, page, tmp_path, *size, *scheme)
    assert done.returncode == 0
    assert "CONSOLE" not in done.stderr
    levels = brightness(image)
    background = max(set(levels), key=levels.count)
    assert (background < 60) if dark else (background > 200)
    assert len(set(levels)) > 40


def test_no_page_is_wider_than_its_window(browser: str, tmp_path: Path) -> None:
    """Only tables may scroll, within their own boxes. Every page in frames of a phone's, a tablet's and a screen's
    width; a frame says how wide its content is."""
    frames = [framed(page, width, name) for name, page in pages().items() for width in WIDTHS]
    own = "f.title + ' ' + f.contentDocument.documentElement.scrollWidth"
    measure = f"[...document.querySelectorAll('iframe')].map(f => {own})"
    script = f"onload = () => document.title = {measure}.join(';')"
    probe = tmp_path / "probe.html"
    probe.write_text(f"<!DOCTYPE html><body>{''.join(frames)}<script>{script}</script></body>", encoding="utf-8")
    done = open_page(browser, probe, tmp_path, "--window-size=1400,900", "--dump-dom")
    found = re.search(r"<title>([^<]*)</title>", done.stdout)
    assert found
    rows = [row.rsplit(" ", 2) for row in found[1].split(";")]
    assert len(rows) == len(frames)
    assert [row for row in rows if int(row[2]) > int(row[1])] == []


def brightness(image: Path) -> list[int]:
    """Every 97th byte of a PNG's pixels, undone filters included, without an imaging library."""
    import struct
    import zlib

    data, at, packed = image.read_bytes(), 8, b""
    width = height = depth = 0
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
            assert (depth, colour) in ((8, 2), (8, 6))
            depth = 3 if colour == 2 else 4
        elif kind == b"IDAT":
            packed += body
        at += length + 12
    raw, stride = zlib.decompress(packed), width * depth
    previous, pixels = bytearray(stride), bytearray()
    for row in range(height):
        start = row * (stride + 1)
        line = unfilter(raw[start], bytearray(raw[start + 1 : start + 1 + stride]), previous, depth)
        if row % 5 == 0:
            pixels += line[::depth]
        previous = line
    return list(pixels[::7])


def unfilter(kind: int, line: bytearray, above: bytearray, depth: int) -> bytearray:
    """One row of a PNG, by the rules of its specification."""
    for i in range(len(line)):
        left = line[i - depth] if i >= depth else 0
        up, corner = above[i], above[i - depth] if i >= depth else 0
        if kind == 1:
            line[i] = (line[i] + left) & 255
        elif kind == 2:
            line[i] = (line[i] + up) & 255
        elif kind == 3:
            line[i] = (line[i] + (left + up) // 2) & 255
        elif kind == 4:
            guess = min((left, up, corner), key=lambda v: abs(left + up - corner - v))
            line[i] = (line[i] + guess) & 255
    return line
