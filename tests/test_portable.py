"""Other systems: nothing asks which one it runs on but the rooms that may, and the commands do the same without Linux's
calls. ``make portable`` runs whole suites that way."""

from __future__ import annotations

import ast
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from portable_system import environment

from dflash_convert import system

PACKAGE = Path(system.__file__).parent
MAY_KNOW = {"system.py", "output.py", "encode", "engine"}
# what Windows' Python does not have; asked for by getattr or hasattr it may stand anywhere
LACKING = {
    "os": {
        *("preadv", "pread", "pwrite", "pwritev", "readv", "writev", "posix_fadvise", "posix_fallocate", "sendfile"),
        *("fork", "killpg", "setsid", "getuid", "geteuid", "getpgid", "uname", "statvfs", "fchmod", "chown", "mkfifo"),
        *("sched_getaffinity", "sched_setaffinity", "O_TMPFILE", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_SYNC"),
    },
    "signal": {"SIGHUP", "SIGKILL", "SIGPIPE", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCHLD", "setitimer", "sigwait"},
    "socket": {"send_fds", "recv_fds", "AF_UNIX"},
}
MODULES = {"fcntl", "resource", "pwd", "grp", "pty", "termios", "tty"}


def names(path: Path) -> set[str]:
    """What of LACKING and MODULES a module uses without asking whether it is there."""
    text = path.read_text(encoding="utf-8")
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            asked = f'hasattr({node.value.id}, "{node.attr}")' in text
            if node.attr in LACKING.get(node.value.id, ()) and not asked:
                found.add(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & MODULES
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            found.add(str(node.module))
    return found


def test_nothing_else_knows_the_system() -> None:
    using = {
        str(path.relative_to(PACKAGE)): found
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] not in MAY_KNOW and (found := names(path))
    }
    assert using == {}


def test_the_rule_finds_what_it_looks_for() -> None:
    assert {"fcntl", "os.O_DIRECTORY", "socket.send_fds"} & names(PACKAGE / "system.py")


SCRIPT = """
import hashlib, os, runpy, signal, socket, sys
from pathlib import Path
from dflash_convert.cli import main

def run(*words):
    try:
        main(list(words))
    except SystemExit as ended:
        assert not ended.code, (words, ended.code)

lacking = [n for n in ("preadv", "pwrite", "O_TMPFILE", "posix_fadvise") if hasattr(os, n)]
print("has", lacking, hasattr(socket, "send_fds"), hasattr(signal, "SIGHUP"), os.path.isdir("/proc/self"))
tiny, out = Path(sys.argv[1]), Path(sys.argv[2])
out.mkdir()
common = ["--target-model-dir", str(tiny / "target"), "--target-name", "js", "--threads", "2"]
run(str(tiny / "drafter"), *common, "-t", "bf16", "-t", "q8_0", "-t", "iq4_xs", "-o", str(out), "-q")
run("quantize", str(out / "dflash-js-BF16.gguf"), str(out / "q4.gguf"), "q4_k_m", "--threads", "2", "-q")
run("quantize", str(out / "dflash-js-BF16.gguf"), str(out / "q4.gguf"), "q4_k_m", "--force", "-q")
run("check", str(out / "dflash-js-Q8_0.gguf"), str(tiny / "target-bf16.gguf"), "-q")
run("verify", str(out / "dflash-js-IQ4_XS.gguf"), str(tiny / "drafter"), "--threads", "2", "-q")
run("package", str(out / "dflash-js-Q8_0.gguf"), "--out", str(out / "package"), "-q")
run("package", str(out / "dflash-js-Q8_0.gguf"), "--out", str(out / "package"), "--force", "-q")
run("package", "--check", str(out / "package"))
for path in sorted(p for p in out.rglob("*") if p.is_file()):
    print(path.relative_to(out), hashlib.sha256(path.read_bytes()).hexdigest())
"""


def told(fixtures: Path, out: Path, env: dict[str, str] | None) -> list[str]:
    call = [sys.executable, "-c", SCRIPT, str(fixtures / "tiny-js"), str(out)]
    done = subprocess.run(call, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("has ") or len(line.split()[-1]) == 64]


def test_every_command_writes_the_same_bytes(fixtures: Path, tmp_path: Path) -> None:
    here, *expected = told(fixtures, tmp_path / "here", None)
    there, *found = told(fixtures, tmp_path / "there", environment(tmp_path / "site"))
    assert there == "has [] False False False"
    assert here != there
    assert found == expected
    assert len(found) >= 8
    assert not list((tmp_path / "there").rglob(".*")), "nothing hidden is left"


# --- the other ways themselves ----------------------------------------------------------------------------------


def test_a_log_can_be_read_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading at an offset must not move the place where the child writes."""
    monkeypatch.delattr(system.os, "preadv")
    file, reader, name = system.open_log("test-")
    assert name is not None
    child = [
        sys.executable,
        "-c",
        "import sys; [(sys.stderr.write('line\\n'), sys.stderr.flush(), sys.stdin.read(1)) for _ in 'ab']",
    ]
    with subprocess.Popen(child, stdin=subprocess.PIPE, stderr=file) as running:
        assert running.stdin is not None
        seen = bytearray(5)
        while not system.read_all(reader, memoryview(seen), 0):
            assert running.poll() is None
        running.stdin.write(b"xx")
        running.stdin.flush()
    assert name.read_bytes() == b"line\nline\n"
    assert seen == b"line\n"
    file.close()
    system.os.close(reader)
    name.unlink()


def test_a_child_ends_without_process_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(system.os, "killpg")
    for kill, number in ((False, signal.SIGTERM), (True, signal.SIGKILL)):
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
            system.end_group(child, kill=kill)
            assert child.wait(30) == -number
            system.end_group(child, kill=kill)  # no harm


def test_what_is_asked_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    assert system.ending_signals() == (signal.SIGTERM, signal.SIGHUP)
    monkeypatch.delattr(signal, "SIGHUP")
    assert system.ending_signals() == (signal.SIGTERM,)
    assert system.can_share()
    monkeypatch.delattr(socket, "send_fds")
    assert not system.can_share()
    assert system.peak_memory()[0] > 1 << 20
    monkeypatch.setitem(sys.modules, "resource", None)
    assert system.peak_memory() == (0, 0)


# --- the workflow -----------------------------------------------------------------------------------------------


def test_the_workflow_covers_systems_and_pythons_and_names_tests_that_exist() -> None:
    yaml = pytest.importorskip("yaml")
    root = PACKAGE.parent
    workflow = yaml.safe_load((root / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    jobs = workflow["jobs"]
    assert workflow["env"] == {"CI": ""}  # nothing lies beside a checkout there, and constraints.txt is for one Python
    supported = [f"3.{minor}" for minor in range(10, 15)]
    assert all(job["strategy"]["matrix"]["python"] == supported for job in jobs.values())
    assert {job["runs-on"] for job in jobs.values()} == {"ubuntu-latest", "${{ matrix.os }}"}
    assert jobs["other"]["strategy"]["matrix"]["os"] == ["macos-latest", "windows-latest"]
    words = [word for job in jobs.values() for step in job["steps"] for word in step.get("run", "").split()]
    paths = [root / word for word in words if word.startswith("tests/")]
    assert len(paths) > 10
    assert not [path for path in paths if not path.exists()]
    # none of them needs at import what Windows lacks
    modules = [module for path in paths for module in (path.rglob("test_*.py") if path.is_dir() else [path])]
    assert {module.name: names(module) & MODULES for module in modules if names(module) & MODULES} == {}
