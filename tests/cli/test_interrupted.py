"""What an interrupt leaves, and whether the same command then goes on: every command says what is so."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from dflash_convert.cli import main

KEPT, GOES_ON, ANEW = (
    "finished runs are kept",
    "the same command goes on:",
    "the same command starts again from the beginning:",
)
# the line, where the interrupt comes, what is said of what is left, and of the command
CASES = {
    "compare": ("compare t.gguf d.gguf", "contest.prepare.prepare", KEPT, GOES_ON),
    "compare --targets": (
        "compare --targets t.gguf u.gguf d",
        "contest.siblings.compare_targets",
        KEPT,
        GOES_ON,
    ),
    "compare --fresh": ("compare t d --fresh", "contest.prepare.prepare", "nothing was kept", ANEW),
    "tune": ("tune t.gguf d.gguf", "contest.prepare.prepare", KEPT, GOES_ON),
    "tune --fresh": ("tune t d --fresh", "contest.prepare.prepare", "nothing was kept", ANEW),
    "publish": ("publish dir owner/name", "release.publish.publish", "files that were uploaded stay", GOES_ON),
    "convert": ("dir --target-model-dir dir", "hub.resolve_target", "no half-written file is left", ANEW),
    "convert from the Hub": ("o/d --target-model-dir dir", "hub.resolve_drafter", "from the Hub is kept", GOES_ON),
    "check": ("check d.gguf dir", "hub.resolve_target", "no half-written file is left", ANEW),
    "check from the Hub": ("check d.gguf o/t", "hub.resolve_target", "from the Hub is kept", GOES_ON),
    "verify from the Hub": ("verify d.gguf o/d", "hub.resolve_drafter", "from the Hub is kept", GOES_ON),
    "validate": ("validate d.gguf t.gguf", "validation.run.prepare", "no half-written file is left", ANEW),
    "quantize": ("quantize d.gguf o.gguf q4_0", "quantization.quantize_file", "o.gguf is as it was", ANEW),
    "package": ("package d.gguf -o out", "release.package.build_package", "out is as it was", ANEW),
    "inspect": ("inspect d.gguf", "inspect_file.inspect", "no half-written file is left", ANEW),
    "doctor": ("doctor", "doctor.diagnose", "no half-written file is left", ANEW),
}


@pytest.mark.parametrize("case", CASES)
def test_an_interrupted_command_says_what_the_same_line_does(
    case: str, fixtures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line, place, left, then = CASES[case]

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    (tmp_path / "dir").symlink_to(fixtures / "tiny-js" / "drafter")
    for name in ("d.gguf", "t.gguf"):
        (tmp_path / name).symlink_to(fixtures / "tiny-js" / "target-bf16.gguf")
    module, _, name = place.rpartition(".")
    __import__(f"dflash_convert.{module}")
    monkeypatch.setattr(f"dflash_convert.{place}", interrupt)
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(line))
    assert ended.value.code == 130
    err = capsys.readouterr().err
    assert f"{left}; {then}\n  dflash-convert {line}\n" in err
    assert "nothing was written" not in err
