"""Files as exporters and editors really write them: what decides nothing stops nothing, and is said."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dflash_convert import conversion as convert
from dflash_convert.container.reader import open_gguf
from dflash_convert.errors import ConfigError, DflashError, FamilyError
from dflash_convert.hparams import TEXT_CONFIGS, Config
from dflash_convert.inspect_file import inspect, target_model
from dflash_convert.jsonfile import parse_json, read_json
from dflash_convert.pairing import check, open_pair
from dflash_convert.pipeline import Task, run
from dflash_convert.target import Target

BOM = b"\xef\xbb\xbf"
HASHES = ("dflash_convert.target.files.", "dflash_convert.drafter.config_sha256")
Pair = tuple[Path, Path]
Change = Callable[[Path, Path], None]


@pytest.fixture
def pair(fixtures: Path, tmp_path: Path) -> Pair:
    """The bundled drafter and target, to be changed."""
    made = (tmp_path / "drafter", tmp_path / "target")
    for side in made:
        shutil.copytree(fixtures / "tiny-js" / side.name, side)
    return made


def prepared(pair: Pair, **options: Any) -> convert.Conversion:
    return convert.prepare(convert.Source(pair[0]), Target.read(pair[1]), convert.Options(**options))


def warnings(conversion: convert.Conversion) -> str:
    return "\n".join(note.text for note in conversion.notes if note.level == "warning")


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    data = json.loads(path.read_text("utf-8"))
    change(data)
    path.write_text(json.dumps(data), "utf-8")


# --- numbers that JSON forbids ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", ["drafter", "target"])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_numbers_that_json_forbids_in_fields_nobody_needs(pair: Pair, side: str, name: str, number: float) -> None:
    path = pair[side == "target"] / name
    fields = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    path.write_text(json.dumps({**fields, "time_step_limit": [0.0, number], "time_step_max": number}), "utf-8")
    assert "Infinity" in path.read_text() or "NaN" in path.read_text()
    assert prepared(pair).files
    assert not [each for each in check(*open_pair(*pair)) if each.severity == "error"]
    assert inspect(pair[side == "target"]).kind == side


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("name", ["rms_norm_eps", "rope_theta", "hidden_size", "max_position_embeddings", "vocab_size"])
def test_a_needed_number_must_be_finite(pair: Pair, name: str, number: str) -> None:
    edit(pair[0] / "config.json", lambda data: data.update({name: "HERE"}))
    path = pair[0] / "config.json"
    path.write_text(path.read_text().replace('"HERE"', number))
    with pytest.raises(ConfigError, match=rf"config\.json: {name} is -?(nan|inf), expected"):
        prepared(pair)


def test_every_reader_of_json_takes_the_same_numbers() -> None:
    for strict in (True, False):
        found = parse_json(b'\xef\xbb\xbf{"a": NaN, "b": [Infinity, -Infinity]}', "x", strict=strict)
        assert math.isnan(found["a"])
        assert found["b"] == [math.inf, -math.inf]


# --- side files ----------------------------------------------------------------------------------------------------

SIDE_FILES: dict[str, tuple[str, str, bytes]] = {
    "a README of another encoding": ("drafter", "README.md", "---\nlicense: é\n---".encode("latin-1")),
    "a README that is no YAML": ("drafter", "README.md", b"---\na: [\n---\n"),
    "a drafter's generation config": ("drafter", "generation_config.json", b"{"),
    "a sampling value of another kind": ("drafter", "generation_config.json", b'{"top_k": "many"}'),
    "a target's generation config": ("target", "generation_config.json", b"no json"),
    "a generation config of another encoding": ("target", "generation_config.json", '{"a": "é"}'.encode("latin-1")),
    "a chat template of another encoding": ("target", "chat_template.jinja", "é{{ x }}".encode("utf-16")),
    "a chat template that is no JSON": ("target", "chat_template.json", b"{{ x }}"),
}


@pytest.mark.parametrize("case", SIDE_FILES)
def test_a_damaged_side_file_is_left_out(pair: Pair, case: str) -> None:
    side, name, data = SIDE_FILES[case]
    (pair[side == "target"] / name).write_bytes(data)
    conversion = prepared(pair)
    said = [line for line in warnings(conversion).splitlines() if name in line]
    assert said, conversion.notes
    assert all(line.endswith("; left out") for line in said)
    keys = {kv.name: kv.value for kv in conversion.files[0].keys}
    assert "general.sampling.top_k" not in keys
    assert "é" not in str(keys.get("tokenizer.chat_template"))


def test_a_named_template_of_another_encoding_is_left_out(pair: Pair) -> None:
    (pair[1] / "chat_template.jinja").write_text("main")
    (pair[1] / "additional_chat_templates").mkdir()
    (pair[1] / "additional_chat_templates" / "tool.jinja").write_bytes(b"\xff")
    conversion = prepared(pair)
    assert "tool.jinja: not UTF-8 at byte 0; left out" in warnings(conversion)
    assert {kv.name: kv.value for kv in conversion.files[0].keys}["tokenizer.chat_template"] == "main"


def test_sampling_values_of_a_drafter_are_written_as_before(pair: Pair) -> None:
    values = {"temperature": 0.5, "top_k": 40, "top_p": 0.9, "mirostat": 2**40}
    (pair[0] / "generation_config.json").write_text(json.dumps(values))
    conversion = prepared(pair)
    keys = {kv.name: kv.value for kv in conversion.files[0].keys if kv.name.startswith("general.sampling.")}
    assert keys == {"general.sampling.top_k": 40, "general.sampling.top_p": 0.9, "general.sampling.temp": 0.5}
    assert "mirostat is 1099511627776; left out" in warnings(conversion)


# --- the byte order mark ---------------------------------------------------------------------------------------------


def _marked(path: Path) -> None:
    path.write_bytes(BOM + path.read_bytes())


def test_a_byte_order_mark_changes_nothing(pair: Pair) -> None:
    (pair[0] / "README.md").write_text("---\nlicense: mit\n---\n")
    (pair[1] / "chat_template.jinja").write_text("{{ x }}")

    def keys() -> list[tuple[str, Any]]:
        files = prepared(pair).files
        return [(kv.name, kv.value) for kv in files[0].keys if not kv.name.startswith(HASHES)]

    before = keys()
    for side in pair:
        for path in side.iterdir():
            if path.suffix != ".safetensors":
                _marked(path)
    assert keys() == before
    assert ("general.license", "mit") in before


def test_every_text_that_a_person_writes_may_have_one(pair: Pair, fixtures: Path, tmp_path: Path) -> None:
    from dflash_convert.release.plan import read_release
    from dflash_convert.validation import prompts, reference
    from dflash_convert.validation.options import read_thresholds

    path = tmp_path / "p.jsonl"
    path.write_bytes(BOM + b'{"prompt": "x"}\n')
    assert [item.prompt for item in prompts.read(path)] == ["x"]
    for name, text in (("t.json", b'{"min_acceptance": 0.5}'), ("t.toml", b"min_acceptance = 0.5")):
        (tmp_path / name).write_bytes(BOM + text)
        assert read_thresholds(tmp_path / name) == {"min_acceptance": 0.5}
    release = tmp_path / "release.toml"
    release.write_bytes(BOM + b'[[pair]]\ndrafter = "d"\ntarget = "t"\ntypes = ["Q8_0"]\n')
    assert len(read_release(release).pairs) == 1
    stored = tmp_path / "r.json"
    stored.write_bytes(BOM + b"{}")
    with pytest.raises(ConfigError, match="is not a validation reference"):
        reference.load(stored)


# --- labels of quantization ------------------------------------------------------------------------------------------

LABELS: dict[str, dict[str, Any]] = {
    "AWQ": {"quant_method": "awq", "bits": 4},
    "GPTQ": {"quant_method": "gptq", "bits": 4, "sym": True},
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "torchao": {"quant_method": "torchao"},
    "HQQ": {"quant_method": "hqq"},
    "pack-quantized": {"quant_method": "compressed-tensors", "format": "pack-quantized"},
    "pack-quantized in a group": {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"format": "pack-quantized"}},
    },
}


@pytest.mark.parametrize("label", LABELS)
def test_a_label_inherited_from_the_target_is_only_told(pair: Pair, label: str) -> None:
    before = prepared(pair).files[0].tensors
    edit(pair[0] / "config.json", lambda data: data.update(quantization_config=LABELS[label]))
    conversion = prepared(pair)
    assert conversion.files[0].tensors == before
    assert "config.json says that the weights are quantized with" in warnings(conversion)


PARTS: dict[str, tuple[str, Any]] = {
    "a matrix of bytes": ("layers.0.mlp.up_proj.weight", np.zeros((4, 4), "u1")),
    "packed integers": ("layers.0.mlp.up_proj.qweight", np.zeros((4, 4), "<i4")),
    "scales alone": ("layers.0.mlp.up_proj.scales", np.zeros((4, 4), "<f2")),
    "a state of bitsandbytes": ("layers.0.mlp.up_proj.weight.absmax", np.zeros(4, "<f4")),
    "a compressed tensor's shape": ("layers.0.mlp.up_proj.weight_shape", np.zeros(2, "<i8")),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_label_that_the_tensors_bear_out_is_refused(pair: Pair, part: str) -> None:
    from safetensors.numpy import save_file

    name, values = PARTS[part]
    save_file({name: values}, pair[0] / "model-more.safetensors")
    (pair[0] / "model.safetensors").rename(pair[0] / "model-first.safetensors")
    if name.endswith(".weight"):  # in the place of the sound one
        save_file({name: values, "fc.weight": np.zeros((4, 4), "<f4")}, pair[0] / "model-more.safetensors")
        (pair[0] / "model-first.safetensors").unlink()
    edit(pair[0] / "config.json", lambda data: data.update(quantization_config=LABELS["AWQ"]))
    with pytest.raises(FamilyError, match="quantized with AWQ, which is not dequantized here"):
        prepared(pair)


def test_a_map_of_tokens_is_no_quantization() -> None:
    from dflash_convert.checkpoint import SourceTensor
    from dflash_convert.families.quantized import _is_quantized

    for name, dtype in (("d2t", "I64"), ("t2d", "BOOL"), ("layers.0.mlp.up_proj.weight", "BF16")):
        assert not _is_quantized(SourceTensor(name, Path("x"), dtype, (8,), 0, 8))


# --- a language model inside ---------------------------------------------------------------------------------------


def _wrap(name: str) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        inner = {key: data.pop(key) for key in list(data) if key not in ("architectures", "model_type")}
        *outer, last = name.split(".")
        for part in outer:
            data[part] = {}
            data, kept = data[part], data
            assert kept
        data[last] = inner

    return change


WRAPPED = (*TEXT_CONFIGS, "thinker_config.text_config", "llm_config.text_config", "thinker_config.llm.text_config")


@pytest.mark.parametrize("name", WRAPPED)
def test_a_wrapped_target_is_read_under_every_name(pair: Pair, name: str) -> None:
    drafter, target = pair
    plain = Target.read(target).stated
    before = [(kv.name, kv.value) for kv in prepared(pair).files[0].keys if not kv.name.endswith("sha256")]
    memory = target_model(Target.read(target))
    edit(target / "config.json", _wrap(name))
    stated = Target.read(target).stated
    for field in ("hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings"):
        assert stated.integer(field) == plain.integer(field) is not None
    after = [(kv.name, kv.value) for kv in prepared(pair).files[0].keys if not kv.name.endswith("sha256")]
    assert after == before
    findings = check(*open_pair(drafter, target))
    assert "target-config" not in {each.name for each in findings}
    shown = inspect(target)
    assert shown.kind == "target"
    assert shown.data["shapes"]["vocab_size"] == plain.integer("vocab_size")
    assert shown.data["tokenizer"]
    assert target_model(Target.read(target)) == memory


def test_a_wrapper_is_a_target_by_the_class_inside(pair: Pair) -> None:
    def change(data: dict[str, Any]) -> None:
        _wrap("llm_config")(data)
        data["llm_config"]["architectures"] = data.pop("architectures")
        data["architectures"] = ["InternVLChatModel"]

    edit(pair[1] / "config.json", change)
    found = inspect(pair[1])
    assert (found.kind, found.data["architecture"]) == ("target", "qwen3")
    with pytest.raises(FamilyError, match=r"InternVLChatModel is a .* target model, .*did you swap the arguments"):
        convert.prepare(convert.Source(pair[1]), Target.read(pair[1]), convert.Options())
    assert [each.name for each in check(*open_pair(*pair)) if each.name.startswith("target-")] == []


def test_a_target_that_states_nothing_is_said(pair: Pair) -> None:
    edit(pair[1] / "config.json", lambda data: [data.pop(name) for name in ("hidden_size", "num_hidden_layers")])
    (finding,) = [each for each in check(*open_pair(*pair)) if each.name == "target-config"]
    assert (finding.severity, finding.target) == ("warning", "no num_hidden_layers and no hidden_size")
    edit(pair[1] / "config.json", lambda data: data.pop("vocab_size"))
    with pytest.raises(DflashError, match=r"target/config\.json: vocab_size is missing \(read: the top level, text_"):
        open_pair(*pair)
    assert any("states no vocab_size" in note.text for note in inspect(pair[1]).notes)


def test_the_language_model_of_a_wrapper_overrules_the_wrapper() -> None:
    config = Config({"hidden_size": 1, "llm_config": {"hidden_size": 2}, "vision_config": {"hidden_size": 3}})
    assert config.integer("hidden_size") == 2
    deep: dict[str, Any] = {"hidden_size": 9}
    for _ in range(50):
        deep = {"text_config": deep}
    assert Config(deep).integer("hidden_size") is None  # nobody nests like that; the depth is bounded


# --- the name of the drafter -----------------------------------------------------------------------------------------


def test_the_same_checkpoint_gives_the_same_bytes_from_every_path(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(pair[0])
    (pair[0] / "inside").mkdir()
    outputs = []
    for at, path in enumerate((pair[0], Path(), Path("inside/.."), tmp_path / "link", Path("../drafter"))):
        monkeypatch.chdir(pair[0])
        output = tmp_path / f"{at}.gguf"
        run(Task(convert.Source(path), Target.read(pair[1]), convert.Options(), output, False, 1, None))
        outputs.append(output)
    assert len({path.read_bytes() for path in outputs}) == 1
    assert open_gguf(outputs[0]).get("general.name") == "Drafter"


def test_read_json_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[NaN]")
    with pytest.raises(ConfigError, match=r"x\.json: a JSON object was expected, found list"):
        read_json(tmp_path / "x.json")
