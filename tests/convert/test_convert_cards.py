"""A drafter's README.md is read for its facts; what is damaged in it is left out, and said."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dflash_convert.cli import main
from dflash_convert.metadata import MAX_CARD


@pytest.fixture
def drafter(fixtures: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(fixtures / "tiny-js/drafter", tmp_path / "drafter"))


def convert(drafter: Path, fixtures: Path, *more: str) -> int:
    out = drafter.parent / "out.gguf"
    with pytest.raises(SystemExit) as ended:
        main([str(drafter), "--target-model-dir", str(fixtures / "tiny-js/target"), "-o", str(out), *more])
    assert out.exists() is (ended.value.code == 0)
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("front", "told"),
    [
        (b"a: [", "the front matter cannot be read (while parsing"),
        (b"license: caf\xe9", "the front matter cannot be read ('utf-8' codec"),
        (b"a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        (b"license: true", "license is True, expected texts"),
        (b"license: [1, 2]", "license is [1, 2], expected texts"),
        (b"language: [en, no]", "language is ['en', False], expected texts"),
        (b"tags: [1, null]", "tags is [1, None], expected texts"),
        (b"base_model: [null]", "base_model is [None], expected texts"),
        (b"version: 1.0", "version is 1.0, expected text"),
        (b"model_name: 7", "model_name is 7, expected text"),
    ],
)
def test_a_damaged_card(
    front: bytes, told: str, drafter: Path, fixtures: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (drafter / "README.md").write_bytes(b"---\n" + front + b"\n---\n")
    assert convert(drafter, fixtures) == 0
    err = capfd.readouterr().err
    assert "  WARNING: README.md: " in err
    assert told in err
    assert "; left out" in err


def test_a_card_that_is_too_long(drafter: Path, fixtures: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (drafter / "README.md").write_bytes(b"---\nlicense: mit\n---\n" + bytes(MAX_CARD))
    assert convert(drafter, fixtures) == 0
    assert "README.md: larger than 4 MB" in " ".join(capfd.readouterr().err.split())


def test_the_rest_of_a_damaged_card_counts(drafter: Path, fixtures: Path) -> None:
    from dflash_convert.container.reader import open_gguf

    (drafter / "README.md").write_text("---\nlicense: mit\nmodel_name: 7\n---\n")
    assert convert(drafter, fixtures) == 0
    keys = open_gguf(drafter.parent / "out.gguf").keys
    assert keys["general.license"].value == "mit"
    assert keys["general.name"].value == "Drafter"


def test_a_sound_card_is_used(drafter: Path, fixtures: Path) -> None:
    from dflash_convert.container.reader import open_gguf

    (drafter / "README.md").write_text("---\nlicense: [mit, apache-2.0]\ntags: [a, b]\nmodel_name: Mine\n---\n")
    assert convert(drafter, fixtures) == 0
    keys = open_gguf(drafter.parent / "out.gguf").keys
    assert keys["general.license"].value == "mit,apache-2.0"
    assert list(keys["general.tags"].value) == ["a", "b"]
    assert keys["general.name"].value == "Mine"


def test_a_config_with_a_number_as_its_name(drafter: Path, fixtures: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = (drafter / "config.json").read_text()
    (drafter / "config.json").write_text(config.replace("{", '{"_name_or_path": 5, ', 1))
    assert convert(drafter, fixtures) == 0
    assert "WARNING: config.json: _name_or_path is 5, expected a string" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--target-name", "../../x"), "--target-name ../../x holds a slash"),
        (("--block-size", "99999"), "99999 is not in the range 2<=x<=4096"),
    ],
)
def test_values_that_no_file_may_hold(
    more: tuple[str, ...], told: str, drafter: Path, fixtures: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert convert(drafter, fixtures, *more) == 2
    assert told in capfd.readouterr().err
