"""Sessions with a llama-server: starting, asking, failing, stopping. The server is a fake."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_convert.engine import embedded, external, failures, find
from dflash_convert.engine.failures import EngineRunError
from dflash_convert.engine.session import Session, start
from dflash_convert.engine.trace import EngineInfo, Launch, Request, Sampling
from dflash_convert.errors import UsageError

Fake = Callable[[str], Path]
ROOT = Path(__file__).resolve().parents[2]
LAUNCH = Launch(Path("t.gguf"), Path("d.gguf"), n_max=4, ctx_size=1024, start_timeout=60, request_timeout=60)


def server(path: Path) -> EngineInfo:
    return EngineInfo("llama-server", str(path), "4242")


def ask(session: Session, n_predict: int = 31) -> object:
    return session.complete(Request("hello", n_predict))


def test_normal_run(fake_server: Fake) -> None:
    with start(server(fake_server("normal")), LAUNCH) as session:
        traces = [session.complete(Request(text, 31)) for text in ("first", "second")]
        assert session.build() == "4242 (abc1234) with a compiler for a machine"
        assert session.tokenize("ab") == (97, 98)
        assert session.detokenize([97]) == "a"
        chat = [{"role": "user", "content": "x"}]
        assert (session.render(chat, True), session.render(chat, False)) == ("x<think>", "x<answer>")
    for trace in traces:
        assert (trace.drafted, trace.accepted, trace.steps, trace.generated) == (40, 20, 10, 31)
        assert trace.accepted_per_position == (10, 10, 0, 0)
        assert trace.mean_length == 3
        assert trace.tokens_per_second == 50
        assert len(trace.tokens) == 31
    assert traces[0].text != traces[1].text


def test_a_log_that_lags_behind_is_read_as_its_own_request(fake_server: Fake) -> None:
    """On a busy machine: steps of one request counted for the next gave a mean length of 2.72 in place of 4.5."""
    with start(server(fake_server("late-log")), LAUNCH) as session:
        traces = [session.complete(Request("x", count)) for count in (31, 61, 31, 91)]
    assert [(t.steps, t.mean_length) for t in traces] == [(10, 3), (20, 3), (10, 3), (30, 3)]
    assert all(t.accepted_per_position == (t.steps, t.steps, 0, 0) for t in traces)


def test_command_line(fake_server: Fake) -> None:
    launch = Launch(
        *(Path("t.gguf"), Path("d.gguf"), "draft-dflash", 4, 1024),
        threads=3,
        gpu_layers=99,
        device="CUDA0",
        draft_device="CUDA1",
        extra_args=("-fa", "on"),
    )
    command, environment = external.command(server(Path("llama-server")), launch, 1234, "secret")
    text = " ".join(command)
    assert text.startswith("llama-server -m t.gguf -c 1024 -np 1 --host 127.0.0.1 --port 1234")
    assert "-md d.gguf --spec-type draft-dflash --spec-draft-n-max 4" in text
    assert "--spec-draft-type-k f16 --spec-draft-type-v f16 --spec-draft-device CUDA1" in text
    assert text.endswith("--device CUDA0 -ngl 99 -t 3 -fa on")
    assert "secret" not in text
    assert environment == {"LLAMA_API_KEY": "secret"}


def test_without_a_drafter_no_draft_options() -> None:
    command, _ = external.command(server(Path("llama-server")), Launch(Path("t.gguf"), draft_device="CUDA0"), 1, "k")
    assert not [part for part in command if "spec" in part or part == "-md"]


def test_old_log_counts_come_from_the_log(fake_server: Fake) -> None:
    with start(server(fake_server("old-log")), LAUNCH) as session:
        trace = session.complete(Request("x", 31))
    assert (trace.drafted, trace.accepted, trace.steps) == (40, 20, None)
    assert trace.accepted_per_position is None
    assert trace.known_steps == 10
    assert trace.mean_length == 3


def test_zero_drafts(fake_server: Fake) -> None:
    with start(server(fake_server("zero-drafts")), LAUNCH) as session:
        trace = session.complete(Request("x", 31))
    assert (trace.drafted, trace.accepted, trace.mean_length) == (0, 0, 1.0)


@pytest.mark.parametrize(
    ("mode", "kind", "words"),
    [
        ("oom-always", failures.OUT_OF_MEMORY, "ran out of memory"),
        ("unknown-type", failures.OPTION, "draft-dflash"),
        ("assert", failures.CRASH, "not a DFlash drafter"),
    ],
)
def test_failures_while_loading(fake_server: Fake, mode: str, kind: str, words: str) -> None:
    with pytest.raises(EngineRunError, match=words) as caught, start(server(fake_server(mode)), LAUNCH):
        pass
    assert caught.value.kind == kind
    assert "while loading" in str(caught.value)


def test_crash_in_the_second_request(fake_server: Fake) -> None:
    with start(server(fake_server("crash-second")), LAUNCH) as session:
        ask(session)
        with pytest.raises(EngineRunError, match="SIGSEGV during request 2") as caught:
            ask(session)
    assert caught.value.kind == failures.CRASH


def test_hang_ends_at_the_time_limit(fake_server: Fake) -> None:
    with start(server(fake_server("hang")), LAUNCH) as session:
        ask(session)
        ask(session)
        session.launch = replace(LAUNCH, request_timeout=0.5)
        with pytest.raises(EngineRunError, match=r"did not answer within 0.5 s during request 3") as caught:
            ask(session)
    assert caught.value.kind == failures.TIMEOUT


def test_never_ready(fake_server: Fake) -> None:
    launch = Launch(Path("t.gguf"), start_timeout=0.5)
    with (
        pytest.raises(EngineRunError, match=r"not ready after 0.5 s") as caught,
        start(server(fake_server("never-ready")), launch),
    ):
        pass
    assert caught.value.kind == failures.TIMEOUT


def test_wrong_key_is_refused(fake_server: Fake) -> None:
    with start(server(fake_server("normal")), LAUNCH) as session:
        session._client._headers["Authorization"] = "Bearer guessed"
        with pytest.raises(EngineRunError, match="Invalid API Key"):
            ask(session)


def test_missing_program() -> None:
    with (
        pytest.raises(EngineRunError, match="cannot start /no/such/llama-server"),
        start(server(Path("/no/such/llama-server")), LAUNCH),
    ):
        pass


def alive(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    try:
        os.kill(pid, 0)
        return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:  # also while the file is read
        return False


def gone(pid: int, seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def recording(fake: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A wrapper that writes down the process id under which the fake runs."""
    pid, wrapper = tmp_path / "pid", tmp_path / "wrapper"
    wrapper.write_text(f'#!/bin/sh\necho $$ > "{pid}"\nexec "{fake}" "$@"\n')
    wrapper.chmod(0o755)
    return wrapper, pid


@pytest.mark.parametrize("mode", ["normal", "stubborn"])
def test_stop_ends_the_server(fake_server: Fake, tmp_path: Path, mode: str) -> None:
    wrapper, pid = recording(fake_server(mode), tmp_path)
    with start(server(wrapper), LAUNCH):
        number = int(pid.read_text())
        assert alive(number)
    assert gone(number)


OWNER = """
import sys
from pathlib import Path
from dflash_convert.engine.session import start
from dflash_convert.engine.trace import EngineInfo, Launch, Request
with start(EngineInfo("llama-server", sys.argv[1], ""), Launch(Path("t.gguf"))) as session:
    sys.stdout.write("ready\\n")
    sys.stdout.flush()
    sys.stdin.read()
"""


def test_no_orphan_when_the_owner_is_killed(fake_server: Fake, tmp_path: Path) -> None:
    wrapper, pid = recording(fake_server("normal"), tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(wrapper)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        number = int(pid.read_text())
        owner.send_signal(signal.SIGKILL)
    assert gone(number)


def test_embedded_takes_no_device() -> None:
    engine = EngineInfo("embedded", None, "")
    with (
        pytest.raises(UsageError, match="--device"),
        start(engine, Launch(Path("t.gguf"), device="CUDA0")),
    ):
        pass


def test_greedy_is_temperature_zero() -> None:
    assert Sampling().greedy
    assert not Sampling(0.7).greedy


class TestFinding:
    def test_option_then_environment_then_path(self, fake_server: Fake, tmp_path: Path) -> None:
        one, two = fake_server("normal"), fake_server("old-log")
        on_path = tmp_path / "bin" / "llama-server"
        on_path.parent.mkdir()
        on_path.symlink_to(one)
        environment = {"DFLASH_LLAMA_SERVER": str(two), "PATH": str(on_path.parent)}
        assert external.locate(str(one), environment) == (str(one), "--llama-server")
        assert external.locate(None, environment) == (str(two), "DFLASH_LLAMA_SERVER")
        assert external.locate(None, {"PATH": str(on_path.parent)}) == (str(on_path), "PATH")
        assert external.locate(str(on_path.parent), {}) == (str(on_path), "--llama-server")
        assert external.locate(None, {"PATH": ""}) is None

    def test_a_named_program_must_exist(self) -> None:
        with pytest.raises(EngineRunError, match="--llama-server: /no/such does not exist"):
            external.locate("/no/such", {})

    def test_what_it_knows(self, fake_server: Fake) -> None:
        info = external.info(str(fake_server("normal")), "--llama-server")
        assert info.build == "4242 (abc1234)"
        assert info.spec_types == ("none", "draft-simple", "draft-dflash", "ngram-simple")
        assert info.devices == ("CUDA0: A Graphics Card (24000 MiB, 23000 MiB free)",)
        assert info.problem is None
        find.require(info, "draft-dflash")
        with pytest.raises(EngineRunError, match="does not know the drafting method draft-dspark"):
            find.require(info, "draft-dspark")

    def test_outdated(self, fake_server: Fake) -> None:
        info = find.choose(str(fake_server("outdated")), None, {})
        with pytest.raises(EngineRunError, match="draft-dflash") as caught:
            find.require(info, "draft-dflash")
        assert caught.value.kind == failures.OPTION

    def test_a_program_that_does_not_tell_is_tried(self, fake_server: Fake) -> None:
        info = find.choose(str(fake_server("unknown-type")), None, {})
        find.require(info, "draft-dflash")

    def test_another_program(self) -> None:
        info = external.info("/bin/echo", "--llama-server")
        assert info.problem is not None
        assert "not a llama-server" in info.problem

    def test_devices_need_a_server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(embedded, "installed", lambda: "1.0")
        with pytest.raises(EngineRunError, match="need a llama-server"):
            find.choose(None, Launch(Path("t"), device="CUDA0"), {"PATH": ""})

    def test_nothing_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(embedded, "installed", lambda: None)
        with pytest.raises(EngineRunError, match=r"no llama\.cpp was found") as caught:
            find.choose(None, None, {"PATH": ""})
        assert caught.value.kind == failures.MISSING
        assert find.find_engines(None, {"PATH": ""}) == []

    def test_listing(self, fake_server: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(embedded, "installed", lambda: None)
        (found,) = find.find_engines(str(fake_server("normal")), {"PATH": ""})
        assert (found.kind, found.found_by) == ("llama-server", "--llama-server")
        (missing,) = find.find_engines("/no/such", {"PATH": ""})
        assert missing.problem is not None
        assert "does not exist" in missing.problem
