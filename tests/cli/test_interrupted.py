"""What an interrupt leaves, and whether the same command then goes on: every command says what is so."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_convert.cli import main
from dflash_convert.errors import OutputError
from dflash_convert.system import ending_signals

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


def release_what_is_not_held() -> None:
    """As a lock around a progress bar does it, when the interrupt comes while it is made."""
    try:
        raise KeyboardInterrupt
    finally:
        {}["lock"]


def blame_the_output() -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt as error:
        raise OutputError("it cannot be removed") from error


@pytest.mark.parametrize("library", [release_what_is_not_held, blame_the_output])
def test_an_interrupt_stays_one_when_a_cleanup_fails(
    library: Callable[[], None],
    fixtures: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ctrl-C within the lock of a bar ended in "unexpected AttributeError" and exit code 1."""
    monkeypatch.setattr("dflash_convert.inspect_file.inspect", lambda *_, **__: library())
    with pytest.raises(SystemExit) as ended:
        main(["inspect", str(fixtures / "tiny-js" / "target-bf16.gguf")])
    assert ended.value.code == 130
    assert capsys.readouterr().err.startswith("ERROR interrupted\n")


SWALLOWED = """
import signal, sys, time, weakref
import dflash_convert.inspect_file as module
from dflash_convert.cli import main

class Dying:
    def __del__(self):
        if sys.argv[1] == "finalizer":
            signal.raise_signal(int(sys.argv[2]))

def inspect(*_, **__):
    dying = Dying()
    watched = weakref.ref(dying, lambda _: signal.raise_signal(int(sys.argv[2])) if sys.argv[1] == "callback" else None)
    del dying
    print("goes on", flush=True)
    time.sleep(20)
    sys.exit("nothing came")

module.inspect = inspect
main(["inspect", sys.argv[3]])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, *ending_signals()], ids=lambda number: number.name)
@pytest.mark.parametrize("place", ["finalizer", "callback"])
def test_an_interrupt_that_python_swallows_comes_again(place: str, number: signal.Signals, fixtures: Path) -> None:
    """Each import runs such a callback; what is raised there can only be printed."""
    call = [sys.executable, "-c", SWALLOWED, place, str(int(number)), str(fixtures / "tiny-js" / "target-bf16.gguf")]
    done = subprocess.run(  # whoever runs the tests may ignore the signal (nohup does), and children inherit that
        call,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    assert done.stdout == "goes on\n"
    assert done.stderr.lstrip().startswith("ERROR interrupted\n")
    assert done.returncode == (130 if number == signal.SIGINT else -number)


TWICE = """
import signal, sys
import dflash_convert.inspect_file as module
from dflash_convert.cli import interrupts, main

def inspect(*_, **__):
    try:
        signal.raise_signal(int(sys.argv[1]))
    finally:
        signal.raise_signal(int(sys.argv[2]))
        print("removed what was half written", flush=True)

module.inspect = inspect
interrupts.CLEANUP = float(sys.argv[3])
main(["inspect", sys.argv[4]])
"""


@pytest.mark.parametrize("first", [signal.SIGINT, *ending_signals()], ids=lambda number: number.name)
@pytest.mark.parametrize("time", ["soon", "later"])
def test_a_second_interrupt_breaks_no_cleanup(time: str, first: signal.Signals, fixtures: Path) -> None:
    """Of a cleanup that takes long it is the way out."""
    path, patience = fixtures / "tiny-js" / "target-bf16.gguf", "60" if time == "soon" else "0"
    done = subprocess.run(
        [sys.executable, "-c", TWICE, str(int(first)), str(int(signal.SIGINT)), patience, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        preexec_fn=lambda: [signal.signal(number, signal.SIG_DFL) for number in (first, signal.SIGINT)],
    )
    assert done.stdout == ("removed what was half written\n" if time == "soon" else "")
    assert done.stderr.lstrip().startswith("ERROR interrupted\n")
    if time == "soon":
        assert done.returncode == (130 if first == signal.SIGINT else -first)
