"""How this installation came about, so that a tip names a command that works for it."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement

PACKAGE = "dflash-convert"
CHECKOUT = Path(__file__).resolve().parents[1]


def install_command(extra: str = "", prefix: Path = Path(sys.prefix), checkout: Path = CHECKOUT) -> str:
    """The command that adds ``extra`` (``engine``, ``cluster``) to this installation, or mends it without one.

    A checkout or directory that pip was given is named again (PEP 610's ``direct_url.json``); anything else gets the
    packages that the extra asks for, since this one is on no index.  Without metadata it is the checkout beside the
    package, where there is one.
    """
    try:
        distribution = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return _pip(checkout, extra, editable=True) if (checkout / "pyproject.toml").is_file() else _unknown(extra)
    wanted = [Requirement(text) for text in distribution.requires or ()]
    names = [shlex.quote(f"{r.name}{r.specifier}") for r in wanted if extra and _of_extra(r, extra)]
    if names and (prefix / "pipx_metadata.json").is_file():
        return f"pipx inject {PACKAGE} {' '.join(names)}"
    directory, editable = _directory(distribution.read_text("direct_url.json"))
    if directory is not None:
        return _pip(directory, extra, editable)
    root = Path(str(distribution.locate_file("")))
    if (root / "pyproject.toml").is_file():  # metadata that a build left in the checkout
        return _pip(root.resolve(), extra, editable=True)
    return f"pip install {' '.join(names)}" if names else _unknown(extra)


def _of_extra(wanted: Requirement, extra: str) -> bool:
    return wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}) and _applies(wanted, extra)


def _applies(wanted: Requirement, extra: str) -> bool:
    return wanted.marker is None or wanted.marker.evaluate({"extra": extra})


def _directory(text: str | None) -> tuple[Path | None, bool]:
    """The directory that pip installed from, while it is still there, and whether it was installed as editable."""
    try:
        document = json.loads(text or "{}")
        url = urlsplit(document["url"])
        path = Path(unquote(url.path))
        if url.scheme == "file" and "dir_info" in document and (path / "pyproject.toml").is_file():
            return path, document["dir_info"].get("editable") is True
    except (KeyError, TypeError, ValueError, AttributeError):
        pass
    return None, False


def _pip(directory: Path, extra: str, editable: bool) -> str:
    what = shlex.quote(f"{directory}[{extra}]" if extra else str(directory))
    return f"pip install {'-e ' if editable else ''}{what}"


def _unknown(extra: str) -> str:
    what = f"'.[{extra}]'" if extra else "."
    return f"pip install {what} in a checkout of {PACKAGE}"
