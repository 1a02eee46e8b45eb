"""Whole or nothing, on every kind of system: new, replaced, refused, failed, and what killed runs leave."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from portable_system import environment

from dflash_convert import output
from dflash_convert.errors import OutputError, PairingError
from dflash_convert.output import LOCK, OLD, Hidden, OutputFile, withheld, write_text

Writer = Callable[..., None]


def file(path: Path, text: str, force: bool, before_the_end: Callable[[], None] = lambda: None) -> None:
    with OutputFile(path, len(text), force=force) as out:
        out.write_at(len(text) // 2, text[len(text) // 2 :].encode())
        out.write_at(0, text[: len(text) // 2].encode())
        before_the_end()
        out.commit()


def proved(path: Path, text: str, force: bool, before_the_end: Callable[[], None] = lambda: None) -> None:
    with withheld([path], force=force, keep_failed=False) as (hidden,):
        write_text(hidden, text)
        before_the_end()


def whole_directory(path: Path, text: str, force: bool, before_the_end: Callable[[], None] = lambda: None) -> None:
    def check() -> None:
        if os.path.lexists(path) and not force:
            raise output.exists_error(path)

    with output.whole_directory(path, check) as work:
        (work / "text").write_text(text)
        before_the_end()


WRITERS = {"file": file, "withheld": proved, "directory": whole_directory}


@pytest.fixture(params=WRITERS)
def write(request: pytest.FixtureRequest) -> Writer:
    return WRITERS[request.param]


def held(path: Path) -> str:
    return (path / "text" if path.is_dir() else path).read_text()


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


def test_new_then_refused_then_replaced(system: str, write: Writer, tmp_path: Path) -> None:
    path = tmp_path / "x"
    write(path, "first", False)
    assert held(path) == "first"
    with pytest.raises(OutputError, match="x exists already") as refused:
        write(path, "second", False)
    assert refused.value.tip == "--force replaces it; another name leaves it as it is"
    assert held(path) == "first"
    write(path, "third", True)
    assert (held(path), names(tmp_path)) == ("third", ["x"])


def test_what_appears_meanwhile_is_not_replaced(system: str, write: Writer, tmp_path: Path) -> None:
    path = tmp_path / "x"
    with pytest.raises(OutputError, match="x exists already"):
        write(path, "late", False, lambda: write(path, "early", False))
    assert (held(path), names(tmp_path)) == ("early", ["x"])


@pytest.mark.parametrize("write", [file, proved])
def test_something_else_that_appears_meanwhile_stays_with_force_too(system: str, write: Writer, tmp_path: Path) -> None:
    """A directory where a file was to be replaced."""
    path = tmp_path / "x"
    path.write_text("old")

    def becomes_a_directory() -> None:
        path.unlink()
        path.mkdir()
        (path / "text").write_text("precious")

    with pytest.raises(OutputError):
        write(path, "new", True, becomes_a_directory)
    assert (held(path), names(tmp_path)) == ("precious", ["x"])


@pytest.mark.parametrize("error", [OutputError("no"), OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("old", [False, True])
def test_a_failure_leaves_what_was_there(
    system: str, write: Writer, old: bool, error: BaseException, tmp_path: Path
) -> None:
    path = tmp_path / "x"
    if old:
        write(path, "old", False)

    def fail() -> None:
        raise error

    with pytest.raises(type(error) if not isinstance(error, OSError) else (OutputError, OSError)):
        write(path, "new", old, fail)
    assert names(tmp_path) == (["x"] if old else [])
    assert not old or held(path) == "old"


def test_failed_files_are_kept_when_asked(system: str, tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]

    def refused(paths: list[Path], keep: bool) -> PairingError:
        with pytest.raises(PairingError) as failed:  # noqa: PT012, SIM117
            with withheld(paths, force=False, keep_failed=keep) as hidden:
                write_text(hidden[0], "text")
                if paths[0].name == "b":
                    paths[0].write_text("other")
                raise PairingError("not a pair")
        return failed.value

    assert refused(paths, True).tip is None
    assert names(tmp_path) == ["a"]
    assert f"was not kept: {paths[1]} exists already" in str(refused(paths[1:], True).tip)
    assert (paths[1].read_text(), names(tmp_path)) == ("other", ["a", "b"])
    assert "--keep-failed" in str(refused([tmp_path / "c"], False).tip)
    assert names(tmp_path) == ["a", "b"]


def test_no_file_gets_its_name_when_another_cannot(system: str, tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(OutputError, match="b exists already"):  # noqa: PT012, SIM117
        with withheld(paths, force=False, keep_failed=False) as places:
            for place in places:
                write_text(place, "new")
            paths[1].write_text("other")
    assert (names(tmp_path), paths[1].read_text()) == (["b"], "other")


# --- what killed runs leave


def leftover(path: Path, *, old: bool = False) -> Path:
    """The hidden directory of a run that was killed while it made ``path``."""
    hidden = path.parent / f".{path.name}.0123abcd.partial"
    hidden.mkdir()
    (hidden / LOCK).touch()
    (hidden / path.name).write_text("part")
    if old:
        (hidden / OLD).mkdir()
        (hidden / OLD / "text").write_text("old")
    return hidden


def test_the_next_run_removes_what_a_killed_one_left(system: str, write: Writer, tmp_path: Path) -> None:
    for path in (tmp_path / "x", tmp_path / "other"):
        leftover(path)
    (tmp_path / ".x.89abcdef.partial").mkdir()  # killed before it had its lock
    (tmp_path / ".x.00000000.partial").mkdir()
    (tmp_path / ".x.00000000.partial" / "half-swept").touch()
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "text").write_text("years")
    (tmp_path / ".x.11111111.partial").symlink_to(precious)
    write(tmp_path / "x", "new", False)
    assert names(tmp_path) == [".other.0123abcd.partial", ".x.11111111.partial", "precious", "x"]
    assert held(precious) == "years"


def test_what_a_living_run_holds_stays(system: str, write: Writer, tmp_path: Path) -> None:
    path = tmp_path / "x"
    with Hidden(path) as hidden:
        hidden.content.write_text("working")
        write(path, "meanwhile", False)
        assert hidden.content.read_text() == "working"
    assert names(tmp_path) == ["x"]


def test_a_directory_set_aside_by_a_killed_run_returns(system: str, tmp_path: Path) -> None:
    """Where two names cannot be exchanged, a kill between two renames leaves the old one aside."""
    path = tmp_path / "x"
    leftover(path, old=True)
    with pytest.raises(OutputError, match="exists already"):
        whole_directory(path, "new", False)
    assert (held(path), names(tmp_path)) == ("old", ["x"])


def test_an_old_directory_that_was_replaced_goes(system: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    whole_directory(path, "new", False)
    leftover(path, old=True)
    whole_directory(path, "newer", True)
    assert (held(path), names(tmp_path)) == ("newer", ["x"])


def test_an_error_between_the_two_renames_brings_the_old_directory_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    whole_directory(path, "old", False)
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if target == path and self.name == path.name:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr("dflash_convert.system.renameat2", lambda *_: False)
    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(KeyboardInterrupt):
        whole_directory(path, "new", True)
    assert (held(path), names(tmp_path)) == ("old", ["x"])


# --- real kills: a program dies at each of its calls in turn

PROGRAM = """
import os, sys, traceback
from pathlib import Path
import test_output as t
import dflash_convert.system as system

count, last = [0], [0]
def dies(module, name):
    real = getattr(module, name)
    def call(*args, **given):
        count[0] += 1
        if count[0] == last[0]:
            os._exit(137)
        done = real(*args, **given)
        count[0] += 1
        if count[0] == last[0]:
            os._exit(137)
        return done
    setattr(module, name, call)
for line in sys.stdin:  # a process of its own for each, without loading everything again
    process = os.fork()
    if process:
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
        continue
    try:
        last[0] = int(line)
        for name in ("open", "mkdir", "link", "rename", "replace", "unlink", "rmdir", "fsync", "ftruncate", "lseek"):
            dies(os, name)
        dies(system, "renameat2")
        t.WRITERS[sys.argv[1]](Path(sys.argv[2]), "new", True)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
"""


@contextmanager
def program_on(portable: bool, site: Path, *arguments: object) -> Iterator[Callable[[int], int]]:
    env = environment(site) if portable else dict(os.environ)
    tests = map(str, (Path(__file__).parent, Path(__file__).parent.parent))
    env["PYTHONPATH"] = os.pathsep.join([*filter(None, [env.get("PYTHONPATH")]), *tests])
    call = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    with subprocess.Popen(call, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None

        def run(number: int) -> int:
            print(number, file=program.stdin, flush=True)
            return int(program.stdout.readline())

        yield run
        program.stdin.close()


@pytest.mark.parametrize("portable", [False, True], ids=["Linux", "Windows"])
@pytest.mark.parametrize("kind", WRITERS)
def test_killed_at_every_call_in_turn(kind: str, portable: bool, tmp_path: Path) -> None:
    """The output is the old or the new one; a directory may be aside for a moment where two names cannot be
    exchanged, and then the next run, even one that refuses, brings it back."""
    write, place = WRITERS[kind], tmp_path / "place"
    place.mkdir()
    path = place / "x"
    write(path, "old", False)
    seen = set()
    with program_on(portable, tmp_path / "site", kind, path) as run:
        for number in range(1, 200):
            code = run(number)
            if not path.exists():
                seen.add("aside")
                with pytest.raises(OutputError, match="exists already"):
                    write(path, "refused", False)
            assert held(path) in ("old", "new"), number
            seen.add(held(path))
            if code == 0:
                break
            assert code == 137
            assert {name for name in names(place) if not name.startswith(".x.")} == {"x"}
            write(path, "old", True)
            assert names(place) == ["x"], number  # swept
    assert code == 0
    assert number > 5
    assert seen - {"aside"} == {"old", "new"}
    assert ("aside" in seen) is (portable and kind == "directory")


@pytest.mark.parametrize(
    ("free", "need", "told"),
    [
        (300_000, 900_000, "0.3 MiB free, the output needs 0.9 MiB"),
        (0, 3 * 10**9, "0.000 MiB free, .* 2.79 GiB"),
    ],
)
def test_too_little_space_is_told_in_sizes_that_can_be_read(
    free: int, need: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = output.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(output.shutil, "disk_usage", lambda _: usage._replace(free=free))
    with pytest.raises(OutputError, match=told):
        output.check_space(tmp_path, need)
