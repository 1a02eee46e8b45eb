"""Tips that name an installation command: one that works for this installation, and no name that is on no index."""

from __future__ import annotations

import importlib.metadata
import json
import re
from pathlib import Path
from typing import Any

import pytest

from dflash_convert import installed
from dflash_convert.engine.find import install_tip
from dflash_convert.installed import install_command

ROOT = Path(__file__).resolve().parents[2]


class Distribution:
    root = Path("/nowhere")
    requires = ("numpy>=1.26", 'xllamacpp>=2026.10; extra == "engine"', 'ruff; extra == "dev"')

    def __init__(self, url: dict[str, Any] | str | None) -> None:
        self.url = url

    def locate_file(self, path: str) -> Path:
        return self.root / path

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self.url if self.url is None or isinstance(self.url, str) else json.dumps(self.url)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    place = tmp_path / "a checkout"
    place.mkdir()
    (place / "pyproject.toml").touch()
    return place


def command(monkeypatch: pytest.MonkeyPatch, url: dict[str, Any] | str | None, prefix: Path) -> str:
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: Distribution(url))
    return install_command("engine", prefix)


def test_a_directory_is_named_again(monkeypatch: pytest.MonkeyPatch, checkout: Path) -> None:
    url = {"url": checkout.as_uri(), "dir_info": {"editable": True}}
    assert command(monkeypatch, url, checkout) == f"pip install -e '{checkout}[engine]'"
    url["dir_info"] = {}
    assert command(monkeypatch, url, checkout) == f"pip install '{checkout}[engine]'"
    (checkout / "pyproject.toml").unlink()
    assert command(monkeypatch, url, checkout) == "pip install 'xllamacpp>=2026.10'"


@pytest.mark.parametrize("url", [None, {"url": "https://a.example/x.whl", "archive_info": {}}, "{", "[]", '{"url": 3}'])
def test_else_the_packages_of_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: Any) -> None:
    assert command(monkeypatch, url, tmp_path) == "pip install 'xllamacpp>=2026.10'"
    (tmp_path / "pipx_metadata.json").touch()
    assert command(monkeypatch, url, tmp_path) == "pipx inject dflash-convert 'xllamacpp>=2026.10'"


def test_metadata_in_the_checkout(monkeypatch: pytest.MonkeyPatch, checkout: Path) -> None:
    monkeypatch.setattr(Distribution, "root", checkout)
    assert command(monkeypatch, None, checkout / "x") == f"pip install -e '{checkout}[engine]'"


def test_without_metadata_the_checkout_beside_the_package(monkeypatch: pytest.MonkeyPatch, checkout: Path) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    assert install_command("engine", checkout, checkout) == f"pip install -e '{checkout}[engine]'"
    assert install_command("", checkout, checkout / "gone") == "pip install . in a checkout of dflash-convert"


def test_no_tip_names_this_package_as_if_it_were_on_an_index() -> None:
    """Neither the code nor the pages; a command in a message comes from ``install_command``."""
    for path in [*(ROOT / "dflash_convert").rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]:
        found = re.search(r"pip install (-\w+ )*['\"]?dflash[-_]convert", path.read_text(encoding="utf-8"))
        assert not found, f"{path}: {found}"
    assert install_tip().startswith(installed.install_command("engine"))
