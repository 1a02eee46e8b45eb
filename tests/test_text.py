"""Text for people: harmless, short, in columns."""

from __future__ import annotations

from dflash_convert.text import columns, one_line, printable, short, shorten


def test_nothing_of_a_file_drives_the_terminal() -> None:
    assert printable("a\x1b[2J\u202eb\ud800\tc\nd") == "a\\x1b[2J\\u202eb\\ud800\tc\nd"
    assert one_line("a\r\nb") == "a\\r\\nb"
    assert printable("Grüße 漢字 🙂") == "Grüße 漢字 🙂"


def test_a_cut_is_seen() -> None:
    assert shorten("a" * 60) == "a" * 60
    assert shorten("a" * 61) == "a" * 59 + "…"
    assert (short(0.1 + 0.2), short(b"\xff"), short("\x00")) == ("0.3", "'\\\\xff'", "'\\x00'")
    assert len(short("x" * 99)) == 60


def test_columns() -> None:
    rows = [("type", "count", "note"), None, ("Q8_0", "7", ""), ("F32", "1,400", "small")]
    assert columns(rows, "<><") == [
        "type  count  note",
        "----  -----  -----",
        "Q8_0      7",
        "F32   1,400  small",
    ]
    assert columns([("a", "b", "c"), ("aa", "bb", "cc")], "<>") == ["a    b   c", "aa  bb  cc"]
