"""Public drafters as their published configs describe them: fields, tensor names and shapes, no weights.

Numbers that a repository does not publish (a feed-forward width here and there) are taken from its target; what
is tested is the reading of the config's spelling, not the number.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Config = dict[str, Any]
Shapes = dict[str, tuple[str, tuple[int, ...]]]
SIZE = {"BF16": 2, "F32": 4, "U8": 1, "I64": 8, "BOOL": 1, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1}


@dataclass(frozen=True)
class Row:
    """``outcome`` is empty for a drafter that is planned, else the reason it is refused for (a regex)."""

    name: str
    config: Config
    shapes: Shapes
    target: Config
    outcome: str = ""
    expect: Mapping[str, Any] = field(default_factory=dict)
    file: str = "model.safetensors"


def write_headers(path: Path, shapes: Shapes) -> None:
    """A safetensors file whose data is a hole of the right size: zeros, but for t2d, which marks what d2t maps to."""
    header: Config = {}
    at = 0
    for name, (dtype, shape) in shapes.items():
        count = math.prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + count * SIZE[dtype]]}
        at += count * SIZE[dtype]
    head = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(8 + len(head) + at)
        if {"d2t", "t2d"} <= set(shapes):
            file.seek(8 + len(head) + header["t2d"]["data_offsets"][0])
            file.write(b"\1" * shapes["d2t"][1][0])


def target(arch: str, hidden: int, layers: int, vocab: int, **over: Any) -> Config:
    return {
        "architectures": [arch],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "vocab_size": vocab,
        "max_position_embeddings": 40960,
        **over,
    }


def backbone(hidden: int, ffn: int, layers: int, vocab: int, heads: int = 32, kv: int = 8, dim: int = 128) -> Config:
    return {
        "model_type": "qwen3",
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": dim,
        "vocab_size": vocab,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000000,
        "hidden_act": "silu",
        "attention_bias": False,
        "max_position_embeddings": 40960,
        "dtype": "bfloat16",
    }


def zlab(base: Config, block: int, mask: int, taps: list[int], **over: Any) -> Config:
    inner = {"mask_token_id": mask, "target_layer_ids": taps, **over.pop("nested", {})}
    return {"architectures": ["DFlashDraftModel"], "block_size": block, **base, "dflash_config": inner, **over}


def deepspec(base: Config, arch: str, mask: int, taps: list[int], **over: Any) -> Config:
    top = {"mask_token_id": mask, "target_layer_ids": taps, "num_anchors": 512, "tie_word_embeddings": False}
    return {"architectures": [arch], "block_size": 7, **base, **top, "markov_head_type": "vanilla", **over}


def speculators(base: Config, kind: str, arch: str, block: int, tokens: int, taps: list[int], **over: Any) -> Config:
    methods = [{"proposal_type": "greedy", "speculative_tokens": tokens}]
    return {
        "architectures": [arch],
        "speculators_model_type": kind,
        "transformer_layer_config": base,
        "aux_hidden_state_layer_ids": taps,
        "block_size": block,
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": methods,
            "verifier": {"name_or_path": "Qwen/Qwen3-8B", "architectures": ["Qwen3ForCausalLM"]},
        },
        **over,
    }


def deepseek_v4_config(experts: int) -> Config:
    yarn = {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32, "beta_slow": 1}
    return {
        "architectures": ["DeepseekV4DSparkModel"],
        "model_type": "deepseek_v4",
        "hidden_size": 4096,
        "num_hidden_layers": 43,
        "num_attention_heads": 64,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "q_lora_rank": 1024,
        "o_groups": 8,
        "o_lora_rank": 1024,
        "sliding_window": 128,
        "vocab_size": 129280,
        "max_position_embeddings": 1048576,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000,
        "rope_scaling": yarn,
        "moe_intermediate_size": 2048,
        "n_routed_experts": experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": 6,
        "routed_scaling_factor": 1.5,
        "norm_topk_prob": True,
        "scoring_func": "sqrtsoftplus",
        "swiglu_limit": 10.0,
        "index_n_heads": 64,
        "index_head_dim": 128,
        "index_topk": 512,
        "compress_rope_theta": 160000,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "num_hash_layers": 3,
        "dspark_block_size": 5,
        "dspark_noise_token_id": 128799,  # not known; any id does here
        "dspark_target_layer_ids": [40, 41, 42],
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"},
    }


def deepseek_v4_stages(experts: int) -> Shapes:
    """Three stages: FP8 attention and shared expert, FP4 experts packed two a byte."""
    shapes: Shapes = {}

    def eight(name: str, rows: int, columns: int) -> None:
        shapes[f"{name}.weight"] = ("F8_E4M3", (rows, columns))
        shapes[f"{name}.scale"] = ("F8_E8M0", (-(-rows // 128), -(-columns // 128)))

    eight("mtp.0.main_proj", 4096, 3 * 4096)
    shapes["mtp.0.main_norm.weight"] = ("BF16", (4096,))
    for i in range(3):
        p = f"mtp.{i}."
        for side in ("attn", "ffn"):
            shapes |= {f"{p}hc_{side}_fn": ("F32", (24, 16384)), f"{p}hc_{side}_base": ("F32", (24,))}
            shapes |= {f"{p}hc_{side}_scale": ("F32", (3,)), f"{p}{side}_norm.weight": ("BF16", (4096,))}
        eight(f"{p}attn.wq_a", 1024, 4096)
        eight(f"{p}attn.wq_b", 32768, 1024)
        eight(f"{p}attn.wkv", 512, 4096)
        eight(f"{p}attn.wo_a", 8192, 4096)
        eight(f"{p}attn.wo_b", 4096, 8192)
        shapes |= {f"{p}attn.attn_sink": ("F32", (64,)), f"{p}attn.q_norm.weight": ("BF16", (1024,))}
        shapes |= {f"{p}attn.kv_norm.weight": ("BF16", (512,)), f"{p}ffn.gate.bias": ("F32", (experts,))}
        shapes[f"{p}ffn.gate.weight"] = ("BF16", (experts, 4096))
        for part, rows, columns in (("w1", 2048, 4096), ("w2", 4096, 2048), ("w3", 2048, 4096)):
            eight(f"{p}ffn.shared_experts.{part}", rows, columns)
            for expert in range(experts):
                stem = f"{p}ffn.experts.{expert}.{part}."
                shapes[stem + "weight"] = ("I8", (rows, columns // 2))
                shapes[stem + "scale"] = ("F8_E8M0", (rows, columns // 32))
    shapes |= {"mtp.2.norm.weight": ("BF16", (4096,)), "mtp.2.hc_head_fn": ("F32", (4, 16384))}
    shapes |= {"mtp.2.hc_head_base": ("F32", (4,)), "mtp.2.hc_head_scale": ("F32", (1,))}
    for name in ("w1", "w2"):
        shapes[f"mtp.2.markov_head.markov_{name}.weight"] = ("BF16", (129280, 512))
    shapes["mtp.2.confidence_head.proj.weight"] = ("BF16", (1, 4096 + 512))
    return shapes


def tensors(config: Config, taps: int, value: bool = True) -> Shapes:
    """The backbone's tensors for a config, nested or not."""
    c = {**config, **config.get("transformer_layer_config", {})}
    h, ffn, heads, kv = (
        c[k] for k in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    )
    dim = c["head_dim"]
    shapes: Shapes = {"fc.weight": ("BF16", (h, taps * h))}
    shapes |= dict.fromkeys(("hidden_norm.weight", "norm.weight"), ("BF16", (h,)))
    for i in range(c["num_hidden_layers"]):
        layer: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (h,),
            "post_attention_layernorm.weight": (h,),
            "self_attn.q_proj.weight": (heads * dim, h),
            "self_attn.k_proj.weight": (kv * dim, h),
            "self_attn.v_proj.weight": (kv * dim, h),
            "self_attn.o_proj.weight": (h, heads * dim),
            "self_attn.q_norm.weight": (dim,),
            "self_attn.k_norm.weight": (dim,),
            "mlp.gate_proj.weight": (ffn, h),
            "mlp.up_proj.weight": (ffn, h),
            "mlp.down_proj.weight": (h, ffn),
        }
        if not value:
            del layer["self_attn.v_proj.weight"]
        shapes |= {f"layers.{i}.{name}": ("BF16", shape) for name, shape in layer.items()}
    return shapes


def markov(config: Config, rank: int = 256, vocab: int | None = None, confidence: bool = True) -> Shapes:
    c = {**config, **config.get("transformer_layer_config", {})}
    shapes: Shapes = {
        "markov_head.markov_w1.weight": ("BF16", (c["vocab_size"], rank)),
        "markov_head.markov_w2.weight": ("BF16", (vocab or c["vocab_size"], rank)),
    }
    if confidence:
        shapes["confidence_head.proj.weight"] = ("BF16", (1, c["hidden_size"] + rank))
        shapes["confidence_head.proj.bias"] = ("BF16", (1,))
    return shapes


def reduced(hidden: int, vocab: int, draft: int) -> Shapes:
    return {
        "lm_head.weight": ("BF16", (draft, hidden)),
        "d2t": ("I64", (draft,)),
        "t2d": ("BOOL", (vocab,)),
    }


def vocabulary(hidden: int, vocab: int) -> Shapes:
    return dict.fromkeys(("embed_tokens.weight", "lm_head.weight"), ("BF16", (vocab, hidden)))


QWEN3, QWEN35, GEMMA = 151936, 248320, 262144
QWEN3_8B = target("Qwen3ForCausalLM", 4096, 36, QWEN3)
QWEN36_27B = target("Qwen3_5ForConditionalGeneration", 5120, 64, QWEN35, model_type="qwen3_5")
QWEN38_27B = QWEN36_27B
QWEN36_35B = target("Qwen3_5MoeForConditionalGeneration", 2048, 40, QWEN35, model_type="qwen3_5_moe")
GEMMA_31B = target("Gemma4ForConditionalGeneration", 5376, 60, GEMMA)
MUSE_30B = target("MuseGlimmerForConditionalGeneration", 6656, 52, 202048)
NEMOTRON = target("NemotronHForCausalLM", 2688, 52, 131072)
LLAMA_8B = target("LlamaForCausalLM", 4096, 32, 128256)


def mixed(count: int, window: int) -> Config:
    kinds = ["sliding_attention"] * (count - 1) + ["full_attention"]
    return {"layer_types": kinds, "sliding_window": window, "use_sliding_window": True}


def with_extra(shapes: Shapes, extra: Mapping[str, tuple[int, ...]], dtype: str = "BF16") -> Shapes:
    return shapes | {name: (dtype, shape) for name, shape in extra.items()}


def sinks(shapes: Shapes, layers: int, heads: int) -> Shapes:
    return with_extra(shapes, {f"layers.{i}.self_attn.attention_sink_bias": (heads,) for i in range(layers)})


def nvfp4(shapes: Shapes, parts: tuple[str, ...]) -> Shapes:
    """ModelOpt's W4A16: packed bytes, E4M3 scales for 16 values, one float32 for the tensor."""
    result: Shapes = {}
    for name, (dtype, shape) in shapes.items():
        if len(shape) == 2 and any(part in name for part in parts):
            result[name] = ("U8", (shape[0], shape[1] // 2))
            result[name + "_scale"] = ("F8_E4M3", (shape[0], shape[1] // 16))
            result[name + "_scale_2"] = ("F32", ())
            result[name.removesuffix("weight") + "input_scale"] = ("F32", ())
        else:
            result[name] = (dtype, shape)
    return result


def dflash_rows() -> list[Row]:
    rows = []

    def add(name: str, config: Config, of: Config, taps: int, outcome: str = "", **more: Any) -> None:
        shapes = more.pop("shapes", None) or tensors(config, taps)
        rows.append(Row(name, config, shapes, of, outcome, more.pop("expect", {}), **more))

    five, gemma_taps = [1, 9, 17, 25, 33], [1, 12, 23, 35, 46, 57]
    gemma = zlab(backbone(5376, 10752, 5, GEMMA, 64), 16, 4, gemma_taps, num_target_layers=60)
    gemma |= mixed(5, 2048) | {"final_logit_softcapping": 30.0, "tie_word_embeddings": True, "rope_scaling": None}
    add("z-lab/gemma-4-31B-it-DFlash", gemma, GEMMA_31B, 6, expect={"final_logit_softcapping": 30.0, "tensors": 58})
    for name, hidden, ffn in (("4B", 2560, 9728), ("8B", 4096, 12288)):
        config = zlab(backbone(hidden, ffn, 5, QWEN3), 16, 151669, five, num_target_layers=36)
        of = target("Qwen3ForCausalLM", hidden, 36, QWEN3)
        add(f"z-lab/Qwen3-{name}-DFlash-b16", config, of, 5, expect={"tensors": 58})
    base = backbone(5120, 17408, 5, QWEN35)
    config = zlab(base, 16, 248070, [1, 16, 31, 46, 61], **mixed(5, 2048))
    add("z-lab/Qwen3.6-27B-DFlash", config, QWEN36_27B, 5, expect={"attention.sliding_window": 2048})
    inner = {"block_size": 16, "layer_types": ["sliding_attention"] * 6}
    base = backbone(2048, 6144, 6, QWEN35)
    config = zlab(base, 16, 248070, [1, 8, 15, 22, 29, 36], nested=inner, **mixed(6, 4096))
    del config["block_size"]
    add("z-lab/Qwen3.6-35B-A3B-DFlash", config, QWEN36_35B, 6, expect={"block_size": 16})
    base = backbone(2880, 7680, 8, 201088, 64, 8, 64) | {"attention_bias": True}
    config = zlab(base, 8, 200000, [1, 6, 11, 16, 21])
    biases = {
        f"layers.{i}.self_attn.{p}_proj.bias": (n,)
        for i in range(8)
        for p, n in zip("qkvo", (4096, 512, 512, 2880), strict=True)
    }
    of = target("GptOssForCausalLM", 2880, 24, 201088)
    shapes = with_extra(tensors(config, 5), biases)
    add("z-lab/gpt-oss-20b-DFlash", config, of, 5, "no biases in attention", shapes=shapes)
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 8192}
    config = zlab(backbone(4096, 14336, 5, 128256), 10, 128002, [1, 8, 15, 22, 29], rope_scaling=scaling)
    add("z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat", config, LLAMA_8B, 5, expect={"tensors": 59})
    config = zlab(backbone(7168, 18432, 6, 163840, 64, 8), 8, 163838, [1, 12, 24, 35, 47, 58])
    kimi = target("DeepseekV3ForCausalLM", 7168, 61, 163840)  # its graph exports no layer inputs
    add("z-lab/Kimi-K2.5-DFlash", config, kimi, 6, "target-architecture .* target deepseek2")
    config = zlab(backbone(1024, 3072, 5, 120832, 16, 8), 16, 120025, [1, 8, 15, 22])
    add("tencent/HunyuanOCR (dflash)", config, target("HunYuanVLForConditionalGeneration", 1024, 24, 120832), 4)
    config = zlab(backbone(2048, 6144, 6, QWEN35), 16, 248077, [1, 6, 11, 16, 22, 27, 32, 37], **mixed(6, 4096))
    add("ornith-ai/Ornith-1.5-35B-A3B-DFlash", config, QWEN36_35B, 8, expect={"block_size": 16})
    base = backbone(3072, 12288, 6, 100352, 72, 8) | {"model_type": "laguna"}
    config = zlab(base, 16, 12, [1, 10, 19, 29, 38, 47], architectures=["DFlashLagunaForCausalLM"])
    add("poolside/Laguna-S-2.1-DFlash", config, target("LagunaForCausalLM", 3072, 48, 100352), 6, "Laguna drafter")
    add(
        "modal-labs/Qwen3.5-397B-A17B-DFlash",
        config | {"model_type": "qwen3", "architectures": ["DFlashDraftModel"]},
        target("Qwen3_5MoeForCausalLM", 3072, 60, 100352),
        6,
        file="draft.safetensors",
    )
    config = zlab(backbone(1024, 3584, 5, QWEN35, 8, 2), 16, 248077, [3, 7, 11, 15, 19])
    add("Moonlight556/Qwen3.5-0.8B-DFlash", config, target("Qwen3_5ForCausalLM", 1024, 24, QWEN35), 5)
    config = deepspec(backbone(2560, 9728, 5, QWEN3), "Qwen3DSparkModel", 151669, five, markov_rank=0)
    shapes = tensors(config, 5) | vocabulary(2560, QWEN3)
    of = target("Qwen3ForCausalLM", 2560, 36, QWEN3)
    add("deepseek-ai/dflash_qwen3_4b_block7", config, of, 5, shapes=shapes, expect={"sample_from_anchor": True})
    config = speculators(backbone(4096, 12288, 5, QWEN3), "dflash", "DFlashDraftModel", 8, 7, [2, 10, 18, 26, 34])
    config |= {"mask_token_id": 151669, "draft_vocab_size": 32000, "sliding_window_non_causal": False}
    shapes = tensors(config, 5) | reduced(4096, QWEN3, 32000)
    add(
        "RedHatAI/Qwen3-8B-speculator.dflash",
        config,
        QWEN3_8B,
        5,
        shapes=shapes,
        expect={"target_layers": [2, 10, 18, 26, 34]},
    )
    config = zlab(backbone(4096, 12288, 5, QWEN3), 8, 151669, five, torch_dtype="float32", num_target_layers=36)
    config["dflash_config"] |= {"use_swa": True, "swa_window_size": 2048, "causal": False}
    add("modelopt/Qwen3-8B-DFlash-bs8", config, QWEN3_8B, 5, expect={"attention.causal": False})
    return rows


def nemotron_rows() -> list[Row]:
    base = backbone(2688, 6144, 6, 131072, 32, 2)
    yarn = {"rope_type": "yarn", "factor": 128.0, "original_max_position_embeddings": 8192, "rope_theta": 10000.0}
    taps, algorithm = [1, 5, 19, 29, 41, 51], {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}
    config = zlab(base, 16, 990, taps, nested={"causal": False}, rope_scaling=yarn, quantization_config=algorithm)
    config |= {
        "has_embed_tokens": True,
        "has_lm_head": False,
        "eagle_aux_hidden_state_layer_ids": [t + 1 for t in taps],
    }
    config |= {"rope_theta": 10000.0}
    without_block = {k: v for k, v in config.items() if k != "block_size"}
    shapes = nvfp4(tensors(config, 6), ("mlp.", "fc.")) | {"embed_tokens.weight": ("BF16", (131072, 2688))}
    name = "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4"
    spark = zlab(
        base,
        8,
        990,
        taps,
        nested={
            "causal": True,
            "sample_from_anchor": False,
            "use_swa": True,
            "swa_window_size": 1024,
            "markov_rank": 512,
        },
    )
    spark |= {"architectures": ["DSparkDraftModel"], "rope_parameters": None, "quantization_config": algorithm}
    spark_shapes = nvfp4(sinks(tensors(spark, 6), 6, 32), ("mlp.", "fc.")) | markov(spark, 512)
    expect = {"attention.causal": True, "attention.sliding_window": 1024, "sample_from_anchor": False}
    return [
        Row(f"{name}-DFlash", without_block, shapes, NEMOTRON, "block_size is missing"),
        Row(f"{name}-DFlash with --block-size", config, shapes, NEMOTRON, "", {"rope.scaling.factor": 128.0}),
        Row(f"{name}-DSpark", spark, spark_shapes, NEMOTRON, "", expect),
    ]


def second_rows() -> list[Row]:
    inner = {"block_size": 8, "conv_group_size": 16, "conv_kernel_size": 2, "selector_rank": 256, "selector_top_k": 16}

    def row(name: str, base: Config, of: Config, mask: int, taps: list[int], more: Config) -> Row:
        config = zlab(base, 8, mask, taps, nested=inner | more, architectures=["DFlash2DraftModel"], is_causal=False)
        del config["block_size"]
        hidden, count, vocab = base["hidden_size"], base["num_hidden_layers"], base["vocab_size"]
        config |= {"layer_types": ["sliding_attention"] * count, "sliding_window": 2048, "use_sliding_window": True}
        extra: dict[str, tuple[int, ...]] = {}
        for i in range(count):
            for side in ("attention_conv", "mlp_conv"):
                extra[f"layers.{i}.{side}.base_kernel"] = (2, 2, hidden)
                extra[f"layers.{i}.{side}.kernel_projection.weight"] = (4 * hidden // 16, hidden)
        extra |= {f"candidate_selector.{n}_codebook": (vocab, 256) for n in ("predecessor", "successor")}
        extra["candidate_selector.hidden_projection.weight"] = (256, hidden)
        expect = {
            "attention.causal": False,
            "selector_rank": 256,
            "tensors": 81,
            **{k: v for k, v in more.items() if "soft" in k},
        }
        return Row(name, config, with_extra(tensors(config, len(taps)), extra), of, "", expect)

    muse = {"final_logit_softcapping": 20.0, "output_multiplier": 0.196}
    qwen = backbone(5120, 17408, 5, QWEN35)
    return [
        row("incoai/Qwen3.8-27B-DFlash2", qwen, QWEN38_27B, 248070, [5, 19, 33, 47, 61], {}),
        row(
            "incoai/Muse-Glimmer-30B-DFlash2",
            backbone(6656, 19968, 5, 202048),
            MUSE_30B,
            201818,
            [1, 13, 25, 37, 49],
            muse,
        ),
    ]


def spark_rows() -> list[Row]:
    rows = []

    def add(name: str, config: Config, of: Config, taps: int, outcome: str = "", **more: Any) -> None:
        shapes = more.pop("shapes", None) or tensors(config, taps) | markov(config)
        rows.append(Row(name, config, shapes, of, outcome, more.pop("expect", {}), **more))

    for size, hidden, depth, taps in (("8b", 4096, 36, [1, 9, 17, 25, 33]), ("14b", 5120, 40, [1, 10, 19, 28, 37])):
        config = deepspec(backbone(hidden, 12288, 5, QWEN3), "Qwen3DSparkModel", 151669, taps, markov_rank=256)
        shapes = tensors(config, 5) | markov(config) | vocabulary(hidden, QWEN3)
        of = target("Qwen3ForCausalLM", hidden, depth, QWEN3)
        add(
            f"deepseek-ai/dspark_qwen3_{size}_block7", config, of, 5, shapes=shapes, expect={"sample_from_anchor": True}
        )
    base = backbone(3840, 15360, 5, GEMMA, 16, 8, 256) | {"hidden_activation": "gelu_pytorch_tanh"}
    del base["rope_theta"], base["hidden_act"]
    config = deepspec(
        base, "Gemma4DSparkModel", 4, [5, 17, 29, 41, 46], attention_k_eq_v=True, tie_word_embeddings=True
    )
    config |= {"layer_types": ["full_attention"] * 5, "global_head_dim": 512, "num_global_key_value_heads": 1}
    shapes = tensors(config | {"head_dim": 512, "num_key_value_heads": 1}, 5, value=False) | markov(config)
    for i in range(5):
        for part, shape in (
            ("pre_feedforward_layernorm.weight", (3840,)),
            ("post_feedforward_layernorm.weight", (3840,)),
            ("layer_scalar", (1,)),
        ):
            shapes[f"layers.{i}.{part}"] = ("BF16", shape)
    add(
        "deepseek-ai/dspark_gemma4_12b_block7",
        config,
        target("Gemma4ForConditionalGeneration", 3840, 48, GEMMA),
        5,
        shapes=shapes,
        expect={"hidden_activation": "gelu_pytorch_tanh"},
    )
    shapes = deepseek_v4_stages(256)
    config = deepseek_v4_config(256)
    of = target("DeepseekV4ForCausalLM", 4096, 43, 129280)
    expect = {"block_count": 3, "hyper_connection.count": 4, "target_layers": [41, 42, 43], "tensors": 81}
    add("deepseek-ai/DeepSeek-V4-Flash-DSpark", config, of, 3, shapes=shapes, expect=expect)
    config = config | {"architectures": ["DeepseekV4ForCausalLM"]}
    shapes = shapes | {"embed.weight": ("BF16", (129280, 4096)), "layers.0.attn.wkv.weight": ("F8_E4M3", (512, 4096))}
    shapes |= {"layers.0.attn.wkv.scale": ("F8_E8M0", (4, 32))}
    add("deepseek-ai/DeepSeek-V4-Flash-0731 (embedded)", config, of, 3, shapes=shapes, expect=expect)
    config = deepspec(backbone(5120, 17408, 5, QWEN35), "Qwen3DSparkModel", 248070, [1, 16, 31, 46, 61], block_size=15)
    config |= {"partial_rotary_factor": 0.25}
    rope = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]}
    add(
        "satgeze/Qwen3.6-27B-DSpark",
        config,
        QWEN36_27B | {"rope_parameters": rope},
        5,
        expect={"rope.dimension_count": None},
    )
    config = config | {"architectures": ["Qwen35DSparkModel"]}
    add("stanleyphoong/Ornith-1.0-9B-DSpark", config, QWEN36_27B, 5, "Qwen3.5 DSpark drafter")
    for name, mask, taps, vocab, depth in (
        ("1.2B", 64402, [2, 5, 8, 11, 14], 65536, 16),
        ("2.6B", 125017, [2, 9, 17, 21, 27], 128000, 30),
    ):
        config = zlab(backbone(2048, 6144, 5, vocab, 32, 8, 64), 9, mask, taps, nested={"num_target_layers": depth})
        config |= {"architectures": ["Lfm2DSparkDraftModel"], "rope_is_neox_style": False}
        add(
            f"LiquidAI/LFM2.5-{name}-DSpark",
            config,
            target("Lfm2ForCausalLM", 2048, depth, vocab),
            5,
            expect={"block_size": 9},
        )
    config = zlab(backbone(4096, 9216, 5, 157184), 8, 156895, [1, 8, 15, 22, 29], architectures=["LingDSparkModel"])
    add("inclusionAI/Ling-3.0-flash-dspark", config, target("BailingMoeV3ForCausalLM", 4096, 32, 157184), 5)
    yarn = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 8192, "rope_theta": 10000000.0}
    config = zlab(
        backbone(5120, 10240, 5, QWEN35, 40, 8),
        7,
        248077,
        [4, 16, 28, 40, 52],
        rope_scaling=yarn,
        nested={"projector_type": "dspark", "markov_rank": 256},
        architectures=["DSparkDraftModel"],
    )
    add("RadixArk/Qwen3.8-27B-DSpark", config, QWEN38_27B, 5, expect={"rope.scaling.type": "yarn"})
    config = zlab(
        backbone(6144, 16384, 6, 200064),
        8,
        200063,
        [1, 12, 23, 35, 46, 57],
        architectures=["Qwen3DSparkModel"],
        nested={"use_swa": True, "swa_window_size": 1024, "causal": False, "shift_label": True},
        torch_dtype="float32",
    )
    shapes = {
        name.replace("markov_head.", "").replace("confidence_head.proj", "confidence_proj"): ("F32", shape)
        for name, (_, shape) in (tensors(config, 6) | markov(config)).items()
    }
    add(
        "nvidia/MiniMax-M3-DSpark",
        config,
        target("MiniMaxM3ForCausalLM", 6144, 60, 200064),
        6,
        shapes=shapes,
        expect={"attention.causal": False},
    )
    taps = [2, 7, 12, 17, 23, 28, 33, 38]
    config = speculators(
        backbone(2048, 6144, 5, QWEN35), "dspark", "DSparkSpeculator", 8, 8, taps, mask_token_id=248070
    )
    add("RedHatAI/Qwen3.6-35B-A3B-speculator.dspark", config, QWEN36_35B, 8, expect={"sample_from_anchor": True})
    base = backbone(5120, 17408, 5, QWEN35, 20, 4) | {"layer_types": ["sliding_attention"] * 5, "sliding_window": 2048}
    taps = [4, 12, 20, 28, 36, 44, 52, 60]
    config = speculators(
        base, "dspark", "DSparkSpeculator", 8, 7, taps, mask_token_id=248070, sliding_window_non_causal=False
    )
    add(
        "RedHatAI/Qwen3.8-27B-speculator.dspark",
        config,
        QWEN38_27B,
        8,
        expect={"attention.causal": True, "sample_from_anchor": False},
    )
    base = backbone(5376, 21504, 5, GEMMA, 32, 16, 256)
    config = speculators(
        base, "dspark", "DSparkSpeculator", 8, 7, [2, 13, 24, 36, 47, 58], mask_token_id=4, draft_vocab_size=32000
    )
    shapes = tensors(config, 6) | markov(config, 256, 32000) | reduced(5376, GEMMA, 32000)
    shapes["embed_tokens.weight"] = ("BF16", (GEMMA, 5376))
    add(
        "RedHatAI/gemma-4-31B-it-speculator.dspark",
        config,
        GEMMA_31B,
        6,
        shapes=shapes,
        expect={"target_layers": [2, 13, 24, 36, 47, 58]},
    )
    base = backbone(6656, 19968, 5, 202048) | {"layer_types": ["sliding_attention"] * 5, "sliding_window": 2048}
    config = speculators(
        base,
        "dspark",
        "DSparkSpeculator",
        15,
        15,
        [2, 14, 26, 38, 50],
        mask_token_id=201818,
        sliding_window_non_causal=False,
    )
    add(
        "DaoCloud/Muse-Glimmer-30B-DSpark",
        config,
        MUSE_30B,
        5,
        expect={"sample_from_anchor": True, "attention.causal": True},
    )
    config = zlab(backbone(5376, 10752, 5, GEMMA, 64), 7, 4, [1, 12, 23, 35, 46, 57])
    add("Hikari07jp/DSpark-Gemma-4-31B-draft", config, GEMMA_31B, 6, expect={"sample_from_anchor": True})
    config = deepspec(
        backbone(5120, 5120, 6, QWEN35, 40, 4), "Qwen3DSparkModel", 248319, [1, 16, 31, 46, 61], block_size=4
    )
    shapes = with_extra(tensors(config, 5) | markov(config), {"log_snr_embed.fc1.weight": (5120, 128)})
    add("Rahim/Ternary-Bonsai-27B-dspark", config, QWEN36_27B, 5, "no noise-level embedding", shapes=shapes)
    return rows


def other_rows() -> list[Row]:
    base = backbone(6656, 19968, 5, 202048) | {"rope_theta": 500000.0, "rms_norm_eps": 1e-5, "sliding_window": 2048}
    muse = {"architectures": ["MuseGlimmerAssistantModel"], **base, "block_size": 16, "mask_token_id": 201818}
    muse |= {"target_layer_ids": [1, 13, 25, 37, 49], "layer_types": ["sliding_attention"] * 5}
    encoder = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    shapes = {encoder.get(name, name): entry for name, entry in tensors(muse, 5).items()}
    rows = [
        Row("meta-models/Muse-Glimmer-30B-assistant", muse, shapes, MUSE_30B, "", {"attention.sliding_window": 2048})
    ]
    for name, arch, more, outcome in (
        ("lmsys/sglang-EAGLE3-LLaMA3.1-Instruct-8B", "LlamaForCausalLMEagle3", {}, ""),
        ("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "LlamaForCausalLM", {}, ""),
        (
            "nvidia/Qwen3-8B-Eagle3",
            "Eagle3LlamaForCausalLM",
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 17, 32]}},
            "",
        ),
        ("RedHatAI/Qwen3-8B-speculator.eagle3", "Eagle3Speculator", {"norm_before_residual": True}, ""),
        ("RedHatAI/Qwen3-8B-speculator.peagle", "PEagleDraftModel", {}, "P-EAGLE drafter"),
    ):
        qwen = "Qwen3-8B" in name
        base = backbone(4096, 14336, 1, QWEN3 if qwen else 128256) | {"model_type": "llama"}
        rows.append(
            Row(
                name,
                {"architectures": [arch], "draft_vocab_size": 32000, **base, **more},
                eagle(base),
                target("Qwen3ForCausalLM", 4096, 36, QWEN3) if qwen else LLAMA_8B,
                outcome,
            )
        )
    return [
        *rows,
        assistant("google/gemma-4-31B-it-assistant", "Gemma4AssistantForCausalLM", {}),
        assistant("google/gemma-4-12B-it-assistant", "Gemma4UnifiedAssistantForCausalLM", {}),
        assistant(
            "google/gemma-4-E2B-it-assistant",
            "Gemma4AssistantForCausalLM",
            {
                "masked_embedding.centroids.weight": ("BF16", (2048, 1024)),
                "masked_embedding.token_ordering": ("I64", (GEMMA,)),
            },
        ),
    ]


def eagle(base: Config) -> Shapes:
    h, ffn = base["hidden_size"], base["intermediate_size"]
    q, k = 32 * 128, 8 * 128
    layer: dict[str, tuple[int, ...]] = {
        **{f"{n}.weight": (h,) for n in ("hidden_norm", "input_layernorm", "post_attention_layernorm")},
        "self_attn.q_proj.weight": (q, 2 * h),
        "self_attn.k_proj.weight": (k, 2 * h),
        "self_attn.v_proj.weight": (k, 2 * h),
        "self_attn.o_proj.weight": (h, q),
        "mlp.gate_proj.weight": (ffn, h),
        "mlp.up_proj.weight": (ffn, h),
        "mlp.down_proj.weight": (h, ffn),
    }
    top: dict[str, tuple[int, ...]] = {"fc.weight": (h, 3 * h), "norm.weight": (h,)}
    named = {f"midlayer.{name}": shape for name, shape in layer.items()} | top
    return with_extra(reduced(h, base["vocab_size"], 32000), named)


def assistant(name: str, arch: str, extra: Shapes) -> Row:
    kinds, h, ffn, back = ["sliding_attention"] * 3 + ["full_attention"], 1024, 8192, 5376
    rope = {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
    text = backbone(h, ffn, 4, GEMMA, 32, 16, 256) | {
        "layer_types": kinds,
        "sliding_window": 1024,
        "rope_parameters": rope,
        "global_head_dim": 512,
        "num_global_key_value_heads": 4,
        "num_kv_shared_layers": 4,
    }
    shapes: Shapes = {
        "pre_projection.weight": ("BF16", (h, 2 * back)),
        "post_projection.weight": ("BF16", (back, h)),
        "model.embed_tokens.weight": ("BF16", (GEMMA, h)),
        "model.norm.weight": ("BF16", (h,)),
    }
    for i, kind in enumerate(kinds):
        dim, p = 256 if kind.startswith("sliding") else 512, f"model.layers.{i}."
        layer: dict[str, tuple[int, ...]] = {
            **{
                f"{n}_layernorm.weight": (h,)
                for n in ("input", "post_attention", "pre_feedforward", "post_feedforward")
            },
            "self_attn.q_proj.weight": (32 * dim, h),
            "self_attn.o_proj.weight": (h, 32 * dim),
            "self_attn.q_norm.weight": (dim,),
            "layer_scalar": (1,),
            "mlp.gate_proj.weight": (ffn, h),
            "mlp.up_proj.weight": (ffn, h),
            "mlp.down_proj.weight": (h, ffn),
        }
        shapes |= {p + n: ("BF16", shape) for n, shape in layer.items()}
    config = {
        "architectures": [arch],
        "model_type": "gemma4_assistant",
        "backbone_hidden_size": back,
        "text_config": text,
    }
    return Row(name, config, shapes | extra, GEMMA_31B, "", {"embedding_length_out": back})


# SpecForge's templates: (name, architecture, block, hidden, ffn, heads, kv, head size, mask, taps, vocab, target depth)
TEMPLATES = (
    ("qwen2.5-0.5b-dflash", "DFlashDraftModel", 16, 896, 4864, 14, 2, 64, 151669, [1, 6, 11, 16, 21], 151936, 24),
    ("qwen3-4b-dspark", "DSparkDraftModel", 7, 2560, 9728, 32, 8, 128, 151669, [1, 9, 17, 25, 33], 151936, 36),
    ("qwen3-8b-domino", "DominoDraftModel", 16, 4096, 12288, 32, 8, 128, 151669, [1, 9, 17, 25, 33], 151936, 36),
    ("qwen3.5-4b-dflash", "DFlashDraftModel", 16, 2560, 9216, 32, 8, 128, 248070, [1, 8, 15, 22, 29], 248320, 32),
    ("qwen3.5-4b-domino", "DominoDraftModel", 16, 2560, 9216, 32, 8, 128, 248070, [3, 11, 19, 27, 31], 248320, 32),
    ("qwen3.5-35b-a3b-dflash", "DFlashDraftModel", 16, 2048, 6144, 32, 4, 128, 248070, [1, 10, 19, 28, 37], 248320, 40),
    ("qwen3.6-27b-dflash", "DFlashDraftModel", 16, 5120, 17408, 32, 8, 128, 248070, [1, 16, 31, 46, 61], 248320, 64),
    ("qwen3.6-27b-dspark", "DSparkDraftModel", 16, 5120, 17408, 32, 8, 128, 248070, [2, 17, 32, 47, 62], 248320, 64),
    ("glm-5.2-dspark", "DSparkDraftModel", 7, 6144, 12288, 64, 16, 64, 154856, [1, 19, 38, 57, 76], 154880, 78),
    ("inkling-dspark", "DSparkDraftModel", 7, 6144, 12288, 64, 16, 64, 200064, [5, 17, 35, 47, 59], 201024, 66),
    ("kimi-k3-dspark", "DSparkDraftModel", 7, 7168, 18432, 64, 16, 64, 163824, [7, 23, 51, 67, 83], 163840, 93),
    ("lfm2.5-1.2b-instruct-dflash", "DFlashDraftModel", 16, 2048, 8192, 32, 8, 64, 16, [1, 4, 7, 10, 13], 65536, 16),
    ("longcat-flash-dflash", "DFlashDraftModel", 16, 6144, 12288, 32, 8, 128, 2, [1, 7, 13, 19, 25], 131072, 28),
)


def template_rows() -> list[Row]:
    rows = []
    for name, arch, block, hidden, ffn, heads, kv, dim, mask, taps, vocab, depth in TEMPLATES:
        spark = arch == "DSparkDraftModel"
        nested = {"projector_type": "dspark", "markov_rank": 256} if spark else {}
        config = zlab(
            backbone(hidden, ffn, 5, vocab, heads, kv, dim), block, mask, taps, nested=nested, architectures=[arch]
        )
        shapes = tensors(config, 5) | (markov(config) if spark else {})
        outcome = "Domino drafter" if arch == "DominoDraftModel" else ""
        rows.append(Row(f"SpecForge {name}", config, shapes, target("Qwen3ForCausalLM", hidden, depth, vocab), outcome))
    return rows


ROWS = [*dflash_rows(), *nemotron_rows(), *second_rows(), *spark_rows(), *other_rows(), *template_rows()]
