"""Two GGUFs side by side: keys and tensors that differ, with error figures."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dflash_convert.container.reader import Gguf, TensorInfo, open_gguf
from dflash_convert.container.types import KV
from dflash_convert.verification.figures import Figures, FileRows, Meter, chunks, dequantizer, same_bits
from dflash_convert.verification.keys import same, shown
from dflash_convert.verification.tensors import same_shape

NOT_DECODED = {"I8", "I16", "I32", "I64", "F64"}  # compared by their bytes


@dataclass(frozen=True)
class KeyDiff:
    """A key whose type or value differs; None where a file does not have it."""

    name: str
    a: str | None
    b: str | None


@dataclass(frozen=True)
class TensorDiff:
    """A tensor that differs; the figures take A for the truth and are None when values cannot be compared."""

    name: str
    a: str | None
    b: str | None
    rmse: float | None = None
    max_error: float | None = None
    snr_db: float | None = None
    cosine: float | None = None


@dataclass(frozen=True)
class DiffResult:
    """Only what differs, and how much was compared."""

    keys: tuple[KeyDiff, ...]
    tensors: tuple[TensorDiff, ...]
    equal_keys: int
    equal_tensors: int
    order: bool

    @property
    def identical(self) -> bool:
        """Same keys, tensors and order (padding and alignment aside)."""
        return not self.keys and not self.tensors and self.order

    def json(self) -> dict[str, Any]:
        return {
            "identical": self.identical,
            "same_order": self.order,
            "equal_keys": self.equal_keys,
            "equal_tensors": self.equal_tensors,
            "keys": [asdict(key) for key in self.keys],
            "tensors": [asdict(tensor) for tensor in self.tensors],
        }


def diff(a: Path, b: Path) -> DiffResult:
    """Compare two GGUFs; ContainerError for a damaged one."""
    first, second = open_gguf(a), open_gguf(b)
    keys = [k for name in dict.fromkeys((*first.keys, *second.keys)) if (k := _key(name, first, second))]
    tensors = _tensors(first, second)
    common = first.keys.keys() & second.keys.keys()
    order = list(first.keys) == list(second.keys) and list(first.tensors) == list(second.tensors)
    return DiffResult(
        keys=tuple(keys),
        tensors=tuple(tensors),
        equal_keys=len(common) - sum(1 for key in keys if key.name in common),
        equal_tensors=len(first.tensors.keys() & second.tensors.keys())
        - sum(1 for t in tensors if t.a is not None and t.b is not None),
        order=order,
    )


def _key(name: str, first: Gguf, second: Gguf) -> KeyDiff | None:
    a, b = first.keys.get(name), second.keys.get(name)
    if a is not None and b is not None:
        if same(a, b):
            return None
        if a.item is not None and a.item == b.item:
            return KeyDiff(name, *_items(a, b))
        if a.type != b.type or a.item != b.item:
            return KeyDiff(name, f"{shown(a)} ({_kind(a)})", f"{shown(b)} ({_kind(b)})")
    return KeyDiff(name, None if a is None else shown(a), None if b is None else shown(b))


def _kind(kv: KV) -> str:
    return kv.type.name if kv.item is None else f"array of {kv.item.name}"


def _items(a: KV, b: KV) -> tuple[str, str]:
    """Short arrays whole, long ones from the first difference."""
    if len(a.value) <= 16 and len(b.value) <= 16:
        return shown(a), shown(b)
    at = next((i for i, (x, y) in enumerate(zip(a.value, b.value, strict=False)) if x != y), None)
    if at is None:
        return f"{len(a.value)} items", f"{len(b.value)} items"
    return f"{len(a.value)} items, {at}: {a.value[at]!r}", f"{len(b.value)} items, {at}: {b.value[at]!r}"


def _tensors(first: Gguf, second: Gguf) -> list[TensorDiff]:
    found = []
    with FileRows(first.path) as rows_a, FileRows(second.path) as rows_b:
        for name in dict.fromkeys((*first.tensors, *second.tensors)):
            a, b = first.tensors.get(name), second.tensors.get(name)
            if a is None or b is None or not same_shape(a.shape, b.shape):
                found.append(TensorDiff(name, _described(a), _described(b)))
            elif (one := _compare(a, b, rows_a, rows_b)) is not None:
                found.append(one)
    return found


def _described(info: TensorInfo | None) -> str | None:
    return None if info is None else f"{info.type.name} {' x '.join(map(str, info.shape))}"


def _compare(a: TensorInfo, b: TensorInfo, rows_a: Any, rows_b: Any) -> TensorDiff | None:
    """None when the bytes are equal."""
    if a.type is b.type and all(
        same_bits(rows_a.rows(a, *span), rows_b.rows(b, *span)) for span in chunks(0, a.rows, a.shape[-1])
    ):
        return None
    if {a.type.name, b.type.name} & NOT_DECODED:
        return TensorDiff(a.name, _described(a), _described(b))
    figures, meter = Figures(), Meter()
    decode_a, decode_b = dequantizer(a.type)[0], dequantizer(b.type)[0]
    for start, stop in chunks(0, a.rows, a.shape[-1]):
        source = decode_a(rows_a.rows(a, start, stop)).reshape(stop - start, -1)
        value = decode_b(rows_b.rows(b, start, stop)).reshape(source.shape)
        meter.add(figures, source, value, min(source.shape[-1], 256))
    if not figures.finite:
        return TensorDiff(a.name, _described(a), _described(b))
    numbers = (figures.rmse, figures.maximum, figures.snr_db, figures.cosine)
    return TensorDiff(a.name, _described(a), _described(b), *numbers)
