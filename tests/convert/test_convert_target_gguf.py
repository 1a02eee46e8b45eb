"""A target's GGUF in the place of its directory: the same file, the same refusals, in every command."""

from __future__ import annotations

import json
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pair_cases import write_fixture_cases, write_target

from dflash_convert.checkpoint import read_config
from dflash_convert.cli import main
from dflash_convert.container.reader import Gguf, open_gguf
from dflash_convert.container.types import KV, TensorType, ValueType, array, array_length, string, u32
from dflash_convert.container.writer import Entry, GgufOutput, layout
from dflash_convert.conversion import Conversion, Options, Source, prepare
from dflash_convert.errors import ContainerError, FamilyError, TokenizerError, UsageError
from dflash_convert.families.tokens import token_id
from dflash_convert.release.plan import read_release
from dflash_convert.target import Target, plain_name
from dflash_convert.vocab import load_vocabulary
from dflash_convert.vocab.copied import copied, vocabulary_of
from dflash_convert.vocab.types import TokenType

PROVENANCE = "dflash_convert.target."


class Done(NamedTuple):
    stdout: str
    stderr: str


def run(*args: str | Path, code: int = 0) -> Done:
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main([str(a) for a in args])
    assert ended.value.code == code, err.getvalue()
    return Done(out.getvalue(), err.getvalue())


@pytest.fixture
def pair(fixtures: Path) -> Path:
    return fixtures / "tiny-js"


def write_gguf(path: Path, keys: list[KV], tensors: int = 1) -> Path:
    rows = next((array_length(kv.value) for kv in keys if kv.name == "tokenizer.ggml.tokens"), 0) or 1
    entries = [Entry("token_embd.weight", (rows, 32), TensorType.F32)] * tensors
    with GgufOutput(path, entries, layout(keys, entries)) as output:
        output.commit()
    return path


def split(source: Path, directory: Path) -> tuple[Path, Path]:
    """``source`` in two files, as llama-gguf-split makes them: keys and some tensors, then the rest."""
    gguf, paths = open_gguf(source), []
    names = list(gguf.tensors)
    for number, part in enumerate((names[:5], names[5:])):
        own = [u32("split.no", number), u32("split.count", 2)]
        keys = [*gguf.keys.values(), *own] if number == 0 else [string("general.architecture", "qwen3"), *own]
        entries = [Entry(name, gguf.tensors[name].shape, gguf.tensors[name].type) for name in part]
        path = directory / f"big-Q4_0-{number + 1:05d}-of-00002.gguf"
        with GgufOutput(path, entries, layout(keys, entries)) as output:
            for name in part:
                output.write_at(output.offset(name), gguf.data(name).tobytes())
            output.commit()
        paths.append(path)
    return paths[0], paths[1]


def told(conversion: Conversion) -> tuple[list[tuple[str, Any]], list[tuple[str, str]]]:
    """Keys and tensors of the first file, without what names the target's files."""
    plan = conversion.files[0]
    keys = [
        (kv.name, (kv.type, list(kv.value) if kv.item is not None else kv.value))
        for kv in plan.keys
        if not kv.name.startswith(PROVENANCE) or kv.name == f"{PROVENANCE}layers"
    ]
    return keys, [(tensor.name, kind.name) for tensor, kind in plan.tensors]


def test_both_routes_give_the_same_bytes(pair: Path, tmp_path: Path) -> None:
    common = ("-t", "q8_0", "--plain", "--model-name", "x", "-o")
    run(pair / "drafter", "--target-model-dir", pair / "target", *common, tmp_path / "a.gguf")
    run(pair / "drafter", "--target-model-dir", pair / "target-bf16.gguf", *common, tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


@pytest.mark.parametrize("plain", [True, False])
def test_every_fixture_is_planned_alike_from_both(fixtures: Path, tmp_path: Path, plain: bool) -> None:
    compared = 0
    for name, path in write_fixture_cases(fixtures, tmp_path).items():
        raw = read_config(path / "target")
        vocabulary = load_vocabulary(path / "target", vocab_size=raw["vocab_size"], plain=plain)
        gguf = write_target(tmp_path / f"{name}.gguf", raw, vocabulary)
        options = Options(plain=plain, force_pair=True, target_name="t")
        try:
            expected = prepare(Source(path / "drafter"), Target.read(path / "target"), options)
        except (FamilyError, UsageError) as refused:
            with pytest.raises(type(refused)):
                prepare(Source(path / "drafter"), Target.read(gguf), options)
            continue
        mine, theirs = told(prepare(Source(path / "drafter"), Target.read(gguf), options)), told(expected)
        # of an EAGLE-3 head the converter writes the target's tokenizer as a Llama's: the target's own GGUF wins
        spaced = [key for key in theirs[0] if name.startswith("eagle3") and key[0] == "tokenizer.ggml.add_space_prefix"]
        assert mine == ([key for key in theirs[0] if key not in spaced], theirs[1]), name
        compared += 1
    assert compared > 10


def test_every_command_takes_it(pair: Path, tmp_path: Path) -> None:
    target, made = pair / "target-bf16.gguf", tmp_path / "dflash-x-Q8_0.gguf"
    done = run(pair / "drafter", "--target-model-dir", target, "-t", "q8_0", "-o", made)
    assert f"llama-server -m {target}" in done.stderr
    assert open_gguf(made).get(f"{PROVENANCE}gguf") == "target-bf16.gguf"
    assert open_gguf(made).get(f"{PROVENANCE}name") == "target"
    assert json.loads(run("check", pair / "drafter", target, "--json").stdout)["findings"] == []
    verified = json.loads(run("verify", made, pair / "drafter", "--target-model-dir", target, "--json").stdout)
    assert verified["differences"] == []
    assert any("a GGUF brings none" in note for note in verified["notes"])
    shown = json.loads(run("inspect", pair / "drafter", "--target-model-dir", target, "--memory", "--json").stdout)
    assert shown["tokenizer"]["pre_source"] == "target-bf16.gguf"
    assert shown["memory"]["target"]["weights_mib"] > 3


def test_fidelity_runs_the_file_itself(pair: Path, tmp_path: Path) -> None:
    target, made = pair / "target-bf16.gguf", tmp_path / "dflash-x-Q8_0.gguf"
    run(pair / "drafter", "--target-model-dir", target, "-t", "q8_0", "-o", made)
    call = ("verify", made, pair / "drafter", "--fidelity", "--json", "--target-model-dir")
    (row,) = json.loads(run(*call, target).stdout)["fidelity"]["rows"]
    (other,) = json.loads(run(*call, pair / "target", "--target-gguf", target).stdout)["fidelity"]["rows"]
    assert row["agreement"] > 0.9
    assert row["agreement"] == pytest.approx(other["agreement"], abs=0.1)


def test_a_file_of_another_vocabulary_is_no_equal(pair: Path, tmp_path: Path) -> None:
    made = tmp_path / "dflash-x-Q8_0.gguf"
    run(pair / "drafter", "--target-model-dir", pair / "target", "-t", "q8_0", "-o", made)
    gguf = open_gguf(pair / "target-bf16.gguf")
    tokens = list(gguf.get("tokenizer.ggml.tokens"))
    tokens[300] += "x"
    changed = [kv if kv.name != "tokenizer.ggml.tokens" else array(kv.name, ValueType.STRING, tokens) for kv in
               gguf.keys.values()]  # fmt: skip
    other = write_gguf(tmp_path / "other.gguf", changed)
    done = run("verify", made, pair / "drafter", "--target-model-dir", other, code=5)
    assert "tokenizer.ggml.tokens" in done.stdout


def test_each_rule_of_a_pair_sees_the_header(pair: Path, tmp_path: Path) -> None:
    gguf = open_gguf(pair / "target-bf16.gguf")
    for key, value, rule in (
        ("qwen3.block_count", 5, "target-depth"),
        ("qwen3.embedding_length", 96, "target-width"),
        ("general.architecture", "deepseek2", "target-architecture"),
    ):
        keys = [kv if kv.name != key else KV(key, kv.type, value) for kv in gguf.keys.values()]
        if key == "general.architecture":
            keys = [KV(kv.name.replace("qwen3.", "deepseek2."), kv.type, kv.value, kv.item) for kv in keys]
        other = write_gguf(tmp_path / f"{rule}.gguf", keys)
        done = run(pair / "drafter", "--target-model-dir", other, "-o", tmp_path / "x.gguf", code=4)
        assert rule in done.stderr
        assert not (tmp_path / "x.gguf").exists()


def test_a_split_file_by_any_part(pair: Path, tmp_path: Path) -> None:
    first, second = split(pair / "target-bf16.gguf", tmp_path)
    whole = Target.read(pair / "target-bf16.gguf")
    for part in (first, second):
        target = Target.read(part)
        assert target.gguf == first
        assert target.name == "big"
        assert target.config == whole.config
        call = ("inspect", pair / "drafter", "--target-model-dir", part, "--memory", "--json")
        memory = json.loads(run(*call).stdout)["memory"]["target"]
        assert memory["weights_mib"] == pytest.approx(3.07, abs=0.01)
    del target  # which has the files mapped
    second.unlink()
    assert json.loads(run(*call[:3], first, *call[4:]).stdout)["memory"]["target"]["weights_mib"] is None
    run("check", pair / "drafter", first)
    first.unlink()
    assert "no such file" in run("check", pair / "drafter", first, code=2).stderr


NO_TARGETS = {
    "a multimodal projector (mmproj)": [string("general.architecture", "clip")],
    "an importance matrix": [string("general.type", "imatrix")],
    "an adapter": [string("general.type", "adapter"), string("general.architecture", "qwen3")],
    "a vocabulary without weights": [
        string("general.architecture", "qwen3"),
        string("tokenizer.ggml.model", "gpt2"),
        array("tokenizer.ggml.tokens", ValueType.STRING, ["a"]),
    ],
}


@pytest.mark.parametrize("what", NO_TARGETS)
def test_what_is_no_target_is_named(pair: Path, tmp_path: Path, what: str) -> None:
    path = write_gguf(tmp_path / "x.gguf", NO_TARGETS[what], tensors="without" not in what)
    for call in (
        (pair / "drafter", "--target-model-dir", path, "-o", tmp_path / "out.gguf"),
        ("check", pair / "drafter", path),
        ("verify", pair / "target-bf16.gguf", pair / "drafter", "--target-model-dir", path),
        ("inspect", pair / "drafter", "--target-model-dir", path),
    ):
        assert f"x.gguf is {what}, not a target model" in run(*call, code=3).stderr


def test_a_file_without_tensors_is_no_target(pair: Path, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", [string("general.architecture", "qwen3")], tensors=0)
    assert "holds no tensors" in run("check", pair / "drafter", path, code=3).stderr
    parts = [
        string("general.architecture", "qwen3"),
        u32("split.count", 2),
        *(kv for kv in open_gguf(pair / "target-bf16.gguf").keys.values() if not kv.name.startswith("general.arch")),
    ]
    first = write_gguf(tmp_path / "x-00001-of-00002.gguf", parts, tensors=0)  # as llama-gguf-split may write it
    run("check", pair / "drafter", first)


def test_a_drafter_as_target_is_refused_as_a_pair(pair: Path, tmp_path: Path) -> None:
    made = tmp_path / "dflash-x.gguf"
    run(pair / "drafter", "--target-model-dir", pair / "target", "-o", made)
    done = run(pair / "drafter", "--target-model-dir", made, "-o", tmp_path / "y.gguf", code=4)
    assert "target-is-drafter" in done.stderr


def tokens_only(path: Path, *more: KV) -> Gguf:
    keys = [
        string("tokenizer.ggml.model", "llama"),
        array("tokenizer.ggml.tokens", ValueType.STRING, ["a", "b", "[PAD2]"]),
        array("tokenizer.ggml.scores", ValueType.FLOAT32, [0.0, -1.0, -10000.0]),
        array("tokenizer.ggml.token_type", ValueType.INT32, [1, 1, TokenType.UNUSED]),
        *more,
    ]
    return open_gguf(write_gguf(path, keys))


def test_the_vocabulary_is_padded_or_loses_padding(tmp_path: Path) -> None:
    gguf = tokens_only(tmp_path / "t.gguf", u32("tokenizer.ggml.eos_token_id", 1))
    assert [kv.value for kv in copied(gguf, 3).entries] == [kv.value for kv in gguf.keys.values()]
    longer = {kv.name: kv.value for kv in copied(gguf, 5).entries}
    assert list(longer["tokenizer.ggml.tokens"]) == ["a", "b", "[PAD2]", "[PAD3]", "[PAD4]"]
    assert list(longer["tokenizer.ggml.token_type"]) == [1, 1, 5, 5, 5]
    assert list(longer["tokenizer.ggml.scores"])[3:] == [-10000.0, -10000.0]
    assert list({kv.name: kv.value for kv in copied(gguf, 2).entries}["tokenizer.ggml.tokens"]) == ["a", "b"]
    with pytest.raises(TokenizerError, match="its 3 tokens do not fit the drafter's vocab_size 1"):
        copied(gguf, 1)
    assert copied(gguf, 3).special == {"eos": 1}


def test_a_damaged_vocabulary_is_named(tmp_path: Path) -> None:
    short = [string("tokenizer.ggml.model", "gpt2"), array("tokenizer.ggml.tokens", ValueType.STRING, ["a", "b"])]
    wrong = array("tokenizer.ggml.token_type", ValueType.INT32, [1])
    with pytest.raises(ContainerError, match=r"token_type has 1 items for 2 tokens"):
        copied(open_gguf(write_gguf(tmp_path / "a.gguf", [*short, wrong])), 2)
    numbers = [short[0], array("tokenizer.ggml.tokens", ValueType.INT32, [1, 2])]
    with pytest.raises(ContainerError, match="is not an array of STRING"):
        copied(open_gguf(write_gguf(tmp_path / "b.gguf", numbers)), 2)
    with pytest.raises(TokenizerError, match="carries no vocabulary"):
        copied(open_gguf(write_gguf(tmp_path / "c.gguf", short[:1])), 2)


def test_options_for_reading_files_do_not_apply(pair: Path, tmp_path: Path) -> None:
    target = Target.read(pair / "target-bf16.gguf")
    with pytest.raises(UsageError, match="--pre does not apply"):
        vocabulary_of(target, vocab_size=512, pre="qwen2")
    with pytest.raises(UsageError, match="--tokenizer-model does not apply"):
        vocabulary_of(target, vocab_size=512, tokenizer_model=tmp_path)


def test_a_mask_token_by_its_text(pair: Path) -> None:
    files, file = Target.read(pair / "target"), Target.read(pair / "target-bf16.gguf")
    for text in ("<|im_end|>", "<|endoftext|>", "no such token"):
        assert token_id(file, text) == token_id(files, text)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("owner/Qwen3-8B-GGUF", "Qwen3-8B"),
        ("Qwen3-8B-Q4_K_M.gguf", "Qwen3-8B"),
        ("a/b/Qwen3-8B-UD-IQ2_XXS-00001-of-00003.gguf", "Qwen3-8B"),
        ("gpt-oss-20b-mxfp4.gguf", "gpt-oss-20b"),
        ("target-bf16.gguf", "target"),
        ("Q8_0.gguf", "Q8_0"),
        ("model.gguf", "model"),
    ],
)
def test_the_models_name_without_its_format(place: str, name: str) -> None:
    assert plain_name(place) == name


def test_a_release_takes_it(pair: Path, tmp_path: Path) -> None:
    target = tmp_path / "Tiny-BF16.gguf"
    target.symlink_to(pair / "target-bf16.gguf")
    plan = tmp_path / "release.toml"
    plan.write_text(
        f'types = ["Q8_0"]\n[[pair]]\ndrafter = "{pair / "drafter"}"\ntarget = "Tiny-BF16.gguf"\nfidelity = true\n'
    )
    (read,) = read_release(plan).pairs
    assert (read.name, read.target) == ("Tiny", str(target))
    done = json.loads(run("batch", plan, "--json").stdout)
    assert [job["status"] for job in done["jobs"]] == ["done"]
    assert Path(done["jobs"][0]["file"]).name == "dflash-Tiny-Q8_0.gguf"
    verified = json.loads((tmp_path / "out/release/jobs/Tiny/Q8_0/verify.json").read_text())
    assert verified["differences"] == []
    assert verified["fidelity"]["rows"][0]["agreement"] > 0.9


def test_a_directory_of_ggufs_is_its_first_model(pair: Path, tmp_path: Path) -> None:
    for name in ("x-BF16.gguf", "x-Q8_0.gguf"):
        (tmp_path / name).symlink_to(pair / "target-bf16.gguf")
    (tmp_path / "mmproj-F16.gguf").write_bytes(b"GGUF")
    (tmp_path / "config.json").write_text("{}")
    done = run("check", pair / "drafter", tmp_path)
    assert "x-BF16.gguf stands for the target: the first of 2 GGUFs there" in done.stderr
