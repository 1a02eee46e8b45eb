"""Which targets a drafter can be attached to, and whose drafters these are (read from llama.cpp b11434)."""

from __future__ import annotations

from dflash_convert.forks.dialects import BY_ARCHITECTURE

# Graphs that set t_layer_inp, so that their hidden states can be tapped.  qwen4exp sets it too, but to the whole
# hyper-connection residual, whose width the extraction refuses.
TAPPABLE = frozenset(
    {
        "bailingmoe3",
        "deepseek4",
        "gemma4",
        "gpt-oss",
        "hunyuan-dense",
        "hunyuan_vl",
        "lfm2",
        "lfm2moe",
        "llama",
        "mimo2",
        "minimax-01",
        "minimax-m2",
        "muse-glimmer",
        "nanbeige",
        "nemotron_h",
        "nemotron_h_moe",
        "qwen3",
        "qwen35",
        "qwen35moe",
        "qwen3moe",
        "qwen3next",
    }
)
# Of those, the graphs that also export what leaves the last layer (tap index = number of layers).
LAST_LAYER = frozenset({"deepseek4", "mimo2", "nemotron_h", "nemotron_h_moe"})

# Architecture strings of drafters; the first group is llama.cpp's own, the second that of forks.
DRAFTERS = ("dflash", "eagle3", "gemma4-assistant")
DIALECTS = {name: dialect.runtimes for name, dialect in BY_ARCHITECTURE.items()}

_CLASSES = {
    "bailingmoe3": ("BailingMoeV3ForCausalLM", "BailingMoeV3VLForConditionalGeneration"),
    "deepseek2": (
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "KimiK2ForCausalLM",
        "KimiVLForConditionalGeneration",
    ),
    "deepseek4": ("DeepseekV4ForCausalLM",),
    "gemma2": ("Gemma2ForCausalLM",),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    "gemma4": ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration"),
    "glm-dsa": ("GlmMoeDsaForCausalLM",),
    "glm4moe": ("Glm4MoeForCausalLM",),
    "gpt-oss": ("GptOssForCausalLM",),
    "hunyuan-dense": ("HunYuanDenseV1ForCausalLM",),
    "hunyuan_vl": ("HunYuanVLForConditionalGeneration",),
    "laguna": ("LagunaForCausalLM",),
    "lfm2": ("Lfm2ForCausalLM", "LFM2ForCausalLM", "Lfm2VlForConditionalGeneration"),
    "lfm2moe": ("Lfm2MoeForCausalLM",),
    "llama": ("LlamaForCausalLM", "LLaMAForCausalLM", "MistralForCausalLM", "MixtralForCausalLM"),
    "mimo2": ("MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"),
    "minimax-01": ("MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM"),
    "minimax-m2": ("MiniMaxM2ForCausalLM",),
    "minimax-m3": ("MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration"),
    "muse-glimmer": ("MuseGlimmerForConditionalGeneration",),
    "nanbeige": ("NanbeigeForCausalLM",),
    "nemotron_h": ("NemotronHForCausalLM",),
    "qwen2": ("Qwen2ForCausalLM",),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Model"),
    "qwen35": ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
    "qwen35moe": ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
    "qwen3moe": ("Qwen3MoeForCausalLM",),
    "qwen3next": ("Qwen3NextForCausalLM",),
    "qwen3vl": ("Qwen3VLForConditionalGeneration",),
    "qwen3vlmoe": ("Qwen3VLMoeForConditionalGeneration",),
}
# Hugging Face class -> the architecture string llama.cpp's converter gives it
BY_CLASS = {name: architecture for architecture, names in _CLASSES.items() for name in names}


def is_gemma(architecture: str) -> bool:
    """Gemma multiplies its embeddings by sqrt(hidden size); the factor is not in the table itself."""
    return architecture.lower().startswith("gemma")
