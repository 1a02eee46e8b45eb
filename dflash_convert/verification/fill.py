"""What a GGUF holds besides keys and tensors: zeros up to the next alignment, and nothing else."""

from __future__ import annotations

from dflash_convert.container.reader import Gguf
from dflash_convert.notes import Note


def compare_fill(gguf: Gguf, notes: list[Note]) -> list[str]:
    """Bytes that no reader looks at and no writer leaves; zeros behind the last tensor's fill are only noted."""
    differences = []
    for start, data in gguf.fill():
        at = next((start + i for i, byte in enumerate(data) if byte), None)
        if at is not None:
            differences.append(f"byte {at} is {data[at - start]} where no key and no tensor is; writers leave 0")
            continue
        more = len(data) - -start % gguf.alignment
        if more > 0:
            notes.append(Note("warning", f"{more} bytes of zeros follow the last tensor"))
    return differences
