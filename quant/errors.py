"""Errors of the quantization library.

QuantError              base; ``row`` is the row of the matrix or None
  UnknownTypeError      a type name that quant.TYPES does not have
  ShapeError            rows that do not fill whole blocks, arrays of the wrong shape or dtype
  NonFiniteError        NaN or Inf in a row
  ScaleOverflowError    a block scale that does not fit in float16 (ggml would store Inf)
  RecipeError           a recipe that cannot be carried out as written
"""

from __future__ import annotations


class QuantError(ValueError):
    """Base of the errors; ``row`` counts from the first row of the array that was passed."""

    def __init__(self, message: str, *, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


class UnknownTypeError(QuantError):
    pass


class ShapeError(QuantError):
    pass


class NonFiniteError(QuantError):
    pass


class ScaleOverflowError(QuantError):
    pass


class RecipeError(QuantError):
    pass
