"""The report in a real browser: rendered, nothing on the console, nothing wider than the screen."""

from __future__ import annotations

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

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
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


def test_it_renders_without_console_messages(browser: str, page: Path, tmp_path: Path) -> None:
    done = open_page(browser, page, tmp_path, "--dump-dom")
    assert done.returncode == 0
    assert done.stdout.count("<svg") == 6
    assert "<script" not in done.stdout
    assert "CONSOLE" not in done.stderr


@pytest.mark.parametrize(("width", "dark"), [(1100, False), (1100, True), (500, False)])
def test_the_screenshot_is_not_blank(browser: str, page: Path, tmp_path: Path, width: int, dark: bool) -> None:
    image = tmp_path / "page.png"
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    size = f"--window-size={width},1400"
    done = open_page(browser, page, tmp_path, size, "--hide-scrollbars", f"--screenshot={image}", *scheme)
    assert done.returncode == 0
    assert "CONSOLE" not in done.stderr
    levels = brightness(image)
    background = max(set(levels), key=levels.count)
    assert (background < 60) if dark else (background > 200)
    assert len(set(levels)) > 40


@pytest.mark.parametrize("dark", [False, True])
def test_a_comparison_renders(browser: str, tmp_path: Path, dark: bool) -> None:
    page, image = tmp_path / "compare.html", tmp_path / "page.png"
    page.write_text(contest_page(comparison(evil=True)), encoding="utf-8")
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    size = ("--window-size=800,900", "--hide-scrollbars", f"--screenshot={image}")
    done = open_page(browser, page, tmp_path, *size, *scheme)
    assert done.returncode == 0
    assert "CONSOLE" not in done.stderr
    levels = brightness(image)
    background = max(set(levels), key=levels.count)
    assert (background < 60) if dark else (background > 200)
    assert len(set(levels)) > 40


def test_no_page_of_a_contest_is_wider_than_its_window(browser: str, tmp_path: Path) -> None:
    """Every page in frames of several widths; a frame says how wide its content is."""
    pages = {"compare": comparison(evil=True), "nothing pays": comparison("CPU", evil=True), "tune": tuning()}
    frames = []
    for name, shown in pages.items():
        text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*/>', "", contest_page(shown))
        for width in (360, 800, 1280):
            frame = (
                f'<iframe title="{name} {width}" style="width:{width}px;height:900px;border:0" srcdoc="{escape(text)}">'
            )
            frames.append(f"{frame}</iframe>")
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


def test_a_phone_needs_no_sideways_scrolling(browser: str, page: Path, tmp_path: Path) -> None:
    """Only tables may scroll, within their own boxes: a probe compares the page's width with the window's."""
    probe = tmp_path / "probe.html"
    script = "document.title = document.documentElement.scrollWidth + ' of ' + window.innerWidth"
    text = page.read_text(encoding="utf-8")
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*/>', "", text)
    probe.write_text(text.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    done = open_page(browser, probe, tmp_path, "--window-size=500,900", "--dump-dom")
    found = re.search(r"<title>(\d+) of (\d+)</title>", done.stdout)
    assert found
    assert int(found[1]) <= int(found[2])
