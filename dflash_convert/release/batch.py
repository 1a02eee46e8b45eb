"""All jobs of a release.toml, then one package a pair: on this machine or on a cluster.

Every job is a child process of this same program (``batch release.toml --job NAME``), so that one failure, even a
crash, ends one job. What is finished and unchanged is skipped; an interrupted batch goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dflash_convert import __version__
from dflash_convert.errors import DflashError
from dflash_convert.hashing import sha256_of
from dflash_convert.output import write_text
from dflash_convert.release.job import Outcome, child_environment, last_error, program, run_step
from dflash_convert.release.manifest import MANIFEST, verify_manifest
from dflash_convert.release.plan import Job, Pair, Release
from dflash_convert.system import end_group
from dflash_convert.text import counted
from dflash_convert.watching import UNSEEN, Watch

SCHEMA = 1
PACKAGE_RECORD = "package.json"
GRACE = 10.0  # seconds a child has to clean up after SIGTERM


@dataclass(frozen=True)
class Summary:
    """What became of every job and package, in the order of the file."""

    jobs: tuple[Outcome, ...]
    packages: tuple[Outcome, ...]

    @property
    def exit_code(self) -> int:
        """The worst code of all."""
        return max((outcome.exit_code for outcome in (*self.jobs, *self.packages)), default=0)

    def json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "kind": "batch",
            "exit_code": self.exit_code,
            "jobs": [asdict(outcome) for outcome in self.jobs],
            "packages": [asdict(outcome) for outcome in self.packages],
        }


Runner = Callable[[Iterable[Job]], Iterator[Outcome]]


def run_batch(
    release: Release,
    runner: Runner,
    say: Callable[[str], None],
    *,
    force: bool,
    package: bool,
    watch: Watch = UNSEEN,
) -> Summary:
    """Run all jobs with ``runner``, then make the packages of the pairs whose jobs all succeeded. ``watch`` counts
    jobs."""
    found: dict[str, Outcome] = {}
    jobs = release.jobs
    watch.begin(len(jobs))
    say(f"{counted(len(jobs), 'job')}, {counted(len(release.pairs), 'pair')}; -v shows the steps of each")
    for outcome in runner(jobs):
        found[outcome.name] = outcome
        say(f"[{len(found)}/{len(jobs)}] {describe(outcome)}")
        watch.update()
    packages = []
    for pair in release.pairs if package else ():
        outcome = package_pair(release, pair, [found[job.name] for job in jobs if job.pair is pair], say, force=force)
        packages.append(outcome)
        say(f"package {describe(outcome)}")
    return Summary(tuple(found[job.name] for job in jobs), tuple(packages))


def describe(outcome: Outcome) -> str:
    text = f"{outcome.name}: {outcome.status}"
    if outcome.status == "failed":
        text += f" at {outcome.step} (exit {outcome.exit_code}): {outcome.message}"
    elif outcome.message:
        text += f": {outcome.message}"
    return text


class LocalRunner:
    """Jobs as child processes, ``workers`` at a time. ``stop`` ends them all."""

    def __init__(self, release: Release, workers: int, *, force: bool, log: Callable[[str], None]) -> None:
        self._release, self._workers, self._force, self._log = release, workers, force, log
        self._children: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def __call__(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        threads = max((os.cpu_count() or 1) // self._workers, 1)
        with ThreadPoolExecutor(self._workers) as pool:
            futures = [pool.submit(self._run, job, threads) for job in jobs]
            try:
                for future in as_completed(futures):
                    yield future.result()
            except BaseException:
                for future in futures:
                    future.cancel()
                self.stop()
                raise

    def _run(self, job: Job, threads: int) -> Outcome:
        call = job_command(self._release.path, job.name, force=self._force)
        with self._lock:
            if self._stopped:
                return Outcome(job.name, "failed", 130, "start", "interrupted")
            child = subprocess.Popen(
                [*call, "--threads", str(threads)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # so that all of its processes can be ended together
                env=child_environment(),
            )
            self._children.add(child)
        output, errors = child.communicate()
        with self._lock:
            self._children.discard(child)
        text = errors.decode("utf-8", "replace")
        for line in text.splitlines():
            self._log(line)
        return parse_outcome(job.name, child.returncode, output.decode("utf-8", "replace"), text)

    def stop(self) -> None:
        """End every child: asked first, then killed."""
        with self._lock:
            self._stopped = True
            children = list(self._children)
        for child in children:
            end_group(child)
        for child in children:
            try:
                child.wait(GRACE)
            except subprocess.TimeoutExpired:
                end_group(child, kill=True)


def job_command(release: Path, name: str, *, force: bool) -> list[str]:
    """The command of one job, the same on every machine."""
    return program("batch", str(release), "--job", name, "--json", *(["--force"] if force else []))


def parse_outcome(name: str, code: int, output: str, errors: str) -> Outcome:
    """What a job's process printed, or what its end says when it printed nothing."""
    with suppress(ValueError, KeyError, TypeError):
        document = json.loads(output)
        if "error" in document:
            return Outcome(name, "failed", code or 1, "run", document["error"]["message"])
        (entry,) = document["jobs"]
        return Outcome(**entry)
    if code < 0:
        return Outcome(name, "failed", 1, "run", f"its process was ended by signal {-code}")
    return Outcome(name, "failed", code or 1, "run", last_error(errors))


def package_pair(
    release: Release, pair: Pair, jobs: list[Outcome], say: Callable[[str], None], *, force: bool
) -> Outcome:
    """The package of one pair; skipped when it is there, verifies, and was made from the same files."""
    failed = [job.name for job in jobs if job.status == "failed"]
    if failed:
        return Outcome(pair.name, "blocked", message=f"{', '.join(failed)} failed")
    out = release.out / "packages" / pair.name
    record = release.out / "jobs" / pair.name / PACKAGE_RECORD
    files = [Path(str(job.file)) for job in jobs]
    reports = [path.with_name("validation.json") for path in files if pair.target_gguf]
    call = _package_call(pair, files, reports, out)
    key = _package_key(pair, jobs, reports)
    if not force and _is_made(out, record, key):
        return Outcome(pair.name, "skipped", file=str(out), sha256=sha256_of(out / MANIFEST))
    out.parent.mkdir(parents=True, exist_ok=True)
    done = run_step(call, say)
    if done.exit_code:
        return Outcome(pair.name, "failed", done.exit_code, "package", done.message)
    digest = sha256_of(out / MANIFEST)
    text = json.dumps({"schema": SCHEMA, "key": key, "manifest_sha256": digest}, indent=1)
    write_text(record, text + "\n", force=True)
    return Outcome(pair.name, "done", file=str(out), sha256=digest)


def _package_call(pair: Pair, files: list[Path], reports: list[Path], out: Path) -> list[str]:
    call = ["package", *map(str, files), "--out", str(out), "--force", "--json"]
    for report in reports:
        call += ["--validation", str(report)]
    for path in files:
        call += ["--verification", str(path.with_name("verify.json"))]
    options: Mapping[str, Any] = {
        "--target-gguf": pair.package_target or pair.target_gguf,
        "--license": pair.license,
        "--repo": pair.repo,
        "--drafter-repo": pair.drafter_repo,
        "--target-repo": pair.target_repo,
        "--target-name": pair.target_name,
        "--n-max": pair.n_max,
    }
    for option, value in options.items():
        call += [] if value is None else [option, str(value)]
    return call


def _package_key(pair: Pair, jobs: list[Outcome], reports: list[Path]) -> str:
    document = {
        "version": __version__,
        "pair": {k: v for k, v in asdict(pair).items() if k not in ("drafter", "target", "prompts")},
        "files": [job.sha256 for job in jobs],
        "reports": [sha256_of(report) for report in reports],
    }
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _is_made(out: Path, record: Path, key: str) -> bool:
    try:
        known = json.loads(record.read_text(encoding="utf-8"))
        if known["key"] != key or known["manifest_sha256"] != sha256_of(out / MANIFEST):
            return False
        return not verify_manifest(out)
    except (OSError, ValueError, KeyError, TypeError, DflashError):
        return False
