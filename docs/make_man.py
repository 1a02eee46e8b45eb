"""Print the man page, made from the commands' own --help as docs/cli.md is; ``make man`` writes it to a file.

python docs/make_man.py > dflash-convert.1
"""

from __future__ import annotations

from make_cli_reference import EXIT_CODES, helps

from dflash_convert import __doc__ as summary
from dflash_convert import __version__


def page() -> str:
    """roff: one section a command, the help as it is printed."""
    first = str(summary).splitlines()[0].rstrip(".")
    lines = [
        f'.TH DFLASH-CONVERT 1 "" "dflash-convert {__version__}"',
        ".SH NAME",
        f"dflash-convert \\- {_roff(first)}",
    ]
    for title, text in helps():
        lines += [f'.SH "{title.upper()}"', ".nf", *map(_roff, text.splitlines()), ".fi"]
    lines += [".SH EXIT STATUS"]
    for code, meaning in EXIT_CODES:
        lines += [".TP", _roff(code), _roff(meaning.replace("`", ""))]
    return "\n".join(lines) + "\n"


def _roff(line: str) -> str:
    """Text that is no request and holds no escape."""
    line = line.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{line}" if line.startswith((".", "'")) else line


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201
