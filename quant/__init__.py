"""Quantization kernels in numpy, byte for byte what ggml writes, and llama-quantize's recipe (quant.recipe).

``quantize`` and ``dequantize`` take whole matrices; ``Encoder`` and ``Decoder`` stream rows in place through a
workspace made once. ``nonfinite_row`` says what they would
refuse. ``TYPES`` maps each type's name, spelled as in ggml, to its block size.
"""

from .api import dequantize, quantize
from .decoder import Decoder
from .encoder import CHUNK, Encoder
from .errors import (
    NonFiniteError,
    QuantError,
    RecipeError,
    ScaleOverflowError,
    ShapeError,
    UnknownTypeError,
)
from .plain import from_bf16, nonfinite_row
from .types import TYPES, QuantType

__all__ = [
    "CHUNK",
    "TYPES",
    "Decoder",
    "Encoder",
    "NonFiniteError",
    "QuantError",
    "QuantType",
    "RecipeError",
    "ScaleOverflowError",
    "ShapeError",
    "UnknownTypeError",
    "dequantize",
    "from_bf16",
    "nonfinite_row",
    "quantize",
]
