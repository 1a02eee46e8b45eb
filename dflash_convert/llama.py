"""What llama.cpp is, as this project knows it: facts of one build, each in this one place.

Everything that asks "is this a drafter, which kind, how is it run" asks here.  What can be read off llama.cpp's sources
is in :mod:`dflash_convert.llama_tables`, which ``tools/refresh_llama.py`` writes (docs/new-llama-cpp.md).
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dflash_convert import llama_tables, tensors
from dflash_convert.tensors import Part

BUILD = "b11434"

DEFAULT_BLOCK = llama_tables.DEFAULT_BLOCK
DEFAULT_N_MAX = llama_tables.DEFAULT_N_MAX
# drafts when nobody measured: the last length that one CUDA kernel verifies in one go, and most blocks' better half
FIRST_N_MAX = 7
MAX_LAYERS = llama_tables.MAX_LAYERS
NEXTN = ".nextn.eh_proj."  # in the names of a prediction layer's tensors


@dataclass(frozen=True)
class Variant:
    """One drafting method of an architecture.

    ``family`` is what people call it, ``spec_type`` what ``--spec-type`` does; ``mark`` names the tensor by which
    llama.cpp tells it from the other methods of its architecture.  ``anchored``: it can draft from the anchor's own
    slot, unless the file's sample_from_anchor is false.
    """

    family: str
    spec_type: str
    mark: str = ""
    anchored: bool = False

    @property
    def prefix(self) -> str:
        """What the file's name begins with, so that llama.cpp finds it beside its target."""
        return self.spec_type.removeprefix("draft-") + "-"

    def first_slot(self, sample_from_anchor: bool | None = None) -> int:
        """The position in the block that predicts the first draft; None is a file without the key."""
        return 0 if self.anchored and sample_from_anchor is not False else 1

    def max_drafts(self, block: int, sample_from_anchor: bool | None = None) -> int:
        """The most tokens that a block of ``block`` positions drafts; 0 for a block that holds the anchor alone."""
        return block - self.first_slot(sample_from_anchor)


@dataclass(frozen=True)
class DrafterArchitecture:
    """A value of ``general.architecture`` that llama.cpp runs as a drafter.

    ``variants``: the first whose mark is among a file's tensors.  ``block``: it drafts a block of mask tokens, so a
    file needs block_size and a mask token.  ``taps``: it reads hidden states of the target (target_layers, ``fc``);
    ``last_layer`` are the targets of which it can read what leaves the last layer.  ``parts``: the tensors that its
    loader creates.
    """

    name: str
    variants: tuple[Variant, ...]
    block: bool = False
    taps: bool = False
    last_layer: frozenset[str] = frozenset()
    parts: tuple[Part, ...] = ()

    def key(self, name: str) -> str:
        """The full name of one of the architecture's keys."""
        return f"{self.name}.{name}"

    def max_drafts(
        self, names: Container[str], block: int | None, sample_from_anchor: bool | None = None
    ) -> int | None:
        """The most tokens that a block drafts, at least 1; None for an architecture without blocks."""
        if not self.block:
            return None
        return max(self.variant(names).max_drafts(block or DEFAULT_BLOCK, sample_from_anchor), 1)

    def n_max(self, names: Container[str], block: int | None, sample_from_anchor: bool | None = None) -> int:
        """How many tokens to draft when nobody measured (``tune`` does): what a block drafts up to FIRST_N_MAX, else
        llama.cpp's own default."""
        most = self.max_drafts(names, block, sample_from_anchor)
        return DEFAULT_N_MAX if most is None else min(most, FIRST_N_MAX)

    def variant(self, names: Container[str]) -> Variant:
        """Which drafting method a file with tensors ``names`` is run with."""
        return next(v for v in self.variants if not v.mark or v.mark in names)


# methods that can sample their drafts, which the target then verifies by rejection (common/speculative.cpp)
PROBABILISTIC = frozenset({"draft-simple", "draft-mtp"})
# graphs that set t_layer_inp and still cannot be a drafter's target, each with the reason
NO_TARGET = {
    "llama-embed": "an embedding model generates nothing",
    "qwen4exp": "it hands out the whole hyper-connection residual, whose width the extraction refuses",
}
# targets whose hidden states can be tapped
TAPPABLE = frozenset(llama_tables.TAPPED) - set(NO_TARGET)
# of those, the ones that hand out what leaves the last layer (tap index = number of layers) as DFlash reads it ...
LAST_INPUT = frozenset(llama_tables.TAPPED_BEHIND_LAST) & TAPPABLE
# ... and as EAGLE-3 does, which must not have passed the final norm
LAST_HIDDEN = frozenset(llama_tables.LAST_HIDDEN) & TAPPABLE

# dflash.hidden_activation; the first is the one without a key (src/models/dflash.cpp)
ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")
# architectures whose GGUF has no pattern of windows: every n-th layer is a full one
WINDOW_PERIOD = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2, "cohere2": 4}

MARKOV_W1, MARKOV_W2, SELECTOR = "markov_w1.weight", "markov_w2.weight", "selector_hidden.weight"
HYPER = "hyper_connection.count"  # above 0: the layers are whole DeepSeek-V4 blocks

DFLASH = DrafterArchitecture(
    "dflash",
    (
        Variant("DSpark", "draft-dspark", mark=MARKOV_W1, anchored=True),
        Variant("DFlash2", "draft-dflash", mark=SELECTOR),
        Variant("DFlash", "draft-dflash"),
    ),
    block=True,
    taps=True,
    last_layer=LAST_INPUT,
    parts=(
        Part(tensors.FUSION),
        Part(tensors.ENDS),
        Part(tensors.SPARK, mark=MARKOV_W1),
        Part(tensors.SELECTOR, mark=SELECTOR, unless=HYPER),
        Part(tensors.DEEPSEEK4, key=HYPER),
        Part(tensors.BACKBONE, unless=HYPER),
    ),
)
EAGLE3 = DrafterArchitecture(
    "eagle3",
    (Variant("EAGLE-3", "draft-eagle3"),),
    taps=True,
    last_layer=LAST_HIDDEN,
    parts=(Part(tensors.EAGLE3), Part(tensors.EAGLE3_FUSION_NORM, key="norm_before_fc")),
)
GEMMA4_ASSISTANT = DrafterArchitecture(
    "gemma4-assistant", (Variant("MTP", "draft-mtp"),), parts=(Part(tensors.GEMMA4_ASSISTANT),)
)

# the registry: one row here and one module in families/ make a new kind of drafter (docs/adding-a-family.md)
DRAFTERS: tuple[DrafterArchitecture, ...] = (DFLASH, EAGLE3, GEMMA4_ASSISTANT)


def drafter(architecture: str | None) -> DrafterArchitecture | None:
    """The row of a drafter's architecture; None for any other model's."""
    return next((row for row in DRAFTERS if row.name == architecture), None)


def method(architecture: str | None, names: Collection[str]) -> Variant | None:
    """How llama.cpp drafts with a file of this architecture and tensors ``names``; None when it is no drafter.

    A target's own prediction layers, in a file of the target's architecture, draft as an MTP head does.
    """
    row = drafter(architecture)
    if row is not None:
        return row.variant(names)
    return GEMMA4_ASSISTANT.variants[0] if any(NEXTN in name for name in names) else None


def variants() -> tuple[Variant, ...]:
    """Every drafting method, in the registry's order."""
    return tuple(variant for row in DRAFTERS for variant in row.variants)


# methods that draft from the text so far, without a drafter (common/speculative.cpp)
NGRAMS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")


def spec_types() -> tuple[str, ...]:
    """The values of ``--spec-type`` that run a drafter, each once, plain DFlash first."""
    found = dict.fromkeys(variant.spec_type for row in DRAFTERS for variant in reversed(row.variants))
    return tuple(found)


# Hugging Face class -> the architecture string llama.cpp's converter gives it; the first ones it finds by other means
BY_CLASS: Mapping[str, str] = MappingProxyType({"KimiK2ForCausalLM": "deepseek2", **llama_tables.CLASSES})


def architecture_of(names: Iterable[str]) -> str | None:
    """The architecture that llama.cpp's converter gives to the first class that it knows."""
    return next((BY_CLASS[name] for name in names if name in BY_CLASS), None)


def class_of(architecture: str) -> str | None:
    """The Hugging Face class that an architecture is named after."""
    plain = architecture.replace("-", "").replace("_", "")
    names = [name for name, of in BY_CLASS.items() if of == architecture]

    def unlike(name: str) -> tuple[bool, int, int]:
        shared = next((i for i, (a, b) in enumerate(zip(name.lower(), plain, strict=False)) if a != b), len(plain))
        return not name.endswith("ForCausalLM"), -shared, len(name)

    return min(names, key=unlike, default=None)


def is_gemma(architecture: str) -> bool:
    """Gemma multiplies its embeddings by sqrt(hidden size); the factor is not in the table itself."""
    return architecture.lower().startswith("gemma")


def file_types() -> dict[int, str]:
    """general.file_type -> its name, of every type that the build reads; those written here are quant.recipe's."""
    from quant.recipe import FTYPES, ftype_name  # numpy comes with it

    return llama_tables.FILE_TYPES | {number: ftype_name(name) for name, number in FTYPES.items()}


def file_type_name(number: int | None) -> str | None:
    """The encoding's name; None for no number or one that the build does not know."""
    return None if number is None else file_types().get(number)
