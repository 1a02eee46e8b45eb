"""convert --validate: the three steps behind a conversion, and what is left when one fails."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from dflash_convert.cli import cli
from dflash_convert.container.reader import open_gguf
from dflash_convert.container.writer import Entry, GgufOutput, layout
from dflash_convert.conversion import Options, Source
from dflash_convert.drafter import Overrides
from dflash_convert.errors import OutputError, PairingError, ValidationError, VerificationError
from dflash_convert.pipeline import Proving, Task, Watcher, run
from dflash_convert.target import Target

PAIR = Path(__file__).resolve().parents[2] / "fixtures" / "tiny-js"


def arguments(out: Path, target: Path, *more: str) -> list[str]:
    prompts = out.parent / "prompts.jsonl"
    lines = (PAIR / "prompts.jsonl").read_text().splitlines()[:3]
    prompts.write_text("\n".join(lines))
    base = [str(PAIR / "drafter"), "--target-model-dir", str(PAIR / "target"), "-t", "q8_0", "-o", str(out)]
    return [*base, "--validate", str(target), "--prompts", str(prompts), "--n-max", "7", "--quick", *more]


def with_another_token(source: Path, to: Path) -> None:
    """A copy of a target GGUF in which one token reads differently (its weights are left out: zeros)."""
    gguf = open_gguf(source)
    tokens = list(gguf.get("tokenizer.ggml.tokens"))
    tokens[100] = "somethingElse"
    keys = [replace(kv, value=tokens) if kv.name == "tokenizer.ggml.tokens" else kv for kv in gguf.keys.values()]
    entries = [Entry(t.name, t.shape, t.type) for t in gguf.tensors.values()]
    with GgufOutput(to, entries, layout(keys, entries)) as output:
        output.commit()


@pytest.mark.engine
def test_a_good_pair_ends_under_its_name(tmp_path: Path) -> None:
    out = tmp_path / "dflash-tiny.gguf"
    arguments_ = arguments(out, PAIR / "target-bf16.gguf", "--json")
    result = CliRunner().invoke(cli, arguments_, catch_exceptions=False)
    assert result.exit_code == 0
    proof = json.loads(result.stdout)[0]
    assert proof["path"] == str(out)
    assert [f for f in proof["check"]["findings"] if f["severity"] == "error"] == []
    assert proof["verify"]["passed"] is True
    assert proof["validate"]["verdict"] == "healthy"
    assert proof["validate"]["total"]["identical"] is True
    assert f"llama-server -m {PAIR / 'target-bf16.gguf'} -md {out}" in result.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dflash-tiny.gguf", "prompts.jsonl"]


@pytest.mark.engine
def test_what_the_caller_overruled_is_no_difference(tmp_path: Path) -> None:
    out = tmp_path / "dflash-tiny.gguf"
    more = ("--json", "--block-size", "6", "--pre", "llama-bpe")
    result = CliRunner().invoke(cli, arguments(out, PAIR / "target-bf16.gguf", *more), catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)[0]["verify"]["passed"] is True
    base = ["verify", str(out), str(PAIR / "drafter"), "--target-model-dir", str(PAIR / "target")]
    for options, code in ((["--block-size", "6", "--pre", "llama-bpe"], 0), (["--block-size", "6"], 5), ([], 5)):
        assert getattr(CliRunner().invoke(cli, [*base, *options]).exception, "exit_code", 0) == code, options


@pytest.mark.engine
@pytest.mark.shared
@pytest.mark.parametrize("keep", [False, True])
def test_a_broken_pair_is_removed_or_kept_as_asked(shared: Path, tmp_path: Path, keep: bool) -> None:
    out = tmp_path / "dflash-tiny.gguf"
    other = shared / "pairs" / "tiny-js" / "other-target-bf16.gguf"
    with pytest.raises(ValidationError, match="the pair is broken"):
        CliRunner().invoke(cli, arguments(out, other, *(["--keep-failed"] if keep else [])), catch_exceptions=False)
    assert out.exists() is keep
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_check_stops_before_the_engine_and_the_old_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "dflash-tiny.gguf"
    out.write_bytes(b"the old one")
    monkeypatch.setattr("dflash_convert.validation.run.validate", None)  # reaching it would be a TypeError
    target = tmp_path / "other-vocabulary.gguf"
    with_another_token(PAIR / "target-bf16.gguf", target)
    with pytest.raises(PairingError, match=r"do not belong together: vocabulary"):
        CliRunner().invoke(cli, [*arguments(out, target), "--force"], catch_exceptions=False)
    assert out.read_bytes() == b"the old one"


def test_verify_stops_before_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dflash_convert.verification import tensors

    out = tmp_path / "dflash-tiny.gguf"
    monkeypatch.setattr("dflash_convert.validation.run.validate", None)
    real = tensors.verify

    def damaged(file: Path, *args: object, **options: object) -> object:
        tensor = open_gguf(file).tensors["fc.weight"]
        data = bytearray(file.read_bytes())
        data[tensor.offset + 2] ^= 0x7F
        file.write_bytes(data)
        return real(file, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("dflash_convert.verification.tensors.verify", damaged)
    with pytest.raises(VerificationError, match=r"fc\.weight"):
        CliRunner().invoke(cli, arguments(out, PAIR / "target-bf16.gguf"), catch_exceptions=False)
    assert not out.exists()


def test_without_a_target_gguf_the_pair_is_checked_and_verified(tmp_path: Path) -> None:
    """The library's own call: progress and reports arrive in order, and an error leaves nothing."""

    class Seen(Watcher):
        def __init__(self) -> None:
            self.steps: list[str] = []
            self.reports: list[str] = []
            self.elements = 0

        def step(self, name: str) -> None:
            self.steps.append(name)

        def wrote(self, elements: int) -> None:
            self.elements += elements

        def report(self, step: str, document: dict[str, object]) -> None:
            self.reports.append(step)

    task = Task(Source(PAIR / "drafter"), Target.read(PAIR / "target"), output=tmp_path / "x.gguf", proving=Proving())
    seen = Seen()
    result = run(task, seen)
    (made,) = result.files
    assert made.written.path == tmp_path / "x.gguf"
    assert made.proof is not None
    assert made.proof.verified.passed
    assert made.proof.verified.path == tmp_path / "x.gguf"
    assert made.proof.validated is None
    assert (seen.steps, seen.reports) == (["convert", "check", "verify"], ["check", "verify"])
    assert seen.elements == sum(math.prod(t.shape) for t in result.prepared.conversion.description.tensors)
    with pytest.raises(OutputError, match="exists already"):
        run(task)


def test_what_the_caller_overruled_holds_for_the_fidelity_too(tmp_path: Path) -> None:
    """A drafter whose config.json has lost its block size: every step reads it as the conversion did."""
    drafter = Path(shutil.copytree(PAIR / "drafter", tmp_path / "drafter"))
    config = json.loads((drafter / "config.json").read_text())
    config.pop("block_size", None)
    config["dflash_config"].pop("block_size", None)
    (drafter / "config.json").write_text(json.dumps(config))
    overrides = Overrides(block_size=6)
    proving = Proving(fidelity=True)
    source, target = Source(drafter), Target.read(PAIR / "target")
    task = Task(source, target, Options(overrides=overrides), tmp_path / "x.gguf", proving=proving)
    (made,) = run(task).files
    assert made.proof is not None
    assert made.proof.verified.fidelity is not None
    assert made.proof.verified.fidelity.rows[0].cosine == pytest.approx(1)
    base = ["verify", str(tmp_path / "x.gguf"), str(drafter), "--target-model-dir", str(PAIR / "target"), "--fidelity"]
    done = CliRunner().invoke(cli, [*base, "--block-size", "6", "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    assert json.loads(done.stdout)["fidelity"]["rows"][0]["cosine"] == pytest.approx(1)
    assert CliRunner().invoke(cli, base).exit_code != 0
