"""The conversion of the bundled pair: plans, names, types, sources and what is said about them."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from dflash_convert import conversion as convert
from dflash_convert.checkpoint import SourceTensor
from dflash_convert.cli import cli, nextsteps
from dflash_convert.cli.common import Given
from dflash_convert.container.reader import open_gguf
from dflash_convert.conversion import Options, Source
from dflash_convert.drafter import TensorPlan
from dflash_convert.encode.pool import Pool
from dflash_convert.errors import CheckpointError, ConfigError, OutputError, PairingError, UsageError
from dflash_convert.naming import says_no_model
from dflash_convert.plan import TypeOptions, resolve_outtype
from dflash_convert.system import can_share
from dflash_convert.target import Target


@pytest.fixture
def pair(fixtures: Path) -> tuple[Source, Source]:
    return Source(fixtures / "tiny-js" / "drafter"), Target.read(fixtures / "tiny-js" / "target")


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(a) for a in args], catch_exceptions=False)


def copy_drafter(pair: tuple[Source, Source], to: Path, dtype: str) -> Source:
    """The bundled drafter with its weights in another float format."""
    from dflash_convert.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(pair[0].path)
    header, blobs, at = {}, [], 0
    for tensor in checkpoint.tensors.values():
        raw = tensor.file.read_bytes()[tensor.offset : tensor.offset + tensor.nbytes]
        values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        blob = values.astype({"F32": "<f4", "F16": "<f2", "F64": "<f8"}[dtype]).tobytes()
        header[tensor.name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [at, at + len(blob)]}
        at += len(blob)
        blobs.append(blob)
    to.mkdir()
    head = json.dumps(header).encode()
    (to / "anything.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + b"".join(blobs))
    (to / "config.json").write_text((pair[0].path / "config.json").read_text())
    return Source(to)


def test_dry_run_tells_the_exact_size_and_writes_nothing(fixtures: Path, tmp_path: Path) -> None:
    base = (fixtures / "tiny-js/drafter", "--target-model-dir", fixtures / "tiny-js/target", "-t", "q8_0")
    planned = run(*base, "-o", tmp_path / "a.gguf", "--dry-run", "--json")
    assert planned.exit_code == 0
    assert list(tmp_path.iterdir()) == []
    plan = json.loads(planned.stdout)[0]
    assert run(*base, "-o", tmp_path / "a.gguf").exit_code == 0
    assert (tmp_path / "a.gguf").stat().st_size == plan["bytes"]
    written = open_gguf(tmp_path / "a.gguf")
    assert [t["name"] for t in plan["tensors"]] == list(written.tensors)
    assert [k["name"] for k in plan["keys"]] == list(written.keys)


def test_the_bare_command_converts_and_prints_only_the_path(fixtures: Path, tmp_path: Path) -> None:
    result = run(
        *(fixtures / "tiny-js/drafter", "--target-model-dir", fixtures / "tiny-js/target"),
        *("--target-name", "tiny-js", "-o", tmp_path / "new"),
    )
    assert result.stdout == f"{tmp_path / 'new' / 'dflash-tiny-js-BF16.gguf'}\n"
    assert "DFlash drafter: block 8, mask token 503, reads outputs of target layers 1, 3, 4\n" in result.stderr
    command = "llama-server -m TARGET.gguf -md " + result.stdout.strip()
    assert f"{command} --spec-type draft-dflash --spec-draft-n-max 7 -fa on" in result.stderr
    assert "n-max is a first guess: dflash-convert tune" in result.stderr


@pytest.mark.parametrize(("measured", "n_max"), [(4, 4), (None, 7)])
def test_what_a_sweep_recommends_is_no_guess(
    fixtures: Path, capsys: pytest.CaptureFixture[str], measured: int | None, n_max: int
) -> None:
    pair = fixtures / "tiny-js"
    made = convert.prepare(Source(pair / "drafter"), Target.read(pair / "target"), Options())
    given = Given(as_json=False, quiet=False, verbose=0)
    nextsteps.after_convert(given, made, [Path("dflash-x.gguf")], Path("x.gguf"), measured)
    said = capsys.readouterr().err
    assert f"--spec-draft-n-max {n_max} " in said
    assert ("a first guess" in said) is (measured is None)


def test_several_types_in_one_pass_equal_single_ones(pair: tuple[Source, Source], tmp_path: Path) -> None:
    types = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_k_m")
    together = convert.prepare(*pair, Options(outtypes=types))
    (tmp_path / "all").mkdir()
    many = convert.write(together, convert.output_paths(together, tmp_path / "all"), threads=2)
    assert [w.outtype for w in many] == [t.upper() for t in types]
    for one in many:
        alone = convert.prepare(*pair, Options(outtypes=(one.outtype,)))
        path = tmp_path / "alone.gguf"
        convert.write(alone, [path], force=True, threads=1)
        assert path.read_bytes() == one.path.read_bytes()


def test_the_same_inputs_give_the_same_bytes(pair: tuple[Source, Source], tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        convert.write(convert.prepare(*pair, Options(outtypes=("q4_0",))), [tmp_path / name])
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_plain_leaves_our_keys_out(pair: tuple[Source, Source]) -> None:
    plain = convert.prepare(*pair, Options(plain=True)).files[0].keys
    full = convert.prepare(*pair, Options()).files[0].keys
    extra = {kv.name for kv in full} - {kv.name for kv in plain}
    assert extra
    assert all(name.startswith(("general.source.", "dflash_convert.")) for name in extra)
    assert {kv.name for kv in plain} <= {kv.name for kv in full}


@pytest.mark.parametrize("dtype", ["F32", "F64"])
def test_wider_sources_round_to_the_same_file(pair: tuple[Source, Source], tmp_path: Path, dtype: str) -> None:
    """bf16 weights widened and written as bf16, q8_0 and q4_0 again: the same tensors."""
    wide = copy_drafter(pair, tmp_path / "wide", dtype)
    for outtype in ("bf16", "q8_0", "q4_0"):
        options = Options(outtypes=(outtype,), model_name="x")
        convert.write(convert.prepare(pair[0], pair[1], options), [tmp_path / "narrow.gguf"], force=True)
        convert.write(convert.prepare(wide, pair[1], options), [tmp_path / "wide.gguf"], force=True)
        a, b = open_gguf(tmp_path / "narrow.gguf"), open_gguf(tmp_path / "wide.gguf")
        assert list(a.tensors) == list(b.tensors)
        for name in a.tensors:
            assert np.array_equal(a.data(name), b.data(name)), name


@pytest.mark.parametrize(("dtype", "outtype"), [("F32", "F32"), ("F16", "F16"), ("F64", "F32")])
def test_auto_is_the_checkpoints_own_dtype(
    pair: tuple[Source, Source], tmp_path: Path, dtype: str, outtype: str
) -> None:
    source = copy_drafter(pair, tmp_path / "drafter", dtype)
    assert convert.prepare(source, pair[1], Options()).files[0].outtype == outtype


@pytest.mark.parametrize(("dtypes", "outtype"), [("F32 BF16 F16", "BF16"), ("F32 F16 BF16", "F16"), ("F64 F32", "F32")])
def test_auto_is_the_first_matrix_in_half_precision(dtypes: str, outtype: str) -> None:
    """One float32 matrix does not double the file."""
    sources = [SourceTensor(f"t{i}", Path(), dtype, (2, 32), 0, 1) for i, dtype in enumerate(dtypes.split())]
    vector = SourceTensor("norm", Path(), "F16", (32,), 0, 1)
    plans = [TensorPlan(each.name, each.shape, (each,)) for each in (vector, *sources)]
    assert resolve_outtype("auto", plans) == outtype


def test_a_nan_is_refused_with_tensor_and_row(pair: tuple[Source, Source], tmp_path: Path) -> None:
    source = copy_drafter(pair, tmp_path / "drafter", "F32")
    file = source.path / "anything.safetensors"
    data = bytearray(file.read_bytes())
    from dflash_convert.checkpoint import read_safetensors

    tensor = read_safetensors(file)["fc.weight"]
    at = tensor.offset + 4 * (3 * tensor.shape[1] + 5)
    data[at : at + 4] = np.float32(np.nan).tobytes()
    file.write_bytes(data)
    for outtype in ("f32", "q8_0", "q4_0"):
        conversion = convert.prepare(source, pair[1], Options(outtypes=(outtype,)))
        with pytest.raises(
            CheckpointError, match=r"anything\.safetensors: tensor 'fc\.weight', row 3 holds NaN or Inf"
        ):
            convert.write(conversion, [tmp_path / "out.gguf"])
        assert not (tmp_path / "out.gguf").exists()


def test_existing_output_needs_force(pair: tuple[Source, Source], tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"old")
    conversion = convert.prepare(*pair, Options())
    with pytest.raises(OutputError, match="exists already"):
        convert.write(conversion, [path])
    assert path.read_bytes() == b"old"
    convert.write(conversion, [path], force=True)
    assert open_gguf(path).architecture == "dflash"


def test_one_file_for_two_types_is_refused(pair: tuple[Source, Source], tmp_path: Path) -> None:
    conversion = convert.prepare(*pair, Options(outtypes=("bf16", "q8_0")))
    with pytest.raises(UsageError, match="one file, but 2 types"):
        convert.output_paths(conversion, tmp_path / "a.gguf")


def test_unknown_type(pair: tuple[Source, Source]) -> None:
    with pytest.raises(UsageError, match="unknown output type 'q9_9'"):
        convert.prepare(*pair, Options(outtypes=("q9_9",)))


def test_a_target_of_another_size_is_refused(fixtures: Path, tmp_path: Path) -> None:
    """Depth, hidden size and fc width speak against the pair; forced, the file is written and says so."""
    target = tmp_path / "target"
    target.mkdir()
    for file in (fixtures / "tiny-js" / "target").iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"hidden_size": 96, "num_hidden_layers": 3}))
    args = (fixtures / "tiny-js/drafter", "--target-model-dir", target, "-o", tmp_path / "a.gguf")
    with pytest.raises(PairingError) as refused:
        run(*args)
    assert "do not belong together: target-depth (drafter made for 6 layers, target 3 layers); also" in str(
        refused.value
    )
    assert "most likely the wrong target" in str(refused.value.tip)
    assert list(tmp_path.glob("*.gguf")) == []
    result = run(*args, "--force-pair")
    assert result.exit_code == 0
    assert "WARNING: refused, but forced: hidden-size (drafter 128, target 96)" in result.stderr
    assert "fc-width (drafter 384, target 3 taps x 96 = 288)" in result.stderr
    assert "taps-depth (drafter outputs of target layers 1, 3, 4, target 3 layers)" in result.stderr
    forced = open_gguf(tmp_path / "a.gguf").get("dflash_convert.forced_pair")
    assert list(forced) == ["target-depth", "hidden-size", "taps-depth", "fc-width"]
    good = run(*args[:2], fixtures / "tiny-js/target", "-o", tmp_path / "b.gguf")
    assert "WARNING" not in good.stderr


def test_errors_name_the_output_type_and_the_value(pair: tuple[Source, Source], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Q2_K_S: blk\.0\.attn_\w+\.weight as Q\w+ .* needs importance weights"):
        convert.prepare(*pair, Options(outtypes=("q2_k_s",)))
    (tmp_path / "d").mkdir()
    for file in pair[0].path.iterdir():
        (tmp_path / "d" / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "d" / "config.json").read_text())
    (tmp_path / "d" / "config.json").write_text(json.dumps(config | {"rope_theta": -5, "rope_parameters": None}))
    with pytest.raises(ConfigError, match=r"rope_theta is -5\.0, expected a positive number"):
        convert.prepare(Source(tmp_path / "d"), pair[1], Options())


def test_a_pattern_that_matches_nothing_is_an_error(pair: tuple[Source, Source]) -> None:
    types = TypeOptions(overrides=(("attn_x", "Q8_0"),))
    with pytest.raises(UsageError, match="--tensor-type attn_x=Q8_0: no tensor has such a name"):
        convert.prepare(*pair, Options(outtypes=("q4_0",), types=types))


def test_a_name_with_another_ending_is_no_directory(pair: tuple[Source, Source], tmp_path: Path) -> None:
    conversion = convert.prepare(*pair, Options())
    with pytest.raises(UsageError, match="neither a directory nor the name of a GGUF"):
        convert.output_paths(conversion, tmp_path / "drafter.bin")
    (tmp_path / "drafter.bin").mkdir()
    for name in ("drafter.bin", "v1.0", "plain"):
        assert convert.output_paths(conversion, tmp_path / name)[0].parent == tmp_path / name


@pytest.mark.parametrize(("kind", "arch"), [("drafter", "dflash"), ("eagle3", "eagle3")])
def test_a_dry_run_counts_taps_one_way(kind: str, arch: str, fixtures: Path) -> None:
    """As layer outputs; the file's own counting, one more, is named and not shown."""
    base = (fixtures / f"tiny-js/{kind}", "--target-model-dir", fixtures / "tiny-js/target", "--dry-run")
    shown = run(*base)
    told = "outputs of target layers 1, 3, 4 (in the file as layer inputs, one more)"
    assert f"{arch}.target_layers = {told}\n" in shown.stdout
    assert "2, 4, 5" not in shown.stdout + shown.stderr
    keys = {key["name"]: key["value"] for key in json.loads(run(*base, "--json").stdout)[0]["keys"]}
    assert keys[f"{arch}.target_layers"] == [2, 4, 5]


def test_a_dry_run_gives_every_key_one_line_and_minds_quiet(fixtures: Path, tmp_path: Path) -> None:
    base = (fixtures / "tiny-js" / "drafter", "--target-model-dir", fixtures / "tiny-js" / "target")
    planned = run(*base, "-o", tmp_path / "a.gguf", "--dry-run", "-q")
    assert planned.exit_code == 0
    assert planned.stderr == ""
    lines = planned.stdout.splitlines()[1:]
    assert all(" = " in line or " <- " in line for line in lines)
    assert any(line.startswith("  tokenizer.chat_template = ") for line in lines)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--mask-token-id", "99999", "--mask-token-id 99999 is outside the vocabulary of 512"),
        ("--taps", "1,1,3", "--taps [1, 1, 3] are not distinct layers"),
        ("--taps", "1,3,9", "--taps: tap 9 is outside a target of 6 layers"),
        ("--taps", "1,3", "--taps names 2 taps, but fc.weight is made for 3"),
    ],
)
def test_a_wrong_option_is_named_not_the_config(fixtures: Path, option: str, value: str, message: str) -> None:
    pair = fixtures / "tiny-js"
    command = [sys.executable, "-m", "dflash_convert", pair / "drafter", "--target-model-dir", pair / "target"]
    done = subprocess.run([*command, "--dry-run", option, value], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert message in done.stderr
    assert "config.json" not in done.stderr


@pytest.mark.skipif(not can_share(), reason="no workers where files cannot be handed over")
def test_a_pool_runs_once(pair: tuple[Source, Source], tmp_path: Path) -> None:
    conversion = convert.prepare(*pair, Options(outtypes=("q8_0",)))
    with Pool(2) as pool:
        first = convert.write(conversion, [tmp_path / "a.gguf"], threads=2, pool=pool)[0].path
        with pytest.raises(ValueError, match="runs once"):
            convert.write(conversion, [tmp_path / "b.gguf"], threads=2, pool=pool)
    alone = convert.write(conversion, [tmp_path / "c.gguf"], threads=1)[0].path
    assert first.read_bytes() == alone.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.gguf", "c.gguf"]


def test_links_that_lead_nowhere_do_not_disturb(fixtures: Path, tmp_path: Path) -> None:
    shutil.copytree(fixtures / "tiny-js" / "drafter", tmp_path / "d")
    (tmp_path / "d" / "old.safetensors").symlink_to("nowhere")
    (tmp_path / "d" / "loop.safetensors").symlink_to("loop.safetensors")
    base = (tmp_path / "d", "--target-model-dir", fixtures / "tiny-js" / "target", "-o", tmp_path / "x.gguf")
    assert run(*base, "--dry-run").exit_code == 0
    assert run(*base).exit_code == 0


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "0<&-", "0<&- 1>&- 2>&-"])
def test_closed_streams(fixtures: Path, tmp_path: Path, closed: str) -> None:
    pair, out = fixtures / "tiny-js", tmp_path / "x.gguf"
    command = [
        sys.executable,
        "-m",
        "dflash_convert",
        pair / "drafter",
        "--target-model-dir",
        pair / "target",
        "-o",
        out,
    ]
    done = subprocess.run(f"{shlex.join([*map(str, command), '--threads', '2'])} {closed}", shell=True, check=False)
    assert (done.returncode, out.is_file()) == (0, True)
    wrong = subprocess.run(f"{shlex.join(map(str, command))} {closed}", shell=True, check=False)
    assert wrong.returncode == 9  # it exists by now


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("valdate", "a", "b"), "did you mean: dflash-convert validate"),
        (("validate", "--nosuch"), "see dflash-convert validate --help"),
        (("fixtures/tiny-jss/drafter", "--target-model-dir", "fixtures/tiny-js/target"), "no such directory"),
        (
            ("fixtures/tiny-js/drafter", "--target-model-dir", "fixtures/tiny-js/target", "--quick"),
            "--quick has no effect",
        ),
        (("verify", "x.gguf", "fixtures/tiny-js/drafter", "--target-gguf", "x"), "--target-gguf works with --fidelity"),
    ],
)
def test_mistakes_of_usage_are_told_with_a_cure(fixtures: Path, arguments: tuple[str, ...], message: str) -> None:
    command = [sys.executable, "-m", "dflash_convert", *arguments]
    done = subprocess.run(command, cwd=fixtures.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize(
    ("name", "silent"),
    [
        *[
            (name, True)
            for name in ("target", "Model", "main", "snapshots", "b968826d9c46dd6066d109eabc6255188de91218")
        ],
        *[(name, False) for name in ("Qwen3-8B", "tiny", "gemma-4-model", "facade", "phi")],
    ],
)
def test_a_directory_that_names_no_model(name: str, silent: bool) -> None:
    assert says_no_model(name) is silent


def test_a_file_named_after_such_a_place_is_told(fixtures: Path, tmp_path: Path) -> None:
    base = (fixtures / "tiny-js/drafter", "--target-model-dir", fixtures / "tiny-js/target", "--dry-run")
    words = "WARNING: the file is named after the target's directory, 'target': --target-name gives"
    assert words in run(*base).stderr
    assert "named after" not in run(*base, "--target-name", "target").stderr
    (tmp_path / "model.gguf").symlink_to(fixtures / "tiny-js/target-bf16.gguf")
    told = run(*base[:2], tmp_path / "model.gguf", "--dry-run").stderr
    assert words.replace("directory, 'target'", "file, 'model'") in told
    assert words not in run(*base, "--target-name", "tiny").stderr
    assert words not in run(*base, "-o", tmp_path / "a.gguf").stderr
