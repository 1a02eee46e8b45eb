"""Own embeddings and heads against the target's weights; maps, encodings and tokenizers as files really hold them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pairing_files import write_gguf

from dflash_convert.container.reader import open_gguf
from dflash_convert.container.types import KV, TensorType, array, string, u32
from dflash_convert.container.types import ValueType as V
from dflash_convert.pairing import DrafterView, Finding, TargetView, check, open_pair
from dflash_convert.pairing.copies import likeness
from dflash_convert.pairing.encoding import encoding_fault
from dflash_convert.plan import TypeOptions
from dflash_convert.quantization import quantize_file

Edit = Callable[[np.ndarray], np.ndarray]
RANDOM = np.random.default_rng(7)


def table(gguf: Path, name: str) -> np.ndarray:
    """A bf16 table of a GGUF as float32."""
    file = open_gguf(gguf)
    info = file.tensors[name]
    return (file.data(name).reshape(-1).view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(info.shape)


def untrained(values: np.ndarray) -> np.ndarray:
    return RANDOM.standard_normal(values.shape).astype(np.float32) * np.float32(0.02)


def trained_further(values: np.ndarray) -> np.ndarray:
    noise = RANDOM.standard_normal(values.shape).astype(np.float32)
    return values + noise * values.std(axis=1, keepdims=True)


def same(values: np.ndarray) -> np.ndarray:
    return values


def scaled(values: np.ndarray) -> np.ndarray:
    return values * np.float32(128**0.5)


@pytest.fixture
def with_table(drafter_gguf: Path, target_gguf: Path, tmp_path: Path) -> Callable[[str, Edit], Path]:
    """with_table("token_embd", edit): the trained drafter with a table made of the target's."""

    def make(name: str, edit: Edit, rows: np.ndarray | None = None) -> Path:
        gguf = open_gguf(drafter_gguf)
        tensors = [(t.name, t.shape, t.type, gguf.data(t.name).tobytes()) for t in gguf.tensors.values()]
        values = table(target_gguf, f"{name}.weight")
        values = edit(values if rows is None else values[rows])
        data = np.ascontiguousarray(values, "<f4").tobytes()
        tensors.append((f"{name}.weight", values.shape, TensorType.F32, data))
        if rows is not None:
            tensors.append(("d2t", (rows.size,), TensorType.I64, rows.astype("<i8").tobytes()))
        where = tmp_path / str(len(list(tmp_path.iterdir())))
        where.mkdir()
        write_gguf(where / "dflash-target-F32.gguf", list(gguf.keys.values()), tensors)
        return where / "dflash-target-F32.gguf"

    return make


@pytest.mark.parametrize(
    ("name", "edit", "expected"),
    [
        ("token_embd", same, []),
        ("token_embd", untrained, [("own-embeddings", "error")]),
        ("token_embd", scaled, [("own-embeddings", "error")]),
        ("token_embd", trained_further, [("own-embeddings", "warning")]),
        ("output", same, []),
        ("output", untrained, [("own-head", "warning")]),
        ("output", trained_further, [("own-head", "warning")]),
    ],
)
def test_a_table_unlike_the_targets(
    with_table: Callable[..., Path], target_gguf: Path, name: str, edit: Edit, expected: list[tuple[str, str]]
) -> None:
    findings = check(*open_pair(with_table(name, edit), target_gguf))
    assert [(finding.name, finding.severity) for finding in findings] == expected
    for finding in findings:
        assert "cosine" in finding.drafter
        assert "over 256 rows" in finding.drafter


def test_a_reduced_head_is_compared_row_by_row(with_table: Callable[..., Path], target_gguf: Path) -> None:
    rows = np.concatenate([np.arange(64), np.arange(70, 500, 5)])
    assert check(*open_pair(with_table("output", same, rows), target_gguf)) == []
    (finding,) = check(*open_pair(with_table("output", untrained, rows), target_gguf))
    assert (finding.name, finding.severity) == ("own-head", "warning")
    shifted = with_table("output", lambda values: np.roll(values, 1, axis=0), rows)
    assert [finding.name for finding in check(*open_pair(shifted, target_gguf))] == ["own-head"]


@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "q2_k", "q3_k_s"])
def test_a_copy_stays_one_in_any_encoding(
    with_table: Callable[..., Path], target_gguf: Path, tmp_path: Path, kind: str
) -> None:
    """Rows of 128 take Q4_0 in place of K types; the bound also holds for their real rounding, see below."""
    out = tmp_path / f"dflash-target-{kind.upper()}.gguf"
    quantize_file(with_table("token_embd", same), out, kind, TypeOptions())
    assert [f.name for f in check(*open_pair(out, target_gguf)) if f.name.startswith("own-")] == []


def test_two_bits_are_still_a_copy() -> None:
    import quant

    rows = RANDOM.standard_normal((64, 256)).astype(np.float32)
    coarse = quant.dequantize(quant.quantize(rows, "Q2_K"), "Q2_K").reshape(rows.shape)
    found = likeness(coarse, rows)
    assert found is not None
    assert found.copy
    assert found.cosine > 0.93
    assert likeness(rows[:8], rows[:8]) is None  # too few rows to say anything


def family(view: DrafterView, mark: dict[str, tuple[int, ...]], architecture: str = "dflash") -> DrafterView:
    return replace(view, tensors=dict(view.tensors) | mark, architecture=architecture)


def test_families_that_train_their_own_are_warned_or_left_alone(
    with_table: Callable[..., Path], target_gguf: Path
) -> None:
    """DSpark's and EAGLE-3's embeddings get a warning, their heads nothing; an assistant's table is narrower."""

    def told(view: DrafterView, target: TargetView) -> list[tuple[str, str]]:
        return [(f.name, f.severity) for f in check(view, target) if f.name.startswith("own-")]

    spark = {"markov_w1.weight": (512, 16), "markov_w2.weight": (512, 16)}
    for name, expected in (("token_embd", [("own-embeddings", "warning")]), ("output", [])):
        view, target = open_pair(with_table(name, untrained), target_gguf)
        assert told(family(view, spark), target) == expected
        assert told(family(view, {}, "eagle3"), target) == expected
        assert told(family(view, {}, "gemma4-assistant"), target) == []
        assert told(view, replace(target, tables=None)) == []  # no weights at hand, nothing to say


def checkpoint_with(fixtures: Path, where: Path, values: np.ndarray) -> Path:
    """The trained drafter's checkpoint with ``embed_tokens`` of its own."""
    drafter = Path(shutil.copytree(fixtures / "tiny-js" / "drafter", where / "drafter"))
    path = drafter / "model.safetensors"
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    end = len(raw) - 8 - length
    data = np.ascontiguousarray(values, "<f4").tobytes()
    header["embed_tokens.weight"] = {
        "dtype": "F32",
        "shape": list(values.shape),
        "data_offsets": [end, end + len(data)],
    }
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(len(head).to_bytes(8, "little") + head + raw[8 + length :] + data)
    return drafter


def test_a_checkpoint_with_untrained_embeddings(fixtures: Path, target_gguf: Path, tmp_path: Path) -> None:
    """An exporter's leftover: it loads, and acceptance falls from 56 to 8 %."""
    drafter = checkpoint_with(fixtures, tmp_path, untrained(table(target_gguf, "token_embd.weight")))
    (finding,) = check(*open_pair(drafter, target_gguf))
    assert (finding.name, finding.severity) == ("own-embeddings", "error")
    assert "has_embed_tokens to false" in finding.cure
    config = json.loads((drafter / "config.json").read_text())
    (drafter / "config.json").write_text(json.dumps(config | {"has_embed_tokens": False}))
    assert check(*open_pair(drafter, target_gguf)) == []  # the cure


def test_convert_refuses_it_where_the_targets_weights_are(fixtures: Path, target_gguf: Path, tmp_path: Path) -> None:
    from dflash_convert.conversion import Options, Source, prepare
    from dflash_convert.errors import PairingError
    from dflash_convert.target import Target

    own = table(target_gguf, "token_embd.weight")
    drafter = checkpoint_with(fixtures, tmp_path, untrained(own))
    target = Path(shutil.copytree(fixtures / "tiny-js" / "target", tmp_path / "target"))
    prepare(Source(drafter), Target.read(target), Options())  # nobody can know
    data = np.ascontiguousarray(own, "<f4").tobytes()
    entry = {"dtype": "F32", "shape": list(own.shape), "data_offsets": [0, len(data)]}
    head = json.dumps({"model.embed_tokens.weight": entry}).encode()
    head += b" " * (-len(head) % 8)
    (target / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + data)
    with pytest.raises(PairingError, match=r"own-embeddings \(drafter cosine -?0.0"):
        prepare(Source(drafter), Target.read(target), Options())


# --- encodings -----------------------------------------------------------------------------------------------------

SHAPES = {
    "fc.weight": (256, 768),
    "output_norm.weight": (256,),
    **{f"blk.{i}.{part}.weight": (256, 256) for i in range(4) for part in ("attn_q", "attn_v", "ffn_down")},
}


def typed(kinds: dict[str, str], other: str) -> dict[str, tuple[tuple[int, ...], TensorType]]:
    found = {name: (shape, TensorType[kinds.get(name, other)]) for name, shape in SHAPES.items()}
    return found | {"output_norm.weight": ((256,), TensorType.F32)}


def test_file_types_that_the_tensors_can_have_come_from() -> None:
    from dflash_convert.drafter import TensorPlan
    from dflash_convert.plan import typed_by_recipe

    plans = [TensorPlan(name, shape) for name, shape in SHAPES.items()]
    for name, number in (("Q4_K_M", 15), ("Q4_K_S", 14), ("Q5_K_M", 17), ("Q8_0", 7), ("Q6_K", 18), ("IQ4_XS", 30)):
        chosen, _, _ = typed_by_recipe(plans, name, TypeOptions())
        made = {plan.name: (plan.shape, kind) for plan, kind in chosen}
        assert encoding_fault(number, made) is None, name
        for other in (0, 1, 2, 7, 14, 15, 17, 18, 32):
            fault = encoding_fault(other, made)
            assert (fault is None) is (other == number), (name, other, fault)
            assert fault is None or (name in fault.found and fault.certain)


def test_a_mixture_that_somebody_chose_is_judged_by_most_of_it() -> None:
    mixed = typed({"fc.weight": "Q8_0", "blk.0.attn_q.weight": "F16"}, "Q4_K")
    assert encoding_fault(15, mixed) is None
    fault = encoding_fault(7, mixed)
    assert fault is not None
    assert (fault.stated, fault.found, fault.certain) == ("Q8_0", "mostly Q4_K", False)
    assert encoding_fault(19, typed({}, "IQ4_NL")) is not None  # IQ2_XXS is not written here, IQ4_NL is what it is
    assert encoding_fault(24, mixed) is None  # a type that is not written here, and weights that may be its


# --- tokenizers beside the drafter ------------------------------------------------------------------------------------


def beside(fixtures: Path, where: Path, edit: Callable[[dict], None]) -> list[Finding]:
    """The trained drafter with an edited copy of its target's tokenizer beside it, checked against that target."""
    drafter = Path(shutil.copytree(fixtures / "tiny-js" / "drafter", where / "drafter"))
    document = json.loads((fixtures / "tiny-js" / "target" / "tokenizer.json").read_text(encoding="utf-8"))
    edit(document)
    (drafter / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    return check(*open_pair(drafter, fixtures / "tiny-js" / "target"))


def test_the_tokenizer_beside_a_drafter_is_compared(fixtures: Path, tmp_path: Path) -> None:
    def other(document: dict) -> None:
        tokens = document["model"]["vocab"]
        names = sorted(tokens, key=tokens.get)
        tokens[names[300]], tokens[names[301]] = 301, 300

    def special(document: dict) -> None:
        next(each for each in document["added_tokens"] if each["id"] == 500)["content"] = "<|renamed|>"

    def mask(document: dict) -> None:
        document["added_tokens"] = [each for each in document["added_tokens"] if each["id"] != 503]

    for name, edit, expected in (
        ("same", lambda document: None, []),
        ("other", other, [("vocabulary-content", "error")]),
        ("special", special, [("vocabulary-content", "warning")]),
        ("mask", mask, []),
    ):
        (tmp_path / name).mkdir()
        findings = beside(fixtures, tmp_path / name, edit)
        assert [(finding.name, finding.severity) for finding in findings] == expected, name


# --- maps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "kind", "words"),
    [
        (np.concatenate([np.arange(48), np.arange(448, 464)]), TensorType.I64, None),
        (np.concatenate([np.zeros(48), np.full(16, 400)]), TensorType.I64, "holds offsets where absolute ids belong"),
        (np.arange(64) - 1, TensorType.I64, "maps draft row 0 to token -1"),
        (np.arange(460, 524), TensorType.I64, "to token 523 of 512"),
        (np.repeat(np.arange(32), 2)[::-1], TensorType.I64, "maps draft rows 62 and 63 both to token 0"),
        (np.arange(64), TensorType.I32, "d2t is I32"),
    ],
)
def test_maps_in_files(
    drafter_gguf: Path, target_gguf: Path, tmp_path: Path, ids: np.ndarray, kind: TensorType, words: str | None
) -> None:
    gguf = open_gguf(drafter_gguf)
    tensors = [(t.name, t.shape, t.type, gguf.data(t.name).tobytes()) for t in gguf.tensors.values()]
    tensors.append(("output.weight", (64, 128), TensorType.F32, bytes(64 * 128 * 4)))
    data = ids.astype("<i8" if kind is TensorType.I64 else "<i4").tobytes()
    tensors.append(("d2t", (64,), kind, data))
    write_gguf(tmp_path / "dflash-target-F32.gguf", list(gguf.keys.values()), tensors)
    findings = [f for f in check(*open_pair(tmp_path / "dflash-target-F32.gguf", target_gguf)) if f.severity == "error"]
    assert [words in str(finding) for finding in findings] == ([] if words is None else [True])


def test_a_large_table_is_read_by_rows(tmp_path: Path) -> None:
    """Of tables of 400 MB each only a few hundred rows are touched."""
    import resource

    tokens = array("tokenizer.ggml.tokens", V.STRING, [f"t{i}" for i in range(100_000)])
    shared: list[KV] = [string("tokenizer.ggml.model", "gpt2"), tokens]
    for name, arch in (("dflash-t.gguf", "dflash"), ("target.gguf", "qwen3")):
        keys = [string("general.architecture", arch), u32(f"{arch}.embedding_length", 1024), *shared]
        _sparse(tmp_path / name, keys, (100_000, 1024))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    names = [f.name for f in check(*open_pair(tmp_path / "dflash-t.gguf", tmp_path / "target.gguf"))]
    assert "own-embeddings" not in names  # zeros say nothing
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def _sparse(path: Path, keys: list[KV], shape: tuple[int, int]) -> None:
    from dflash_convert.container.writer import Entry, GgufOutput, layout

    entries = [Entry("token_embd.weight", shape, TensorType.F32)]
    with GgufOutput(path, entries, layout(keys, entries)) as output:
        output.commit()
