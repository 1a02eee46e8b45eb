"""The tensor types this library reads and writes: name, elements per block, bytes per block (ggml-common.h)."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import ShapeError, UnknownTypeError


@dataclass(frozen=True, slots=True)
class QuantType:
    """One type: a row is a whole number of blocks of ``block`` elements and ``nbytes`` bytes each."""

    name: str
    block: int
    nbytes: int
    imatrix: bool = False  # whether importance weights change its bytes

    def row_nbytes(self, k: int) -> int:
        """Bytes of a row of ``k`` elements; ShapeError when the row does not fill whole blocks."""
        if k <= 0 or k % self.block:
            raise ShapeError(f"a row of {k} elements does not fill blocks of {self.block} ({self.name})")
        return k // self.block * self.nbytes


TYPES: dict[str, QuantType] = {
    t.name: t
    for t in (
        QuantType("F32", 1, 4),
        QuantType("F16", 1, 2),
        QuantType("BF16", 1, 2),
        QuantType("Q4_0", 32, 18, imatrix=True),
        QuantType("Q4_1", 32, 20, imatrix=True),
        QuantType("Q5_0", 32, 22, imatrix=True),
        QuantType("Q5_1", 32, 24, imatrix=True),
        QuantType("Q8_0", 32, 34),
        QuantType("MXFP4", 32, 17),
        QuantType("IQ4_NL", 32, 18, imatrix=True),
        QuantType("Q2_K", 256, 84, imatrix=True),
        QuantType("Q3_K", 256, 110, imatrix=True),
        QuantType("Q4_K", 256, 144, imatrix=True),
        QuantType("Q5_K", 256, 176, imatrix=True),
        QuantType("Q6_K", 256, 210, imatrix=True),
        QuantType("IQ4_XS", 256, 136, imatrix=True),
    )
}


def quant_type(name: str) -> QuantType:
    """The type called ``name``; UnknownTypeError names the ones there are."""
    try:
        return TYPES[name]
    except KeyError:
        raise UnknownTypeError(f"unknown type {name!r}; there are {', '.join(TYPES)}") from None
