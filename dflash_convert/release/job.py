"""One job of a batch: convert, check, verify and validate one pair in one type (:mod:`dflash_convert.pipeline`).

A finished job leaves ``job.json``: a key over everything that went in and the hash of everything that came out.
As long as both still hold, running the job again does nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dflash_convert import __version__, child
from dflash_convert.container.shards import shard_paths
from dflash_convert.errors import DflashError, InputError
from dflash_convert.hashing import known_sha256, sha256_of
from dflash_convert.output import disk_errors, sweep, write_text
from dflash_convert.pipeline import Result, Task, Watcher, run
from dflash_convert.release.plan import Job, is_there

RECORD = "job.json"
SCHEMA = 1
MAX_ENTRIES = 10_000  # of a model's directory; a large one has some hundred
REPORTS = {"check": "check.json", "verify": "verify.json", "validate": "validation.json"}  # of each step
Status = Literal["done", "skipped", "failed", "blocked"]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """What became of a job or a package; ``step`` is the one that failed."""

    name: str
    status: Status
    exit_code: int = 0
    step: str | None = None
    message: str | None = None
    file: str | None = None
    sha256: str | None = None
    acceptance: float | None = None
    mean_length: float | None = None


@dataclass(frozen=True)
class StepResult:
    exit_code: int
    stdout: str
    message: str


def program(*arguments: str) -> list[str]:
    """A call of this program with the same Python, wherever it is installed."""
    return child.command("cli", *arguments)


def run_step(arguments: Sequence[str], say: Say) -> StepResult:
    """Run one command of this program; its stderr is passed on when it has ended."""
    done = subprocess.run(
        program(*arguments), stdin=subprocess.DEVNULL, capture_output=True, check=False, env=child_environment()
    )
    errors = done.stderr.decode("utf-8", "replace")
    for line in errors.splitlines():
        say(line)
    return StepResult(
        done.returncode if done.returncode >= 0 else 1, done.stdout.decode("utf-8", "replace"), last_error(errors)
    )


def child_environment() -> dict[str, str]:
    """The environment of a child, which must import the same program."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *(p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p)]
    inherited = {name: value for name, value in os.environ.items() if name != "COLUMNS"}  # it writes into a pipe
    return inherited | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "NO_COLOR": "1"}


def last_error(text: str) -> str:
    """The sentence of the last ERROR line, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR ") for line in lines if line.startswith("ERROR ")]
    return (errors or lines or ["it ended without a message"])[-1]


class _Recording(Watcher):
    """Keeps a step's report beside the job's file, and which step it was; passes on what is said."""

    def __init__(self, job: Job, watcher: Watcher) -> None:
        self.current = "convert"
        self._job, self._watcher = job, watcher
        for name in ("planned", "wrote", "notes", "amount", "advanced", "at"):
            setattr(self, name, getattr(watcher, name))

    def step(self, name: str) -> None:
        self.current = name
        self._watcher.step(name)
        self.say(f"{self._job.name}: {name}")

    def say(self, text: str, detail: bool = False) -> None:
        self._watcher.say(text, detail)

    def report(self, step: str, document: dict[str, Any]) -> None:
        text = json.dumps(document, indent=1, ensure_ascii=False)
        write_text(self._job.directory / REPORTS[step], text + "\n", force=True)


def run_job(
    job: Job, task: Callable[[], Task], watcher: Watcher, read: Sequence[Path], *, force: bool = False
) -> tuple[Outcome, Result | None]:
    """Do what is still to be done of ``job``; the result is None when nothing was, or when a step failed.

    ``task`` is asked for what is to be done, and may fetch from the Hub; ``read`` is :func:`job_key`'s.  Two runs of
    one job at a time do no harm: every file appears whole.
    """
    key = job_key(job, read)
    finished = None if force else read_record(job.directory, key)
    if finished is not None:
        sweep(job.directory / RECORD)  # the last file: a run killed just then leaves nothing else to write, or to sweep
        return _outcome(job, "skipped", finished), None
    with disk_errors(job.directory):
        job.directory.mkdir(parents=True, exist_ok=True)
        (job.directory / RECORD).unlink(missing_ok=True)
    recording = _Recording(job, watcher)
    try:
        result = run(replace(task(), output=job.directory, force=True), recording)
    except DflashError as error:
        return Outcome(job.name, "failed", error.exit_code, recording.current, str(error)), None
    (made,) = result.files
    reports = [REPORTS[step] for step in REPORTS if step != "validate" or (made.proof and made.proof.validated)]
    record = {
        "schema": SCHEMA,
        "kind": "job",
        "job": job.name,
        "key": key,
        "gguf": made.written.path.name,
        "files": {name: sha256_of(job.directory / name) for name in (made.written.path.name, *reports)},
    }
    write_text(job.directory / RECORD, json.dumps(record, indent=1) + "\n", force=True)
    return _outcome(job, "done", record), result


def job_key(job: Job, read: Sequence[Path]) -> str:
    """A hash over all that decides the result: options, program version, and the bytes of every local input.

    ``read`` are the places that the options of ``convert`` and ``validate`` name, as the command line parses them: an
    importance matrix, a ranking, thresholds, another program.  A Hub id counts as it is written: pin it with
    ``@revision`` when the repository may change.
    """
    pair = job.pair
    places = {"drafter": pair.drafter, "target": pair.target, "target_gguf": pair.target_gguf, "prompts": pair.prompts}
    options = {name: value for name, value in asdict(pair).items() if name not in ("types", *places)}
    inputs = {role: _digest(place) for role, place in places.items() if place}
    named = {str(place): _digest(str(place)) for place in read if is_there(place)}
    document = {"version": __version__, "type": job.type, "options": options, "inputs": inputs, "named": named}
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _digest(place: str) -> Any:
    path = Path(place)
    try:
        if path.is_dir():
            return {file.relative_to(path).as_posix(): known_sha256(file) for file in _files(path)}
        if path.is_file():
            return [known_sha256(file) for file in shard_paths(path) if file.is_file()]
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if path.is_absolute():
        raise InputError(f"{path}: no such file")
    return place


def _files(top: Path) -> list[Path]:
    """Every file under ``top``, links followed, each directory once. Hidden directories hold what no step reads: a
    version control's objects, a download's state."""
    found: list[Path] = []
    waiting, seen, count = [top], set(), 0
    while waiting:
        folder = waiting.pop()
        status = folder.stat()
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        for entry in sorted(folder.iterdir()):
            count += 1
            if count > MAX_ENTRIES:
                raise InputError(
                    f"{top} holds more than {MAX_ENTRIES:,} files and folders: not the directory of one model",
                    tip="give the directory that has the model's config.json",
                )
            if entry.is_dir() and not entry.name.startswith("."):
                waiting.append(entry)
            elif entry.is_file():
                found.append(entry)
    return found


def read_record(directory: Path, key: str) -> dict[str, Any] | None:
    """The record of a finished job whose inputs and outputs are unchanged, else None."""
    try:
        record = json.loads((directory / RECORD).read_text(encoding="utf-8"))
        if record["schema"] != SCHEMA or record["key"] != key:
            return None
        for name, digest in record["files"].items():
            if sha256_of(directory / name) != digest:
                return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return dict(record)


def _outcome(job: Job, status: Status, record: Mapping[str, Any]) -> Outcome:
    name = record["gguf"]
    total: Mapping[str, Any] = {}
    if "validation.json" in record["files"]:
        total = json.loads((job.directory / "validation.json").read_text(encoding="utf-8"))["total"]
    return Outcome(
        job.name,
        status,
        file=str(job.directory / name),
        sha256=record["files"][name],
        acceptance=total.get("acceptance"),
        mean_length=total.get("mean_length"),
    )
