"""``convert --keep``: the head in the same pass is the file that convert and then head would give."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from head_files import PAIR, TARGET, Run, rewritten
from make_checkpoints import VOCAB

from dflash_convert.container.reader import Gguf, open_gguf
from dflash_convert.container.types import TensorType


@pytest.fixture
def ranking(tmp_path: Path) -> Path:
    path = tmp_path / "ranking.txt"
    path.write_text("".join(f"{(37 * i) % VOCAB}\n" for i in range(300)))
    return path


@pytest.mark.parametrize(
    ("name", "types", "options"),
    [
        (None, ("bf16", "q8_0"), ("--keep", 300)),
        (None, ("q4_k_m", "f16"), ("--keep", 256, "--only-ranked", "--head-type", "q8_0", "--own-embeddings", "q4_0")),
        (None, ("q5_0",), ("--full", "--own-embeddings", "copy")),
        ("dspark_deepspec", ("q8_0",), ("--keep", 300)),
        ("dspark_deepspec_plain", ("bf16",), ("--keep", 300)),
        ("dspark_specforge", ("q8_0",), ("--keep", 300)),
        ("dflash2", ("bf16",), ("--keep", 300)),
        ("eagle3", ("q8_0",), ("--keep", 100, "--only-ranked")),
        ("dspark_speculators", ("f16",), ("--keep", 100, "--only-ranked")),
    ],
)
def test_one_pass_gives_the_bytes_of_two(
    name: str | None,
    types: tuple[str, ...],
    options: tuple[Any, ...],
    case: Any,
    run: Run,
    ranking: Path,
    tmp_path: Path,
) -> None:
    drafter, target, gguf = (PAIR / "drafter", PAIR / "target", TARGET) if name is None else case(name)
    options = (*options, *(("--ranking", ranking) if "--keep" in options else ()))
    together, apart = tmp_path / "together", tmp_path / "apart"
    wanted = [word for kind in types for word in ("-t", kind)]
    common = (drafter, "--target-model-dir", target, "--target-name", "T", *wanted)
    for where, more in ((together, ("--target-gguf", gguf, *options)), (apart, ())):
        where.mkdir()
        code, _, err = run("convert", *common, "-o", where, *more, "--force-pair")
        assert code == 0, err
    for plain in sorted(apart.iterdir()):
        made = apart / "made.gguf"
        ending = "-own-head" if "--full" in options else f"-V{options[1]}"
        expected = together / f"{plain.stem}{ending}.gguf"
        code, _, err = run("head", plain, gguf, made, "--force", *options)
        assert code == 0, err
        assert made.read_bytes() == expected.read_bytes()
    assert len(list(together.iterdir())) == len(types)


def test_the_documents_say_what_was_kept(run: Run, ranking: Path, tmp_path: Path) -> None:
    call = ("convert", PAIR / "drafter", "--target-model-dir", PAIR / "target", "-o", tmp_path, "--json")
    head = ("--target-gguf", TARGET, "--keep", 300, "--ranking", ranking)
    code, out, err = run(*call, *head)
    assert code == 0, err
    (made,) = json.loads(out)
    assert made["head"] == {"rows": 300, "coverage": None, "predicted_mean_length": None}
    assert "nothing was held out" in err
    code, out, err = run(*call, *head, "--dry-run")
    (plan,) = json.loads(out)
    shapes = {tensor["name"]: tensor["shape"] for tensor in plan["tensors"]}
    assert (shapes["output.weight"], shapes["d2t"]) == ([300, 128], [300])


def test_a_target_that_is_a_gguf_gives_its_rows(run: Run, ranking: Path, tmp_path: Path) -> None:
    for name, target in (("one", (TARGET,)), ("two", (PAIR / "target", "--target-gguf", TARGET))):
        call = ("convert", PAIR / "drafter", "-o", tmp_path / f"dflash-{name}.gguf", "--target-model-dir", *target)
        code, _, err = run(*call, "--keep", 300, "--ranking", ranking)
        assert code == 0, err
    files = [open_gguf(tmp_path / f"dflash-{name}.gguf") for name in ("one", "two")]
    for name in ("output.weight", "d2t"):
        assert files[0].data(name).tobytes() == files[1].data(name).tobytes()


def test_a_head_is_proved_like_any_other_file(run: Run, ranking: Path, tmp_path: Path) -> None:
    code, _, err = run(
        *("convert", PAIR / "drafter", "--target-model-dir", PAIR / "target", "-o", tmp_path / "dflash-x.gguf"),
        *("--target-gguf", TARGET, "--keep", 300, "--ranking", ranking),
    )
    assert code == 0, err
    code, _, err = run(
        *("verify", tmp_path / "dflash-x.gguf", PAIR / "drafter", "--target-model-dir", PAIR / "target"),
        *("--target-gguf", TARGET),
    )
    assert code == 0, err
    assert "not at hand" not in err


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--cover", "0.9"), 2, "--cover has no effect without --keep N or --full"),
        (("--target-gguf", TARGET), 2, "--target-gguf has no effect"),
        (("--full", "--cover", "nan"), 2, "--cover nan: a number is wanted"),
        (("--full", "--rope-theta", "inf"), 2, "--rope-theta inf: a number is wanted"),
        (("--keep", "9"), 2, "--keep needs a ranking"),
        (("--keep", "9", "--full"), 2, "--keep and --full exclude each other"),
        (("--full", "--plain"), 2, "--plain writes exactly the reference converter's file"),
        (("--full",), 3, "has no weights, so a head's rows cannot be copied"),
        (("--full", "--target-gguf", "nowhere.gguf"), 3, "nowhere.gguf: no such file"),
        (("--full", "--target-gguf", PAIR / "target"), 3, "a directory, and the target's GGUF is wanted"),
    ],
)
def test_what_cannot_be_done(words: tuple[str, ...], code: int, text: str, run: Run, tmp_path: Path) -> None:
    out = tmp_path / "dflash-x.gguf"
    found, _, err = run("convert", PAIR / "drafter", "--target-model-dir", PAIR / "target", "-o", out, *words)
    assert (found, text in err) == (code, True), err
    assert not out.exists()


def test_rows_are_proved_by_the_weights_that_they_came_from(
    run: Run, fake_server: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The pair is validated with another encoding of the target."""
    import quant

    whole = open_gguf(TARGET)
    rows = whole.data("output.weight").view("<u2").reshape(512, 128)
    tensor = ((512, 128), TensorType.Q4_0, quant.quantize(quant.from_bf16(rows), "Q4_0").tobytes())
    small = rewritten(whole, tmp_path / "target-small.gguf", tensors={"output.weight": tensor})
    monkeypatch.setenv("DFLASH_LLAMA_SERVER", str(fake_server("normal")))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one", "n_predict": 16}\n')
    out = tmp_path / "dflash-x.gguf"
    code, _, err = run(
        *("convert", PAIR / "drafter", "--target-model-dir", PAIR / "target", "-o", out, "--full"),
        *("--target-gguf", TARGET, "--validate", small, "--prompts", prompts, "--quick"),
    )
    assert code == 0, err
    assert out.exists()


@pytest.mark.shared
def test_head_takes_a_targets_directory(drafter: Gguf, shared: Path, run: Run, tmp_path: Path) -> None:
    """Its weights in bf16 are the GGUF's."""
    made = {}
    for target in (shared / "pairs" / "tiny-js" / "target", TARGET):
        out = tmp_path / f"{target.name}-out.gguf"
        code, _, err = run("head", drafter.path, target, out, "--full")
        assert code == 0, err
        made[target] = open_gguf(out).data("output.weight").tobytes()
    assert len(set(made.values())) == 1
    for target, text in ((PAIR / "target", "has no weights"), (PAIR, "target-bf16.gguf: name the file")):
        code, _, err = run("head", drafter.path, target, tmp_path / "out.gguf", "--full")
        assert (code, text in err) == (3, True), err
