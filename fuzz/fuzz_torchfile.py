"""A torch.save archive: the zip and the pickle inside it, read as data."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable

from harness import scratch


def archive(program: bytes, storage: bytes) -> bytes:
    """The smallest archive around a pickle and one raw storage."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as file:
        file.writestr("m/data.pkl", program)
        file.writestr("m/data/0", storage)
    return out.getvalue()


def reader() -> Callable[[bytes], object]:
    from dflash_convert import torchfile

    path = scratch() / "x.pt"

    def read(data: bytes) -> None:
        if not data:
            return
        path.write_bytes(data[1:] if data[0] % 4 == 0 else archive(data[1:], bytes(256)))
        torchfile.read_mask_embedding(path)

    return read
