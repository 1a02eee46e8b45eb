"""Batches: jobs that are independent and idempotent, on one machine and on a cluster of real worker processes."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from release_tools import ROOT, Done, repeatable, tree

from dflash_convert.cli.batch import places_of
from dflash_convert.container.reader import open_gguf
from dflash_convert.errors import ConfigError, InputError, UsageError
from dflash_convert.output import write_text
from dflash_convert.release import job as job_module
from dflash_convert.release.batch import Summary, _package_call, parse_outcome
from dflash_convert.release.job import Outcome, last_error, read_record
from dflash_convert.release.manifest import read_manifest, verify_manifest
from dflash_convert.release.plan import Job, read_release

FAKE = ROOT / "tests" / "engine" / "fake_llama_server.py"


@pytest.fixture
def release(tmp_path: Path, fixtures: Path) -> Callable[..., Path]:
    """release(types=[…], extra="…") -> a release.toml for the bundled pair."""

    def make(types: list[str] | None = None, extra: str = "", top: str = "") -> Path:
        pair = fixtures / "tiny-js"
        path = tmp_path / "release.toml"
        path.write_text(
            f'out = "out"\ntypes = {types or ["Q8_0", "Q4_0"]}\n{top}\n'
            f'[[pair]]\nname = "tiny"\ntarget_name = "tiny-js"\n'
            f'drafter = "{pair / "drafter"}"\ntarget = "{pair / "target"}"\n{extra}\n'
        )
        return path

    return make


def artefacts(out: Path) -> dict[str, bytes]:
    """Everything a release is made of: the packages, and each job's GGUF and record."""
    return repeatable(
        {name: data for name, data in tree(out).items() if name.endswith((".gguf", "job.json")) or "packages/" in name}
    )


# --- release.toml


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("types = ['Q8_0']", r"has no \[\[pair\]\]"),
        ("nonsense = 1\n[[pair]]\ndrafter='d'\ntarget='t'\ntypes=['F16']", "unknown key nonsense"),
        ("[[pair]]\ntarget='t'\ntypes=['F16']", "pair 1 has no drafter"),
        ("[[pair]]\ndrafter='d'\ntarget='t'", "has no types"),
        ("[[pair]]\ndrafter='d'\ntarget='t'\ntypes='Q8_0'", "types must be a list of texts"),
        ("[[pair]]\ndrafter='d'\ntarget='t'\ntypes=['Q9_9']", "Q9_9 is not an output type"),
        ("[[pair]]\ndrafter='d'\ntarget='t'\ntypes=['F16']\nn_max='7'", "n_max is '7', which is not a number"),
        ("[[pair]]\ndrafter='d'\ntarget='t'\ntypes=['F16']\nn_max=true", "n_max is True"),
        ("[[pair]]\ndrafter='d'\ntarget='t'\ntypes=['F16']\nn_max=0", "n_max must be at least 1"),
        ("[[pair]]\ndrafter='d'\ntarget='t'\ntypes=['F16']\nname='../up'", "cannot be a directory name"),
        ("[[pair]]\ndrafter='d'\ntarget='t'\ntypes=['F16']\nvalidate=['--quick']", "no target_gguf to validate with"),
        (
            "types=['F16']\n[[pair]]\ndrafter='d'\ntarget='t'\n[[pair]]\ndrafter='e'\ntarget='T'",
            "two pairs are named t",
        ),
        ("[[pair]]\ndrafter='d'\ntarget='t'\ntypes=['F16']\nfidelity=1", "fidelity is 1, which is neither true nor"),
        ("[[pair]]\ndrafter='d'\ntarget='t'\ntypes=['F16']\nmin_acceptance=48", "is 48, which is not between 0 and 1"),
        ("[[pair]]\ndrafter='d'\ntarget='t'\ntypes=['F16']\nmin_mean_length=0.5", "is 0.5, which is not at least 1"),
        ("[[pair]]\ndrafter='d'\ntarget='t'\ntypes=['F16']\nconvert=7", "convert must be a table of options"),
        (
            "[[pair]]\ndrafter='d'\ntarget='t'\ntypes=['F16']\nconvert={a={b=1}}",
            "convert.a is .*, which no option takes",
        ),
        ("[[pair", "cannot be read"),
        (
            "[[pair]]\ndrafter='d'\ntarget='t'\ntypes=['F16']\nmin_acceptance=0.3",
            "has min_acceptance, but no target_gguf to validate with",
        ),
        (
            "[[pair]]\ndrafter='d'\ntarget='t'\ntypes=['F16']\nprompts='p.jsonl'",
            "pair 1 has prompts, but no target_gguf to validate with",
        ),
        (
            "[[pair]]\ndrafter='d'\ntarget='t'\ntypes=['F16']\nllama_server='l'",
            "pair 1 has llama_server, but no target_gguf to validate with",
        ),
        (
            "llama_server='l'\n[[pair]]\ndrafter='d'\ntarget='t'\ntypes=['F16']",
            "release.toml has llama_server, but no pair has a target_gguf to validate with",
        ),
        (
            "[[pair]]\ndrafter='d'\ntarget='t'\ntypes=['F16']\nconvert={mask_token_id=3, 'mask-token-id'=4}",
            "convert has mask_token_id and mask-token-id, which are one option",
        ),
        ("n_max=1" + 400 * "0", "n_max is a whole number of more than 64 bits"),
        ("[[pair]]\nmin_acceptance=1" + 400 * "0", "min_acceptance is a whole number of more than 64 bits"),
        ("[[pair]]\nconvert={keep=1" + 400 * "0" + "}", "keep is a whole number of more than 64 bits"),
        ("pair" + 2000 * ".a" + "=1", "is nested too deeply"),
        ("types=" + 2000 * "[" + 2000 * "]", "nested too deeply|cannot be read"),
        ('out="a\\u0000"', "out holds a NUL byte"),
        ('[[pair]]\ntarget_gguf="a\\u0000"', "target_gguf holds a NUL byte"),
        ('[[pair]]\nconvert=["--imatrix=a\\u0000"]', "convert holds a NUL byte"),
        ('[[pair]]\nconvert={"a\\u0000"=true}', "holds a NUL byte"),
    ],
)
def test_defects_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "release.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_release(path)


def test_what_pairs_share_need_not_serve_each(tmp_path: Path) -> None:
    path = tmp_path / "release.toml"
    path.write_text(
        "types=['F16']\nprompts='p.jsonl'\n[[pair]]\ndrafter='d'\ntarget='t'\ntarget_gguf='t.gguf'\n"
        "[[pair]]\nname='u'\ndrafter='d'\ntarget='t'"
    )
    assert [bool(pair.target_gguf) for pair in read_release(path).pairs] == [True, False]


def test_jobs_in_file_order(tmp_path: Path) -> None:
    path = tmp_path / "release.toml"
    path.write_text(
        "types=['q8_0', 'Q4_0', 'Q8_0']\nlicense='mit'\n[[pair]]\ndrafter='a/D'\ntarget='Qwen/Qwen3-8B@main'\n"
        "[[pair]]\nname='two'\ndrafter='d'\ntarget='t'\ntypes=['bf16']\nlicense='other'\n"
        "convert=['--taps', '1,2']"
    )
    plan = read_release(path)
    assert [job.name for job in plan.jobs] == ["Qwen3-8B/Q8_0", "Qwen3-8B/Q4_0", "two/BF16"]
    assert [pair.license for pair in plan.pairs] == ["mit", "other"]
    assert plan.pairs[1].convert == ("--taps", "1,2")
    table = "convert = { taps = '1,2', pure = true, block_size = 8, tensor-type = ['a=f16', 'b=f32'] }"
    path.write_text(path.read_text("utf-8").replace("convert=['--taps', '1,2']", table), "utf-8")
    call = ("--taps", "1,2", "--pure", "--block-size", "8", "--tensor-type", "a=f16", "--tensor-type", "b=f32")
    assert read_release(path).pairs[1].convert == call
    assert plan.pairs[0].target == "Qwen/Qwen3-8B@main"  # a Hub id stays one
    assert plan.job("2").name == plan.job("TWO/bf16").name == "two/BF16"
    with pytest.raises(UsageError, match="has no job 3"):
        plan.job("3")


def test_the_package_is_told_what_the_pair_says(release: Any) -> None:
    (pair,) = read_release(release(["Q8_0"], extra='repo = "me/tiny"\nlicense = "mit"')).pairs
    call = _package_call(pair, [], [], Path("out"))
    assert call[call.index("--repo") + 1] == "me/tiny"
    assert call[call.index("--license") + 1] == "mit"


def test_all_entries_are_checked_before_any_work(program: Callable[..., Done], release: Any, tmp_path: Path) -> None:
    bad = (
        "[[pair]]\nname='b'\ndrafter='./gone'\ntarget='nowhere'\ntypes=['F16']\nconvert={no-such=true}\n"
        "[[pair]]\nname='c'\ndrafter='a/b'\ntarget='c/d'\ntypes=['F16']\ntarget_gguf='gone.gguf'\n"
        "validate={min-acceptance=7}\n"
        "[[pair]]\nname='d'\ndrafter='a/b'\ntarget='c/d'\ntypes=['F16']\nconvert={imatrix='gone.dat', quick=true}"
    )
    done = program("batch", path := release(["Q8_0"], bad), "--json")
    assert done.code == 3
    message = json.loads(done.out)["error"]["message"]
    for words in (
        f"{path}: b: drafter ./gone does not exist and is not a Hub id",
        "b: target nowhere does not exist",
        "b: convert = …: No such option",
        f"c: target_gguf {tmp_path / 'gone.gguf'} does not exist",
        "(and 1 more)",
    ):
        assert words in message
    assert not (tmp_path / "out").exists()
    assert program("batch", path, "--job", "tiny/Q8_0").code == 0, "a job looks after its own pair alone"


# --- keys and records


def job_key(job: Job) -> str:
    return job_module.job_key(job, places_of(job))


def test_the_key_follows_the_inputs(release: Any, fixtures: Path, tmp_path: Path) -> None:
    job = read_release(release()).jobs[0]
    assert job_key(job) == job_key(read_release(release()).jobs[0])
    assert job_key(job) != job_key(read_release(release()).jobs[1])
    assert job_key(job) != job_key(read_release(release(extra="pre = 'llama-bpe'")).jobs[0])
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("{}")
    gguf = f'target_gguf = "{fixtures}/tiny-js/target-bf16.gguf"\nprompts = "{prompts}"'
    before = job_key(read_release(release(extra=gguf)).jobs[0])
    prompts.write_text("{ }")
    assert job_key(read_release(release(extra=gguf)).jobs[0]) != before
    named = f'convert = {{ keep = 9, ranking = "{prompts}" }}'
    before = job_key(read_release(release(extra=named)).jobs[0])
    prompts.write_text("1")
    assert job_key(read_release(release(extra=named)).jobs[0]) != before
    with pytest.raises(InputError, match="no such file"):
        job_key(read_release(release(extra='target_gguf = "gone.gguf"')).jobs[0])


def test_a_directory_counts_with_all_in_it(release: Any, fixtures: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    shutil.copytree(fixtures / "tiny-js" / "target", target)
    path = release()
    path.write_text(path.read_text().replace(str(fixtures / "tiny-js" / "target"), str(target)))
    (job, _) = read_release(path).jobs
    seen = [job_key(job)]
    templates = tmp_path / "elsewhere"
    templates.mkdir()
    for place in (target / "additional_chat_templates", target / "deep" / "er"):
        place.mkdir(parents=True)
        for text in ("a", "b"):
            (place / "tool_use.jinja").write_text(text)
            seen.append(job_key(job))
    (target / "linked").symlink_to(templates)
    (target / "linked" / "round").symlink_to(target)  # ends
    for text in ("a", "b"):
        (templates / "x.jinja").write_text(text)
        seen.append(job_key(job))
    assert len(set(seen)) == len(seen)
    (target / ".git").mkdir()
    (target / ".git" / "index").write_text("what no step reads")
    assert job_key(job) == seen[-1]


def test_a_directory_of_everything_is_refused(release: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "MAX_ENTRIES", 2)
    with pytest.raises(InputError, match="holds more than 2 files and folders"):
        job_key(read_release(release()).jobs[0])


@pytest.mark.parametrize(
    "extra",
    [
        'convert = ["--imatrix", "{}"]',
        'convert = ["--imatrix={}"]',
        'convert = {{ imatrix = "{}" }}',
        'convert = {{ keep = 9, text = ["{}"] }}',
        'convert = ["--full", "--target-gguf={}"]',
        'convert = ["--tokenizer-model={}"]',
        'convert = ["--tokenizer-model", "."]',
        'target_gguf = "{}"',
        'target_gguf = "x.gguf"\nprompts = "{}"',
        'target_gguf = "x.gguf"\nllama_server = "{}"',
        'target_gguf = "x.gguf"\nvalidate = ["--thresholds={}"]',
        'target_gguf = "x.gguf"\nvalidate = ["--beside={}"]',
        'target_gguf = "x.gguf"\nvalidate = ["--", "--lora={}"]',
        'target_gguf = "x.gguf"\nvalidate = ["--", "--lora", "{}"]',
    ],
)
def test_what_an_option_names_counts_in_any_spelling(
    release: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: str
) -> None:
    monkeypatch.chdir(tmp_path)  # paths of options are the working directory's
    (tmp_path / "x.gguf").touch()
    job = read_release(release(extra=extra.format("named.dat"))).jobs[0]
    seen = set()
    for text in ("a", "b"):
        (tmp_path / "named.dat").write_text(text)
        seen.add(job_key(job))
    assert len(seen) == 2


def test_all_shards_of_a_target_count(release: Any, tmp_path: Path) -> None:
    first, second = (tmp_path / f"t-0000{number}-of-00002.gguf" for number in (1, 2))
    first.touch()
    second.touch()
    job = read_release(release(extra=f'target_gguf = "{first}"')).jobs[0]
    before = job_key(job)
    second.write_text("x")
    assert job_key(job) != before


def test_the_working_directory_is_not_searched_for_places(
    release: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    (work / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(work)
    path = release()
    path.write_text(path.read_text() + "[[pair]]\ndrafter = 'owner/name'\ntarget = 'a/b'\n")
    with pytest.raises(ConfigError, match="pair 2: drafter owner/name is in the working directory, and places are"):
        read_release(path)


def test_a_record_counts_only_with_its_files(tmp_path: Path) -> None:
    write_text(tmp_path / "a.gguf", "data", force=True)
    digest = "3a6eb0790f39ac87c94f3856b2dd2c5d110e6811602261a9a923d3bb23adc8b7"
    record = {"schema": 1, "key": "k", "gguf": "a.gguf", "files": {"a.gguf": digest}}
    write_text(tmp_path / "job.json", json.dumps(record), force=True)
    assert read_record(tmp_path, "k") == record
    assert read_record(tmp_path, "other") is None
    write_text(tmp_path / "a.gguf", "DATA", force=True)
    assert read_record(tmp_path, "k") is None
    for damaged in ("", "[]", "3", '{"schema": 1, "key": "k", "files": 3}'):
        write_text(tmp_path / "job.json", damaged, force=True)
        assert read_record(tmp_path, "k") is None


def test_outcomes_of_processes() -> None:
    outcome = Outcome("p/T", "failed", 6, "validate", "the pair is broken")
    printed = json.dumps(Summary((outcome,), ()).json())
    assert parse_outcome("p/T", 6, printed, "") == outcome
    assert parse_outcome("p/T", -9, "", "").message == "its process was ended by signal 9"
    assert parse_outcome("p/T", 0, "", "").exit_code == 1  # no report is no success
    assert last_error("x\nERROR first\nERROR it broke\nTIP   do this") == "it broke"
    assert Summary((outcome, Outcome("q/T", "done")), ()).exit_code == 6


# --- on one machine


def test_batch(program: Callable[..., Done], release: Any, tmp_path: Path) -> None:
    path = release()
    done = program("batch", path, "--jobs", 2, "--json")
    assert done.code == 0, done.err
    summary = json.loads(done.out)
    assert [(j["name"], j["status"]) for j in summary["jobs"]] == [("tiny/Q8_0", "done"), ("tiny/Q4_0", "done")]
    assert [(p["name"], p["status"]) for p in summary["packages"]] == [("tiny", "done")]
    package = tmp_path / "out" / "packages" / "tiny"
    assert verify_manifest(package) == []
    before = artefacts(tmp_path / "out")

    again = json.loads(program("batch", path, "--json").out)
    assert {o["status"] for o in again["jobs"] + again["packages"]} == {"skipped"}
    assert [j["sha256"] for j in again["jobs"]] == [j["sha256"] for j in summary["jobs"]]

    # a damaged output is made again, and only that one; so is a damaged package
    gguf = tmp_path / "out/jobs/tiny/Q4_0/dflash-tiny-js-Q4_0.gguf"
    gguf.write_bytes(gguf.read_bytes()[:-1])
    (package / "README.md").write_text("scribble")
    repaired = json.loads(program("batch", path, "--json").out)
    assert [o["status"] for o in repaired["jobs"] + repaired["packages"]] == ["skipped", "done", "done"]
    assert artefacts(tmp_path / "out") == before


def test_one_job_by_number_is_the_same_job(program: Callable[..., Done], release: Any, tmp_path: Path) -> None:
    path = release(["Q8_0", "Q4_0"])
    assert program("batch", path, "--list").out.split() == ["0", "tiny/Q8_0", "1", "tiny/Q4_0"]
    done = program("batch", path, "--job", 1, "--json")
    assert done.code == 0, done.err
    assert [(j["name"], j["status"]) for j in json.loads(done.out)["jobs"]] == [("tiny/Q4_0", "done")]
    assert not (tmp_path / "out/packages").exists()
    rest = json.loads(program("batch", path, "--json").out)
    assert [j["status"] for j in rest["jobs"]] == ["done", "skipped"]
    assert rest["packages"][0]["status"] == "done"


def test_one_failure_does_not_stop_the_rest(program: Callable[..., Done], release: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{")
    path = release(["Q8_0"], top="")
    # Q2_K_S needs importance weights, which nobody gives
    text = path.read_text() + f'[[pair]]\nname = "bad"\ndrafter = "{broken}"\ntarget = "{broken}"\n'
    path.write_text(text.replace("types = ['Q8_0']", "types = ['Q2_K_S', 'Q8_0']"))
    done = program("batch", path, "--json")
    summary = json.loads(done.out)
    found = {j["name"]: (j["status"], j["step"], j["exit_code"]) for j in summary["jobs"]}
    assert found["tiny/Q8_0"] == ("done", None, 0)
    assert found["tiny/Q2_K_S"] == ("failed", "convert", 2)
    assert found["bad/Q8_0"] == ("failed", "convert", 3)
    assert [p["status"] for p in summary["packages"]] == ["blocked", "blocked"]
    assert done.code == summary["exit_code"] == 3
    assert "bad/Q8_0: failed at convert (exit 3): " in done.err
    table = program("batch", path, "-q")
    assert table.code == 3
    assert table.err == ""
    assert "tiny/Q8_0     skipped  0" in table.out


def test_what_a_pair_overrules_holds_in_every_step(program: Callable[..., Done], release: Any, tmp_path: Path) -> None:
    extra = 'pre = "llama-bpe"\nconvert = ["--block-size", "6"]\nfidelity = true'
    done = program("batch", release(["Q8_0"], extra), "--json")
    (job,) = json.loads(done.out)["jobs"]
    assert (done.code, job["status"]) == (0, "done"), done.err
    made = open_gguf(Path(job["file"]))
    assert (made.get("dflash.block_size"), made.get("tokenizer.ggml.pre")) == (6, "llama-bpe")
    verified = json.loads((tmp_path / "out/jobs/tiny/Q8_0/verify.json").read_text())
    assert verified["passed"]
    assert verified["fidelity"]["rows"]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ('convert = ["--block-size", "1"]', "convert = …: Invalid value for '--block-size'"),
        ('convert = ["--no-such"]', "convert = …: No such option"),
        ('convert = ["--dry-run"]', "--dry-run has no place in convert"),
        ('convert = ["--validate", "x.gguf"]', "--validate has no place in convert"),
        ('convert = ["-t", "bf16"]', "--outtype has no place in convert"),
        ('convert = ["--help"]', "--help has no place in convert"),
        ("convert = { help = true }", "--help has no place in convert"),
        ('convert = { target_model_dir = "elsewhere" }', "--target-model-dir has no place in convert"),
        ('convert = ["-oplace"]', "--output has no place in convert"),
        ("convert = { json = true }", "--json has no place in convert"),
        ('convert = ["--mask-token-id", "3", "--mask-token-id=4"]', "convert = … has --mask-token-id twice"),
        ('convert = { target-name = "x" }', "convert = … has --target-name, and the pair has target_name"),
        (f'convert = {{ imatrix = "{300 * "x"}" }}', "does not exist"),
        ('target_gguf = "x.gguf"\nvalidate = ["--help"]', "--help has no place in validate"),
        ('target_gguf = "x.gguf"\nvalidate = ["-h"]', "--help has no place in validate"),
        ('target_gguf = "x.gguf"\nn_max = 3\nvalidate = { n-max = "4" }', "has --n-max, and the pair has n_max"),
        ('target_gguf = "x.gguf"\nvalidate = ["--html", "x.html"]', "--html has no place in validate"),
        ('target_gguf = "x.gguf"\nvalidate = ["--near-tie", "x"]', "validate = …: Invalid value for '--near-tie'"),
    ],
)
def test_arguments_that_a_job_cannot_have(
    program: Callable[..., Done], release: Any, tmp_path: Path, extra: str, message: str
) -> None:
    (tmp_path / "x.gguf").touch()
    done = program("batch", release(["Q8_0"], extra), "--json")
    assert done.code == 3
    assert message in json.loads(done.out)["error"]["message"]
    assert not (tmp_path / "out").exists(), "nothing was run"


@pytest.mark.parametrize(("mode", "code", "status"), [("normal", 0, "done"), ("zero-drafts", 6, "failed")])
def test_validation_is_part_of_the_job(
    program: Callable[..., Done], release: Any, tmp_path: Path, fixtures: Path, mode: str, code: int, status: str
) -> None:
    server = tmp_path / "llama-server"
    server.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{FAKE}" {mode} "$@"\n')
    server.chmod(0o755)
    pair = fixtures / "tiny-js"
    extra = (
        f'target_gguf = "{pair / "target-bf16.gguf"}"\nprompts = "{pair / "prompts.jsonl"}"\n'
        f'llama_server = "{server}"\nvalidate = ["--quick"]\nmin_acceptance = 0.1'
    )
    done = program("batch", release(["Q8_0"], extra), "--json")
    summary = json.loads(done.out)
    (job,) = summary["jobs"]
    assert (done.code, job["status"], job["step"]) == (code, status, None if code == 0 else "validate"), done.err
    package = tmp_path / "out/packages/tiny"
    if code:
        assert not package.exists()
        return
    assert job["acceptance"] == pytest.approx(2 / 7, abs=1e-3)  # the fake accepts two of seven drafts
    (run,) = read_manifest(package)["validation"]
    assert run["acceptance"] == job["acceptance"]
    assert run["thresholds"] == {"min_acceptance": 0.1}
    assert (package / "llama-server/preset.ini").is_file()


def running(path: Path, *arguments: str) -> subprocess.Popen[bytes]:
    call = [sys.executable, "-m", "dflash_convert", "batch", str(path), *arguments]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    with path.with_suffix(".err").open("wb") as errors:
        return subprocess.Popen(call, env=env, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_interrupted_anywhere_it_ends_in_the_same_files(
    program: Callable[..., Done], release: Any, tmp_path: Path, number: signal.Signals
) -> None:
    path = release(["Q8_0"])
    done = program("batch", path)
    assert (done.code, done.err.partition(";")[0]) == (0, "1 job, 1 pair")
    out = tmp_path / "out"
    wanted = artefacts(out)
    out.rename(tmp_path / "reference")
    for seen in ("jobs/tiny/Q8_0", "jobs/tiny/Q8_0/*.gguf", "jobs/tiny/Q8_0/job.json"):
        child = running(path)
        wait_for(child, lambda: descendants(child.pid) and list(out.glob(seen)))  # noqa: B023
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        code = child.wait(60)
        assert code in (0, 130 if number == signal.SIGINT else -number, -number)  # to a shell, -SIGINT is 130 too
    assert program("batch", path).code == 0
    assert artefacts(out) == wanted
    assert not list(tmp_path.rglob("*.partial"))


def test_what_a_run_killed_behind_its_last_file_left_goes(
    program: Callable[..., Done], release: Any, tmp_path: Path
) -> None:
    """There the job is finished: nothing is written again that would sweep."""
    path = release(["Q8_0"])
    assert program("batch", path).code == 0
    left = tmp_path / "out/jobs/tiny/Q8_0/.job.json.0123abcd.partial"
    left.mkdir()
    (left / "job.json").write_text("{}")
    done = program("batch", path)
    assert (done.code, "skipped" in done.err) == (0, True)
    assert not left.exists()


def test_an_interrupted_batch_leaves_no_child_and_says_how_to_go_on(release: Any, tmp_path: Path) -> None:
    path = release(["Q8_0", "Q4_0"])
    child = running(path, "--jobs", "2")
    wait_for(child, lambda: descendants(child.pid))
    found = descendants(child.pid)
    assert found
    child.send_signal(signal.SIGINT)
    assert child.wait(60) in (130, -signal.SIGINT)  # the same to a shell
    assert not [pid for pid in found if alive(pid)]
    last = f"finished jobs are kept; the same command goes on:\n  dflash-convert batch {path} --jobs 2\n"
    assert path.with_suffix(".err").read_text("utf-8").endswith(last)


def wait_for(child: subprocess.Popen[bytes], ready: Callable[[], object]) -> None:
    """Until the batch has come so far, or has ended."""
    deadline = time.monotonic() + 60
    while child.poll() is None and not ready():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
        except OSError:
            continue
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# --- on a cluster

HAS_DASK = importlib.util.find_spec("distributed") is not None
needs_dask = pytest.mark.skipif(not HAS_DASK, reason="needs distributed")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A scheduler and two workers, each a process of its own; the address and the workers."""
    place = tmp_path / "scheduler.json"
    env = os.environ | {"PYTHONPATH": str(ROOT), "DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE": "false"}
    env["DASK_TEMPORARY_DIRECTORY"] = str(tmp_path)

    def start(name: str, *arguments: str) -> subprocess.Popen[bytes]:
        call = [sys.executable, "-m", f"distributed.cli.{name}", "--scheduler-file", str(place), "--no-dashboard"]
        log = (tmp_path / f"{name}.log").open("ab")
        with log:
            return subprocess.Popen([*call, *arguments], env=env, stdout=log, stderr=log, start_new_session=True)

    scheduler = start("dask_scheduler", "--host", "127.0.0.1", "--port", "0")
    one = ("--nthreads", "1", "--no-nanny", "--host", "127.0.0.1")
    workers = [start("dask_worker", *one) for _ in range(2)]
    try:
        deadline = time.monotonic() + 60
        while not place.is_file() or not place.read_text().endswith("\n}"):  # it is not written at one stroke
            assert time.monotonic() < deadline, "no scheduler"
            time.sleep(0.05)
        yield json.loads(place.read_text())["address"], workers
    finally:
        for process in (*workers, scheduler):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)


@needs_dask
def test_a_killed_worker_costs_nothing(
    program: Callable[..., Done], release: Any, tmp_path: Path, cluster: Any
) -> None:
    address, workers = cluster
    path = release(["Q8_0", "Q4_0", "BF16"])
    assert program("batch", path, "--no-package").code == 0
    wanted = artefacts(tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "reference")

    child = running(path, "--scheduler", address, "--no-package")
    deadline = time.monotonic() + 60
    victim = None
    while victim is None and time.monotonic() < deadline:
        victim = next((w for w in workers if descendants(w.pid)), None)  # a worker in the middle of a job
        time.sleep(0.005)
    assert victim is not None
    os.killpg(victim.pid, signal.SIGKILL)
    assert child.wait(120) == 0
    assert victim.wait(60) == -signal.SIGKILL
    assert artefacts(tmp_path / "out") == wanted
    again = json.loads(program("batch", path, "--scheduler", address, "--no-package", "--json").out)
    assert {j["status"] for j in again["jobs"]} == {"skipped"}


@needs_dask
def test_no_scheduler(program: Callable[..., Done], release: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from dflash_convert.errors import EngineError
    from dflash_convert.release.cluster import ClusterRunner

    plan = read_release(release())
    with pytest.raises(EngineError, match="no Dask scheduler answers"):
        list(ClusterRunner(plan, "tcp://127.0.0.1:1", force=False, timeout=1)(plan.jobs))
    assert program("batch", release(), "--scheduler", "x", "--jobs", 2).code == 2


def test_without_the_extra(release: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from dflash_convert.release.cluster import ClusterRunner

    monkeypatch.setitem(sys.modules, "distributed", None)
    plan = read_release(release())
    with pytest.raises(UsageError, match="needs the distributed package"):
        list(ClusterRunner(plan, "tcp://127.0.0.1:1", force=False)(plan.jobs))
