"""Wrong maps and heads of other targets: refused by every command that meets one, each in a sentence of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from head_files import PAIR, TARGET, Make, Run, rewritten
from make_checkpoints import CASES

from dflash_convert.container.reader import Gguf, open_gguf
from dflash_convert.container.types import TensorType, string
from dflash_convert.head.build import Head
from dflash_convert.pairing.view import FORCED

IDS = np.concatenate([np.arange(60, 160), np.arange(200, 400, 4)]).astype(np.int64)


def at(row: int, value: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda ids: np.where(np.arange(ids.size) == row, value, ids)


def head_refuses(run: Run, wrong: Path, text: str, tmp_path: Path) -> None:
    """``head`` says ``text`` of the file and writes nothing."""
    ranking = tmp_path / "ranking.txt"
    ranking.write_text("60\n61\n")
    options = ("--keep", 2, "--ranking", ranking, "--only-ranked")
    code, _, err = run("head", wrong, TARGET, tmp_path / "out.gguf", *options)
    assert (code, text in err) == (3, True), err
    assert not (tmp_path / "out.gguf").exists()


# --- a checkpoint's map: offsets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["eagle3", "dspark_speculators"])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda d: 2 * np.arange(d.size), "d2t holds absolute ids where offsets belong"),
        (at(7, -8), "d2t maps draft row 7 to token -1"),
        (at(7, 600), "d2t maps draft row 7 to token 607 of 512"),
        (lambda d: np.where(np.arange(d.size) == 7, d - 2, d), "d2t maps draft rows 6 and 7 both to token 12"),
        (lambda d: d.astype(np.float32), "d2t is F32, expected I64 or I32"),
    ],
)
def test_a_checkpoints_map(
    name: str, change: Callable[[np.ndarray], np.ndarray], text: str, case: Make, run: Run, tmp_path: Path
) -> None:
    made = CASES[name]()
    values = change(made.tensors["d2t"][1])
    made.tensors["d2t"] = ("F32", values) if values.dtype == np.float32 else ("I64", values.astype(np.int64))
    drafter, target, _ = case(made)
    code, _, err = run("convert", drafter, "--target-model-dir", target, "-o", tmp_path / "dflash-x.gguf")
    assert (code, text in err) == (3, True), err
    assert not (tmp_path / "dflash-x.gguf").exists()
    code, out, _ = run("check", drafter, target)
    assert (code, text in out) == (4, True), out


# --- a file's map: absolute ids --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (lambda ids: ids - np.arange(ids.size), TensorType.I64, "d2t holds offsets where absolute ids belong"),
        (at(3, -1), TensorType.I64, "d2t maps draft row 3 to token -1"),
        (at(3, 512), TensorType.I64, "d2t maps draft row 3 to token 512 of 512"),
        (at(3, 65), TensorType.I64, "d2t maps draft rows 3 and 5 both to token 65"),
        (lambda ids: ids, TensorType.I32, "d2t is I32"),
    ],
)
def test_a_files_map(
    drafter: Gguf,
    make: Callable[..., Gguf],
    change: Callable[[np.ndarray], np.ndarray],
    kind: TensorType,
    text: str,
    run: Run,
    tmp_path: Path,
) -> None:
    data = change(IDS).astype("<i8" if kind is TensorType.I64 else "<i4").tobytes()
    made = make(drafter, Head(IDS))
    wrong = rewritten(made, tmp_path / "dflash-wrong.gguf", tensors={"d2t": (IDS.shape, kind, data)})
    code, out, _ = run("check", wrong, TARGET)
    assert (code, text in out) == (4, True), out
    head_refuses(run, wrong, text, tmp_path)


# --- rows of another target ------------------------------------------------------------------------------------------


@pytest.mark.shared
def test_a_head_of_another_target(
    drafter: Gguf, make: Callable[..., Gguf], shared: Path, run: Run, tmp_path: Path
) -> None:
    """Width, depth and vocabulary are the same: only the rows tell."""
    pairs = shared / "pairs" / "tiny-js"
    other = make(drafter, Head(IDS), pairs / "other-target-bf16.gguf")
    code, out, _ = run("check", other.path, TARGET)
    assert (code, "own-head" in out) == (4, True), out
    call = ("convert", PAIR / "drafter", "--target-model-dir", pairs / "target", "-o", tmp_path / "dflash-x.gguf")
    code, _, err = run(*call, "--full", "--target-gguf", pairs / "other-target-bf16.gguf")
    assert (code, "target do not belong together: own-head" in err) == (4, True), err
    assert not (tmp_path / "dflash-x.gguf").exists()
    code, _, err = run(*call, "--full", "--target-gguf", pairs / "target-f32.gguf")
    assert code == 0, err


@pytest.mark.shared
def test_a_reduced_head_of_another_target_is_not_reduced_again(
    drafter: Gguf, make: Callable[..., Gguf], shared: Path, run: Run, tmp_path: Path
) -> None:
    """Ten rows are too few to be judged by themselves."""
    first, out, ranking = make(drafter, Head(IDS)), tmp_path / "again.gguf", tmp_path / "ranking.txt"
    ranking.write_text("".join(f"{i}\n" for i in range(60, 70)))
    options = (out, "--keep", 10, "--ranking", ranking, "--only-ranked")
    code, _, err = run("head", first.path, shared / "pairs" / "tiny-js" / "other-target-bf16.gguf", *options)
    assert (code, "do not belong together: own-head" in err, out.exists()) == (4, True, False), err
    code, _, err = run("head", first.path, TARGET, *options)
    assert code == 0, err
    assert open_gguf(out).get("dflash_convert.head.source") == TARGET.name


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (None, "head of 150 rows, no d2t"),
        ((149,), "d2t of 149, head of 150 rows"),
        ((150, 1), "tensor-shapes (drafter d2t [150, 1]"),
        ((1, 150), "d2t of 1, head of 150 rows"),
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_a_map_that_is_not_the_heads(
    drafter: Gguf,
    make: Callable[..., Gguf],
    shape: tuple[int, ...] | None,
    text: str,
    force: bool,
    run: Run,
    tmp_path: Path,
) -> None:
    """Whether the pair was forced or not: the rows would be labelled wrongly."""
    made = make(drafter, Head(IDS))
    tensor = None if shape is None else (shape, TensorType.I64, IDS[: np.prod(shape)].astype("<i8").tobytes())
    keys = [*made.keys.values(), *([string(FORCED, "own-head")] if force else [])]
    wrong = rewritten(made, tmp_path / "dflash-wrong.gguf", tensors={"d2t": tensor}, all_keys=keys)
    head_refuses(run, wrong, text, tmp_path)


NAMES = "tokenizer.ggml.tokens"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("width", "rows of the output matrix have 64 values, the drafter's hidden size is 128"),
        ("depth", "target-depth (drafter made for 6 layers, target 12 layers)"),
        ("tokens", "vocabulary-content"),
    ],
)
def test_a_target_of_another_shape(drafter: Gguf, change: str, text: str, run: Run, tmp_path: Path) -> None:
    gguf, wrong = open_gguf(TARGET), tmp_path / "wrong.gguf"
    keys = {"depth": {"qwen3.block_count": 12}, "tokens": {NAMES: list(gguf.get(NAMES))[::-1]}}.get(change)
    narrow = {"token_embd.weight": ((512, 64), TensorType.F16, bytes(512 * 64 * 2)), "output.weight": None}
    rewritten(gguf, wrong, keys, narrow if change == "width" else None)
    out = tmp_path / "dflash-x.gguf"
    together = ("convert", PAIR / "drafter", "--target-model-dir", PAIR / "target", "-o", out, "--target-gguf", wrong)
    for call in (together, ("head", drafter.path, wrong, out)):
        code, _, err = run(*call, "--full")
        assert (code, text in err) == (4, True), err
        assert not out.exists()


# --- drafters whose graph reads no map -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gemma4_assistant", "architecture 'gemma4-assistant' has no reduced head in llama.cpp"),
        ("deepseek_v4_dspark", "is a DeepSeek-V4 DSpark drafter: llama.cpp's graph for it reads no d2t"),
    ],
)
def test_graphs_without_a_map(name: str, text: str, case: Make, run: Run, tmp_path: Path) -> None:
    drafter, target, gguf = case(name)
    plain, out = tmp_path / "plain.gguf", tmp_path / "out.gguf"
    call = ("convert", drafter, "--target-model-dir", target, "--force-pair", "-o")
    code, _, err = run(*call, plain)
    assert code == 0, err
    for again in ((*call, out, "--target-gguf", gguf), ("head", plain, gguf, out)):
        code, _, err = run(*again, "--full")
        assert (code, text in err) == (3, True), err
        assert not out.exists()


@pytest.mark.parametrize("options", [("--full",), ("--keep", 300, "--only-ranked")])
def test_an_eagle_3_drafter_without_a_head_gets_one(
    options: tuple[object, ...], case: Make, run: Run, tmp_path: Path
) -> None:
    """llama.cpp's graph reads the target's where the drafter has none, as it does for DFlash."""
    drafter, target, gguf = case("eagle3")
    plain, out, ranking = tmp_path / "plain.gguf", tmp_path / "out.gguf", tmp_path / "ranking.txt"
    code, _, err = run("convert", drafter, "--target-model-dir", target, "--force-pair", "-o", plain)
    assert code == 0, err
    borrows = rewritten(open_gguf(plain), tmp_path / "borrows.gguf", tensors={"d2t": None, "output.weight": None})
    ranking.write_text("".join(f"{i}\n" for i in range(300)))
    ranked = ("--ranking", ranking) if "--keep" in options else ()
    code, _, err = run("head", borrows, gguf, out, *options, *ranked)
    assert code == 0, err
    made, theirs = open_gguf(out), open_gguf(gguf)
    table = "output.weight" if "output.weight" in theirs.tensors else "token_embd.weight"
    rows = made.tensors["output.weight"].shape[0]
    assert rows == (300 if ranked else 512)
    assert np.array_equal(made.data("output.weight"), theirs.data(table)[:rows])
    assert ("d2t" in made.tensors) == bool(ranked)


def test_markov_rows_that_are_not_the_heads(case: Make, run: Run, tmp_path: Path) -> None:
    drafter, target, gguf = case("dspark_deepspec")
    whole, half = tmp_path / "dspark-whole.gguf", tmp_path / "dspark-half.gguf"
    ranking = tmp_path / "ranking.txt"
    ranking.write_text("".join(f"{i}\n" for i in range(300)))
    call = ("convert", drafter, "--target-model-dir", target, "--force-pair", "-o")
    assert run(*call, whole)[0] == 0
    code, _, err = run("head", whole, gguf, half, "--keep", 300, "--ranking", ranking, "--only-ranked")
    assert code == 0, err
    uncut = open_gguf(whole)
    info = uncut.tensors["markov_w2.weight"]
    tensor = (info.shape, info.type, uncut.data(info.name).tobytes())
    wrong = rewritten(open_gguf(half), tmp_path / "dspark-wrong.gguf", tensors={"markov_w2.weight": tensor})
    shapes = "tensor-shapes"
    assert shapes not in run("check", half, gguf)[1]
    code, out, _ = run("check", wrong, gguf)
    assert (code, shapes in out, "markov_w2.weight [512" in out) == (4, True, True), out
