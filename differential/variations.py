"""Seeded variations of the fixtures: what exporters write, in every family, with every kind of target and tokenizer.

Case N of seed S is the same on every machine: ``variation(S, N)``.
"""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import make_checkpoints as fixture
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
TOKENIZERS = ROOT / "fixtures" / "tokenizers"
TINY = ROOT / "fixtures" / "tiny-js" / "target"
TYPES = ("auto", "bf16", "f16", "f32", "q8_0")
# dialects that the converter does not read at all: there is nothing to compare them with
OURS_ALONE = (
    "dflash_nemo",
    "dflash_no_architecture",
    "dflash_speculators",
    "dspark_specforge",
    "dspark_modelopt",
    "deepseek_v4_dspark_fp8",
)


@dataclass
class Variation:
    """One case: a drafter, its target, the target's tokenizer files, and what was changed."""

    name: str
    family: str
    config: dict[str, Any]
    tensors: fixture.Tensors
    target: dict[str, Any]
    tokenizer: str
    tokenizer_config: dict[str, Any] | None
    files: dict[str, Any] = field(default_factory=dict)
    outtype: str = "bf16"
    changes: list[str] = field(default_factory=list)

    @property
    def nested(self) -> dict[str, Any]:
        """Where the contract's fields stand: dflash_config, or the top."""
        found = self.config.get("dflash_config")
        return found if isinstance(found, dict) else self.config

    @property
    def backbone(self) -> dict[str, Any]:
        """Where the backbone's fields stand."""
        for name in ("transformer_layer_config", "text_config"):
            if isinstance(self.config.get(name), dict):
                return self.config[name]  # type: ignore[no-any-return]
        return self.config

    @property
    def block_drafter(self) -> bool:
        return not self.family.startswith(("eagle3", "gemma4_assistant"))

    def write(self, directory: Path) -> tuple[Path, Path]:
        """``directory``/drafter and ``directory``/target with all files."""
        drafter, target = directory / "drafter", directory / "target"
        for path, config in ((drafter, self.config), (target, self.target)):
            path.mkdir(parents=True)
            (path / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        fixture.write_safetensors(drafter / "model.safetensors", self.tensors)
        self._write_tokenizer(target)
        if self.family == "gemma4_assistant":  # whose own files the converter reads
            self._write_tokenizer(drafter)
        if "README.md" in self.files:
            (drafter / "README.md").write_text(self.files["README.md"], encoding="utf-8")
        return drafter, target

    def _write_tokenizer(self, directory: Path) -> None:
        source = TINY if self.tokenizer == "bytelevel" else TOKENIZERS / self.tokenizer
        for file in source.iterdir():
            if file.name.startswith("token") and file.name != "tokenizer_config.json":
                shutil.copy(file, directory / file.name)
        for name, content in self.files.items():
            text = content if isinstance(content, str) else json.dumps(content)
            if name != "README.md":
                (directory / name).write_text(text, encoding="utf-8")
        if self.tokenizer_config is not None:
            (directory / "tokenizer_config.json").write_text(json.dumps(self.tokenizer_config), encoding="utf-8")


Change = Callable[[random.Random, Variation], "str | None"]


def variation(seed: int, number: int) -> Variation:
    """A fixture with one to five changes."""
    rng = random.Random(f"{seed}:{number}")
    family = rng.choice([name for name in sorted(fixture.CASES) for _ in range(1 if name in OURS_ALONE else 4)])
    case = copy.deepcopy(fixture.CASES[family]())
    config = json.loads((TINY / "tokenizer_config.json").read_text(encoding="utf-8"))
    found = Variation(
        f"{seed}-{number}-{family}",
        family,
        case.config,
        case.tensors,
        fixture.target_config(**case.target),
        "bytelevel",
        config,
        outtype=rng.choice(TYPES),
    )
    if family == "gemma4_assistant":
        use_tokenizer(found, "gemma")
    if family == "gemma4_dspark":  # no class of transformers', whose defaults would be read as the config's own
        found.config["model_type"] = "gemma4_dspark"
    for _ in range(rng.randint(1, 5)):
        change = rng.choice(CHANGES)
        said = change(rng, found)
        if said is not None:
            found.changes.append(said)
    return found


# --- the drafter's config ---------------------------------------------------------------------------------------


def rope(rng: random.Random, v: Variation) -> str:
    """A rope table under one of its two names, with some of its optional fields."""
    kind = rng.choice(("none", "default", "linear", "yarn", "llama3", "dynamic", "mrope", "longrope"))
    where = v.backbone
    where.pop("rope_parameters", None)
    where.pop("rope_scaling", None)
    where.setdefault("rope_theta", 10000.0)
    if where["rope_theta"] is None:
        where["rope_theta"] = 10000.0
    if kind == "none":
        return "rope none"
    table: dict[str, Any] = {rng.choice(("rope_type", "rope_type", "type")): kind}
    options: dict[str, Any] = {
        "linear": {"factor": 2.0},
        "yarn": {"factor": 4.0, "original_max_position_embeddings": 1024, "beta_fast": 32.0, "beta_slow": 1.0,
                 "attention_factor": 1.1},
        "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 512},
        "dynamic": {"factor": 2.0, "alpha": 1000.0},
        "mrope": {"mrope_section": [12, 10, 10]},
        "longrope": {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32},
    }.get(kind, {})  # fmt: skip
    table |= {name: value for name, value in options.items() if rng.random() < 0.8}
    if rng.random() < 0.3:
        table["rope_theta"] = rng.choice((10000.0, 5e5, 1e6))
    where[rng.choice(("rope_parameters", "rope_scaling"))] = table
    return f"rope {table}"


def partial(rng: random.Random, v: Variation) -> str:
    value = rng.choice((0.25, 0.5, 1.0))
    table = v.backbone.get("rope_parameters")
    if isinstance(table, dict) and "full_attention" not in table and rng.random() < 0.5:
        table["partial_rotary_factor"] = value
    else:
        v.backbone["partial_rotary_factor"] = value
    return f"partial_rotary_factor {value}"


def theta(rng: random.Random, v: Variation) -> str:
    """The base under one of its names; those of the main one stand for ``rope_theta``, not beside it."""
    local = ("rope_local_base_freq", "swa_rope_theta", "local_rope_theta")
    name = rng.choice(("rope_theta", "rope_theta", "global_rope_theta", "rope_global_theta", *local))
    if name not in local:
        v.backbone.pop("rope_theta", None)
    v.backbone[name] = rng.choice((10000.0, 10000, 500000.0, 1e7))
    return f"{name} {v.backbone[name]}"


def no_theta(rng: random.Random, v: Variation) -> str:
    v.backbone.pop("rope_theta", None)
    return "no rope_theta"


def sections(rng: random.Random, v: Variation) -> str:
    """A target's M-RoPE, and sometimes the drafter repeats it."""
    if v.family.startswith(("gemma4", "deepseek")) or v.tokenizer == "gemma":
        return "no mrope"
    table = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [12, 10, 10]}
    v.target |= {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl"}
    (v.target.get("text_config") or v.target)["rope_parameters"] = dict(table)
    if rng.random() < 0.5:
        v.backbone["rope_parameters"] = dict(table)
        v.backbone.pop("rope_scaling", None)
        return "mrope of both"
    return "mrope of the target"


def window(rng: random.Random, v: Variation) -> str:
    layers = v.backbone.get("num_hidden_layers", 1)
    kinds = [rng.choice(("sliding_attention", "full_attention")) for _ in range(layers)]
    fields = {"layer_types": kinds, "sliding_window": rng.choice((64, 128, None)), "max_window_layers": 28,
              "use_sliding_window": rng.choice((True, False))}  # fmt: skip
    chosen = {name: value for name, value in fields.items() if rng.random() < 0.7}
    v.backbone.update(chosen)
    if v.block_drafter and "dflash_config" in v.config and rng.random() < 0.3:
        v.nested.update({"use_swa": rng.choice((True, False)), "swa_window_size": 32})
        return f"window {chosen} and use_swa"
    return f"window {chosen}"


def causal(rng: random.Random, v: Variation) -> str:
    name = rng.choice(("is_causal", "causal"))
    place = v.config if name == "is_causal" or rng.random() < 0.3 else v.nested
    place[name] = rng.choice((True, False))
    return f"{name} {place[name]}"


def activation(rng: random.Random, v: Variation) -> str:
    name = rng.choice(("hidden_act", "hidden_activation"))
    v.backbone[name] = rng.choice(("silu", "gelu", "gelu_pytorch_tanh"))
    return f"{name} {v.backbone[name]}"


def scales(rng: random.Random, v: Variation) -> str:
    name = rng.choice(
        ("output_multiplier", "final_logit_softcapping", "input_embedding_scale", "attention_value_scale")
    )
    place = rng.choice((v.nested, v.config))
    place[name] = rng.choice((0.5, 2.0, 30.0, 0.0, 3, None))
    return f"{name} {place[name]}"


def contract(rng: random.Random, v: Variation) -> str:
    """A field of the contract elsewhere, or gone."""
    name = rng.choice(("block_size", "mask_token_id", "target_layer_ids", "num_target_layers", "mask_token_id"))
    places = [place for place in (v.nested, v.config) if name in place]
    value = places[0][name] if places else None
    for place in places:
        place.pop(name, None)  # both may be the same
    to = rng.choice(("top", "nested", "both", "none")) if value is not None else "none"
    if to in ("top", "both"):
        v.config[name] = value
    if to in ("nested", "both"):
        v.nested[name] = value
    return f"{name} {to}"


def anchor(rng: random.Random, v: Variation) -> str:
    place = rng.choice((v.nested, v.config))
    place["sample_from_anchor"] = rng.choice((True, False))
    return "sample_from_anchor"


def experts(rng: random.Random, v: Variation) -> str:
    """Fields of a mixture of experts, copied from a target."""
    if v.family.startswith("deepseek"):
        return "experts as they were"
    fields = {"num_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
              "moe_intermediate_size": 64, "n_routed_experts": 8, "scoring_func": "sigmoid",
              "n_shared_experts": 1, "norm_topk_prob": True}  # fmt: skip
    chosen = {name: value for name, value in fields.items() if rng.random() < 0.4}
    v.backbone.update(chosen)
    return f"experts {chosen}"


def idle(rng: random.Random, v: Variation) -> str:
    """Fields that decide nothing."""
    fields = {"attention_dropout": 0.0, "initializer_range": 0.02, "use_cache": True, "torch_dtype": "bfloat16",
              "transformers_version": "4.57.1", "layer_norm_eps": 1e-5, "_name_or_path": "x/y", "pad_token_id": 3,
              "bos_token_id": 500, "eos_token_id": 502, "tie_word_embeddings": False, "auto_map": {"AutoModel": "a.B"},
              "rms_norm_eps": 1e-5}  # fmt: skip
    chosen = {name: value for name, value in fields.items() if rng.random() < 0.3}
    v.backbone.update(chosen)
    return f"idle {list(chosen)}"


def epsilon(rng: random.Random, v: Variation) -> str:
    if "rms_norm_eps" in v.backbone:
        v.backbone["norm_eps"] = v.backbone.pop("rms_norm_eps")
    return "norm_eps"


def typed(rng: random.Random, v: Variation) -> str:
    """Numbers of another spelling."""
    name = rng.choice(("rope_theta", "max_position_embeddings", "rms_norm_eps", "num_key_value_heads"))
    value = v.backbone.get(name)
    if isinstance(value, float):
        v.backbone[name] = int(value) if value.is_integer() else value * 10
    return f"{name} as {v.backbone.get(name)!r}"


def nothing_there(rng: random.Random, v: Variation) -> str:
    """A field that is absent or null."""
    name = rng.choice(("head_dim", "num_key_value_heads", "max_position_embeddings", "hidden_act", "model_type"))
    if rng.random() < 0.5:
        v.backbone.pop(name, None)
    else:
        v.backbone[name] = None
    return f"no {name}"


# --- its tensors ------------------------------------------------------------------------------------------------


def dtype(rng: random.Random, v: Variation) -> str:
    """All or some matrices in another float format."""
    to, some = rng.choice(("F16", "F32")), rng.choice((1.0, 0.5, 0.15))
    for name, (kind, array) in list(v.tensors.items()):
        if kind == "BF16" and rng.random() < some:
            values = (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
            v.tensors[name] = (to, values.astype({"F16": np.float16, "F32": np.float32}[to]))
    return f"{some:.0%} {to}"


def prefix(rng: random.Random, v: Variation) -> str:
    if any(name.startswith(("model.", "mtp.", "midlayer")) for name in v.tensors):
        return "no prefix"
    v.tensors = v.tensors.rename(lambda name: f"model.{name}")
    return "prefix model."


def own_tables(rng: random.Random, v: Variation) -> str:
    """Embeddings or a head of the drafter's own."""
    name = rng.choice(("embed_tokens.weight", "lm_head.weight"))
    if any(name in other for other in v.tensors) or v.family.startswith(("gemma4_assistant", "deepseek")):
        return f"{name} as it was"
    v.tensors.add(name, fixture.VOCAB, fixture.HIDDEN, scale=0.3)
    return f"own {name}"


def order(rng: random.Random, v: Variation) -> str:
    names = list(v.tensors)
    rng.shuffle(names)
    v.tensors = fixture.Tensors({name: v.tensors[name] for name in names})
    return "tensors in another order"


def neox(rng: random.Random, v: Variation) -> str:
    name = rng.choice(("rope_is_neox_style", "is_neox_style"))
    rng.choice((v.config, v.nested))[name] = rng.choice((True, False))
    return name


# --- the target -------------------------------------------------------------------------------------------------

CLASSES = {
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Qwen2ForCausalLM": "qwen2",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "GptOssForCausalLM": "gpt_oss",
    "Gemma4ForConditionalGeneration": "gemma4",
    "Gemma3ForCausalLM": "gemma3_text",
    "Gemma2ForCausalLM": "gemma2",
    "NemotronHForCausalLM": "nemotron_h",
    "Glm4MoeForCausalLM": "glm4_moe",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "InternLM3ForCausalLM": "internlm3",
    "GraniteForCausalLM": "granite",
    "Lfm2ForCausalLM": "lfm2",
    "MiniMaxM2ForCausalLM": "minimax_m2",
    "Olmo3ForCausalLM": "olmo3",
    "StableLmForCausalLM": "stablelm",
    "ApertusForCausalLM": "apertus",
}


def target_class(rng: random.Random, v: Variation) -> str:
    name = rng.choice(list(CLASSES))
    if v.family.startswith(("gemma4_a", "deepseek")) or v.tokenizer == "gemma":
        return "target as it was"  # these run with one class alone, and only Gemma 4 has such a tokenizer
    v.target |= {"architectures": [name], "model_type": CLASSES[name]}
    if name.startswith("Nemotron") and rng.random() < 0.5:
        v.target["num_experts_per_tok"] = 2
    if name == "Gemma4ForConditionalGeneration" or rng.random() < 0.15:
        wrap(v)
    return f"target {name}"


def wrap(v: Variation) -> None:
    """A multimodal target's layout."""
    if "text_config" not in v.target:
        inner = {key: value for key, value in v.target.items() if key not in ("architectures", "model_type")}
        v.target = {"architectures": v.target["architectures"], "model_type": v.target["model_type"]}
        v.target["text_config"] = inner


def tokenizer(rng: random.Random, v: Variation) -> str:
    if v.family.startswith(("deepseek", "gemma4_assistant")):
        return "tokenizer as it was"
    return use_tokenizer(v, rng.choice(("bytelevel", "spm-tiny", "spm-tiny", "gemma")))


def use_tokenizer(v: Variation, name: str) -> str:
    """Another tokenizer's files, with a target that has such a tokenizer."""
    v.tokenizer = name
    source = TINY if v.tokenizer == "bytelevel" else TOKENIZERS / v.tokenizer
    v.tokenizer_config = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    v.files.pop("added_tokens.json", None)
    if v.tokenizer == "gemma":
        v.target |= {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4"}
        wrap(v)
    elif v.tokenizer == "spm-tiny":
        v.files["added_tokens.json"] = (source / "added_tokens.json").read_text()
    return f"tokenizer {v.tokenizer}"


def template(rng: random.Random, v: Variation) -> str:
    if v.tokenizer_config is None:
        return "no template"
    kind = rng.choice(("absent", "empty", "text", "named", "jinja", "null"))
    v.tokenizer_config.pop("chat_template", None)
    if kind == "jinja":
        v.files["chat_template.jinja"] = "{% for m in messages %}{{ m.content }}{% endfor %}"
    elif kind != "absent":
        named = [{"name": "default", "template": "{{ a }}"}, {"name": "tool_use", "template": "{{ b }}"}]
        v.tokenizer_config["chat_template"] = {"empty": "", "text": "{{ x }}", "named": named, "null": None}[kind]
    return f"chat_template {kind}"


def flags(rng: random.Random, v: Variation) -> str:
    if v.tokenizer_config is None:
        return "no flags"
    names = ["add_bos_token", "add_eos_token", "add_prefix_space", "legacy"]
    names += ["bos_token", "pad_token"] if v.tokenizer == "bytelevel" else []  # whose texts are tokens of it
    name = rng.choice(names)
    values = {"bos_token": ("<|endoftext|>", None), "pad_token": ("<|endoftext|>", None)}
    value = rng.choice(values.get(name, (True, False)))
    v.tokenizer_config[name] = value
    return f"{name} {value}"


def late_tokens(rng: random.Random, v: Variation) -> str:
    """Tokens that only tokenizer_config.json or added_tokens.json names."""
    if v.tokenizer != "bytelevel":
        return "no late tokens"
    document = json.loads((TINY / "tokenizer.json").read_text(encoding="utf-8"))
    added = document["added_tokens"]
    after = 1 + max(entry["id"] for entry in added)  # transformers numbers them on from there, whatever the file says
    if rng.random() < 0.5 and v.tokenizer_config is not None and "added_tokens.json" not in v.files:
        late = {**added[0], "id": after, "content": "<late>", "special": rng.choice((True, False))}
        decoder = {str(entry["id"]): {k: x for k, x in entry.items() if k != "id"} for entry in (*added, late)}
        v.tokenizer_config["added_tokens_decoder"] = decoder
        return "added_tokens_decoder"
    if v.tokenizer_config is None or "added_tokens_decoder" not in v.tokenizer_config:
        v.files["added_tokens.json"] = {"<later>": after, "<|latest|>": after + 1}
    return "added_tokens.json"


def no_tokenizer_config(rng: random.Random, v: Variation) -> str:
    if v.tokenizer == "bytelevel":  # transformers finds no class for the others then
        v.tokenizer_config = None
    return "no tokenizer_config.json"


def special_ids(rng: random.Random, v: Variation) -> str:
    name = rng.choice(("bos_token_id", "eos_token_id", "pad_token_id"))
    value = rng.choice((1, [2, 3], 502, None))
    if rng.random() < 0.5:
        v.target[name] = value
        return f"target {name} {value}"
    v.files["generation_config.json"] = {name: value}
    return f"generation_config {name} {value}"


def card(rng: random.Random, v: Variation) -> str:
    lines = ["license: apache-2.0", "base_model: Qwen/Qwen3-8B", "tags: [a, b]", "language: [en]",
             "datasets: [x/y]", "library_name: transformers", "base_model_relation: finetune"]  # fmt: skip
    chosen = [line for line in lines if rng.random() < 0.5]
    v.files["README.md"] = "---\n" + "\n".join(chosen) + "\n---\n# Card\n"
    return f"card {chosen}"


CHANGES: tuple[Change, ...] = (
    rope, rope, partial, theta, no_theta, sections, window, window, causal, activation, scales, contract, contract,
    anchor, experts, idle, epsilon, typed, nothing_there, dtype, dtype, prefix, own_tables, order, neox, target_class,
    target_class, tokenizer, tokenizer, template, flags, flags, late_tokens, no_tokenizer_config, special_ids, card,
)  # fmt: skip
