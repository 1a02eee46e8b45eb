"""verify finds every change of a byte or key, and accepts every honest encoding."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import parity_cases
import pytest
from verify_files import Keys, Tensors, rewrite

from dflash_convert.container.types import TensorType, array, boolean, f32, string, u32
from dflash_convert.container.types import ValueType as V
from dflash_convert.errors import ConfigError, UsageError, VerificationError
from dflash_convert.system import can_share
from dflash_convert.target import Target
from dflash_convert.verification.drafts import add_fidelity
from dflash_convert.verification.tensors import VerifyResult, verify

Convert = Callable[[str], Path]
Change = Callable[[Keys, Tensors], None]


@pytest.fixture
def check(fixtures: Path, converted: Convert, tmp_path: Path) -> Callable[[str, Change], VerifyResult]:
    def run(outtype: str, change: Change) -> VerifyResult:
        pair = fixtures / "tiny-js"
        changed = rewrite(converted(outtype), tmp_path / "changed.gguf", change)
        return verify(changed, pair / "drafter", Target.read(pair / "target"))

    return run


@pytest.mark.parametrize(
    ("outtype", "status", "low", "high"),
    [
        ("BF16", "equal", None, None),
        ("F32", "equal", None, None),
        ("F16", "rounded", 70, 200),
        ("Q8_0", "quantized", 44, 47),
        ("Q4_0", "quantized", 20, 23),
        ("Q5_1", "quantized", 27, 31),
        ("Q6_K", "quantized", 34, 47),
        ("Q4_K_M", "quantized", 22, 47),
    ],
)
def test_honest_encodings_pass(
    fixtures: Path, converted: Convert, outtype: str, status: str, low: float | None, high: float | None
) -> None:
    pair = fixtures / "tiny-js"
    result = verify(converted(outtype), pair / "drafter", Target.read(pair / "target"))
    assert result.differences == ()
    assert len(result.tensors) == 36
    norms = [t for t in result.tensors if "norm" in t.name]
    assert {(t.type, t.status) for t in norms} == {("F32", "equal")}
    matrices = [t for t in result.tensors if "norm" not in t.name]
    assert status in {t.status for t in matrices}
    for tensor in matrices:
        if tensor.status != "equal":
            assert tensor.snr_db is not None
            assert low is not None
            assert high is not None
            assert low < tensor.snr_db < high, tensor
            assert tensor.decoder == ("gguf" if status == "quantized" else "numpy")


def test_figures_are_those_of_the_encoding(fixtures: Path, converted: Convert) -> None:
    """RMSE and largest error of one tensor, recomputed here from both files."""
    from gguf import GGMLQuantizationType, quants
    from safetensors import safe_open

    from dflash_convert.container.reader import open_gguf

    pair = fixtures / "tiny-js"
    result = verify(converted("Q4_0"), pair / "drafter", Target.read(pair / "target"))
    report = next(t for t in result.tensors if t.name == "fc.weight")
    with safe_open(pair / "drafter" / "model.safetensors", framework="numpy") as file:
        name = next(n for n in file.keys() if n.endswith("fc.weight"))  # noqa: SIM118
        shape = file.get_slice(name).get_shape()
    from dflash_convert.checkpoint import Reader, open_checkpoint

    source = next(t for n, t in open_checkpoint(pair / "drafter").tensors.items() if n.endswith("fc.weight"))
    raw = np.empty(source.nbytes, np.uint8)
    with Reader() as reader:
        reader.into(source, 0, raw.data)
    expected = (raw.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
    found = quants.dequantize(open_gguf(converted("Q4_0")).data("fc.weight"), GGMLQuantizationType.Q4_0)
    gap = np.abs(expected.astype(np.float64) - found)
    assert report.max_error == pytest.approx(gap.max(), rel=1e-12)
    assert report.rmse == pytest.approx(np.sqrt((gap**2).mean()), rel=1e-6)  # sums are of float32 squares


def data(name: str, edit: Callable[[bytearray], None]) -> Change:
    def change(keys: Keys, tensors: Tensors) -> None:
        shape, kind, content = tensors[name]
        copy = bytearray(content)
        edit(copy)
        tensors[name] = (shape, kind, bytes(copy))

    return change


def flip(content: bytearray) -> None:
    content[1001] ^= 1


def infinite_scale(content: bytearray) -> None:
    content[34 * 7 : 34 * 7 + 2] = b"\x00\x7c"


def swap_blocks(content: bytearray) -> None:
    content[0:18], content[18 * 40 : 18 * 41] = content[18 * 40 : 18 * 41], content[0:18]


@pytest.mark.parametrize(
    ("outtype", "edit", "message"),
    [
        ("BF16", flip, "differs from its source"),
        ("F32", flip, "differs from its source"),
        ("Q8_0", infinite_scale, "holds NaN or Inf"),
        ("Q4_0", swap_blocks, "is not its source in Q4_0"),
    ],
)
def test_one_damaged_place_is_one_difference(
    check: Callable[[str, Change], VerifyResult], outtype: str, edit: Callable[[bytearray], None], message: str
) -> None:
    result = check(outtype, data("blk.1.ffn_up.weight", edit))
    (difference,) = result.differences
    assert difference.startswith(f"tensor blk.1.ffn_up.weight {message}")
    with pytest.raises(VerificationError, match=r"blk\.1\.ffn_up\.weight"):
        result.raise_for_status()


def set_key(kv: object) -> Change:
    def change(keys: Keys, tensors: Tensors) -> None:
        keys[kv.name] = kv  # type: ignore[attr-defined,assignment]

    return change


def drop_key(name: str) -> Change:
    return lambda keys, tensors: keys.pop(name) and None


def swap_tokens(keys: Keys, tensors: Tensors) -> None:
    tokens = list(keys["tokenizer.ggml.tokens"].value)
    tokens[10], tokens[11] = tokens[11], tokens[10]
    keys["tokenizer.ggml.tokens"] = array("tokenizer.ggml.tokens", V.STRING, tokens)


def half_norm(keys: Keys, tensors: Tensors) -> None:
    shape, _, content = tensors["output_norm.weight"]
    halves = np.frombuffer(content, np.float32).astype(np.float16)
    tensors["output_norm.weight"] = (shape, TensorType.F16, halves.tobytes())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (set_key(u32("dflash.block_size", 9)), "key dflash.block_size is 9, expected 8"),
        (set_key(f32("dflash.rope.freq_base", 1e7)), "key dflash.rope.freq_base is 10000000, expected 1000000"),
        (drop_key("dflash.target_layers"), "key dflash.target_layers is missing, expected [2, 4, 5]"),
        (
            set_key(boolean("dflash.attention.causal", True)),
            "key dflash.attention.causal is True, the checkpoint does not mention it",
        ),
        (set_key(u32("tokenizer.ggml.mask_token_id", 1)), "key tokenizer.ggml.mask_token_id is 1, expected 503"),
        (set_key(string("tokenizer.chat_template", "x")), "key tokenizer.chat_template is 'x', expected"),
        (set_key(string("general.architecture", "qwen3")), "general.architecture is 'qwen3', expected 'dflash'"),
        (swap_tokens, "key tokenizer.ggml.tokens differs at 10"),
        (
            set_key(string("dflash_convert.drafter.config_sha256", "0" * 64)),
            "the file was made from another config.json",
        ),
        (half_norm, "tensor output_norm.weight is F16, llama.cpp keeps it F32"),
        (lambda keys, tensors: tensors.pop("blk.2.attn_k_norm.weight") and None, "tensor blk.2.attn_k_norm.weight is"),
    ],
)
def test_every_key_and_name_counts(check: Callable[[str, Change], VerifyResult], change: Change, expected: str) -> None:
    (difference,) = check("BF16", change).differences
    assert difference.startswith(expected)


def test_all_differences_come_at_once_with_exit_5(fixtures: Path, converted: Convert, tmp_path: Path) -> None:
    def change(keys: Keys, tensors: Tensors) -> None:
        keys["dflash.block_size"] = u32("dflash.block_size", 9)
        tensors.pop("fc.weight")
        data("blk.0.attn_q.weight", flip)(keys, tensors)

    pair = fixtures / "tiny-js"
    path = rewrite(converted("BF16"), tmp_path / "x.gguf", change)
    call = [sys.executable, "-m", "dflash_convert", "verify", path, pair / "drafter"]
    done = subprocess.run([*call, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 5
    document = json.loads(done.stdout)
    assert document["passed"] is False
    assert len(document["differences"]) == 3
    assert "were not checked" in document["notes"][0]
    table = subprocess.run(call, capture_output=True, text=True, check=False)
    assert table.stdout.count("DIFFERENT") == 3


def test_the_reference_converters_files_pass(shared: Path, tmp_path: Path) -> None:
    """--plain is the reference's file byte for byte (tests/parity); special tokens it loses are no difference."""
    from dflash_convert.conversion import Options, Source, prepare, write

    cases = ["dflash_spm_llama", "dflash_swa_gemma4", "dspark_speculators_d2t", "dflash_interleaved_rope_use_swa"]
    for case in cases:
        parity_cases.write_case(case, tmp_path / case, shared / "tokenizers")
        drafter, target = tmp_path / case / "drafter", tmp_path / case / "target"
        path = tmp_path / f"{case}.gguf"
        write(prepare(Source(drafter), Target.read(target), Options(outtypes=("Q8_0",), plain=True)), [path])
        assert verify(path, drafter, Target.read(target)).differences == (), case


def test_a_source_that_needs_the_target_says_so(fixtures: Path, converted: Convert) -> None:
    with pytest.raises(ConfigError, match=r"^the target's config\.json: hidden_size is missing") as error:
        verify(converted("Q8_0"), fixtures / "tiny-js" / "eagle3")
    assert error.value.tip == "--target-model-dir names the target"


def test_fidelity_uses_the_targets_own_text(fixtures: Path, converted: Convert) -> None:
    pair = fixtures / "tiny-js"
    exact, coarse = (
        add_fidelity(
            verify(converted(t), pair / "drafter", Target.read(pair / "target")),
            pair / "drafter",
            Target.read(pair / "target", gguf=pair / "target-bf16.gguf"),
        )
        for t in ("F32", "Q4_0")
    )
    assert exact.fidelity is not None
    assert coarse.fidelity is not None
    assert exact.fidelity.rows[0].agreement == 1.0
    assert exact.fidelity.rows[0].cosine == pytest.approx(1.0, abs=1e-6)
    assert exact.fidelity.source_acceptance is not None
    assert 0.9 < coarse.fidelity.rows[0].cosine < 0.9999
    json.dumps(coarse.json())


def test_fidelity_without_the_targets_weights_compares_no_drafts(
    fixtures: Path, converted: Convert, capsys: pytest.CaptureFixture[str]
) -> None:
    """60.1 % same drafts and an expected loss of 72.9 % were printed of a file that loses 0.3 % with its target."""
    from dflash_convert.cli import cli

    pair = fixtures / "tiny-js"
    call = ["verify", str(converted("Q4_0")), str(pair / "drafter"), "--target-model-dir", str(pair / "target")]
    cli.main([*call, "--fidelity"], standalone_mode=False)
    shown = capsys.readouterr()
    assert "logit distance 0." in shown.out
    assert "same drafts" not in shown.out
    assert "expected loss" not in shown.out
    assert "fidelity compares no drafts" in shown.err
    cli.main([*call, "--fidelity", "--target-gguf", str(pair / "target-bf16.gguf")], standalone_mode=False)
    assert "same drafts 9" in capsys.readouterr().out


def test_a_target_that_the_forward_does_not_run_is_said(fixtures: Path, converted: Convert, tmp_path: Path) -> None:
    pair = fixtures / "tiny-js"
    other = rewrite(
        pair / "target-bf16.gguf",
        tmp_path / "other.gguf",
        lambda keys, _: keys.update({"general.architecture": string("general.architecture", "gemma4")}),
    )
    checked = verify(converted("F32"), pair / "drafter", Target.read(pair / "target"))
    found = add_fidelity(checked, pair / "drafter", Target.read(pair / "target", gguf=other))
    assert found.fidelity is not None
    assert found.fidelity.source_acceptance is None
    assert any(f"runs qwen3 targets, and {other} is gemma4" in note.text for note in found.notes)
    with pytest.raises(UsageError, match="is a drafter"):
        add_fidelity(checked, pair / "drafter", Target.read(pair / "target", gguf=converted("F32")))


def test_memory_stays_flat(fixtures: Path, tmp_path: Path) -> None:
    """A file of 160 MB is compared in far less memory than it has."""
    call = [sys.executable, "-c", MEMORY_SCRIPT, fixtures / "tiny-js", tmp_path]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    before, after, worker = map(int, done.stdout.split())
    assert (tmp_path / "big.gguf").stat().st_size > 150e6
    assert after - before < 60_000  # KiB
    assert worker < before + 60_000
    assert (worker > 0) is can_share(), "no workers where files cannot be handed over"


MEMORY_SCRIPT = """
import json, resource, shutil, struct, sys
from pathlib import Path
import numpy as np
from dflash_convert.checkpoint import open_checkpoint
from dflash_convert.conversion import Options, Source, prepare, write
from dflash_convert.verification.tensors import verify
from dflash_convert.target import Target

pair, out = Path(sys.argv[1]), Path(sys.argv[2])
drafter = out / "big"
shutil.copytree(pair / "drafter", drafter)
checkpoint = open_checkpoint(drafter)
config = dict(checkpoint.config, intermediate_size=70_000)
(drafter / "config.json").write_text(json.dumps(config))
shapes = {n: [70_000 if s == 384 and "mlp" in n else s for s in t.shape] for n, t in checkpoint.tensors.items()}
header, at = {}, 0
for name, shape in shapes.items():
    size = 2 * int(np.prod(shape))
    header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
    at += size
text = json.dumps(header).encode()
rng = np.random.default_rng(0)
with (drafter / "model.safetensors").open("wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    while at:
        n = min(at, 1 << 20)
        noise = rng.standard_normal(n // 2, np.float32).view(np.uint32) >> 16
        file.write(noise.astype("<u2").tobytes())
        at -= n
small = out / "small.gguf"
for source, path in ((pair / "drafter", small), (drafter, out / "big.gguf")):
    write(prepare(Source(source), Target.read(pair / "target"), Options()), [path], threads=1)
verify(small, pair / "drafter", Target.read(pair / "target"))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert verify(out / "big.gguf", drafter, Target.read(pair / "target"), threads=1).passed
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert verify(out / "big.gguf", drafter, Target.read(pair / "target"), threads=2).passed
print(before, after, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.engine
def test_the_vocabulary_is_tried_in_llama_cpp(fixtures: Path, tmp_path: Path) -> None:
    """A merge that is gone leaves every key plausible; only splitting text shows it."""
    from dflash_convert import conversion as convert
    from dflash_convert.verification.tensors import verify
    from dflash_convert.verification.trial import tried

    pair = fixtures / "tiny-js"
    path = tmp_path / "dflash-tiny.gguf"
    options = convert.Options(outtypes=("q8_0",))
    conversion = convert.prepare(convert.Source(pair / "drafter"), Target.read(pair / "target"), options)
    convert.write(conversion, [path])
    result = verify(path, pair / "drafter", Target.read(pair / "target"), engine=True)
    assert result.differences == ()
    assert any("splits 22 probe texts as the target's tokenizer does" in note.text for note in result.notes)

    broken = tmp_path / "target"
    broken.mkdir()
    for file in (pair / "target").iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    tokenizer = json.loads((broken / "tokenizer.json").read_text())
    del tokenizer["model"]["merges"][40:]
    (broken / "tokenizer.json").write_text(json.dumps(tokenizer))
    wrong = tried(path, broken)
    assert wrong.differences
    assert wrong.differences[0].startswith("llama.cpp splits '")
