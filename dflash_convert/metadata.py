"""general.* keys: the drafter's name, size, licence and lineage, by the gguf library's own heuristics."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dflash_convert.container.types import KV, ValueType


def general_keys(
    architecture: str,
    directory: Path,
    shapes: Iterable[tuple[int, ...]],
    name: str | None,
    repository: str | None = None,
) -> list[KV]:
    """Keys in the reference converter's order; ``name`` overrules what the model card or directory says.

    Facts come from the drafter's README.md and config.json, the size label from the tensors' element count.
    ``repository`` (owner/name) stands in for the directory's name, which in the Hub's cache is only a hash.
    """
    import gguf

    total = 0
    for shape in shapes:
        count = 1
        for n in shape:
            count *= n
        total += count
    if repository is None:
        metadata = gguf.Metadata.load(None, directory, name, total)
    else:
        card, config = gguf.Metadata.load_model_card(directory), gguf.Metadata.load_hf_parameters(directory)
        metadata = gguf.Metadata.apply_metadata_heuristic(gguf.Metadata(), card, config, Path(repository), total)
        metadata.name = name or metadata.name
    if metadata.name is None:
        metadata.name = Path(repository or directory).name
    if metadata.size_label is None and total > 0:
        metadata.size_label = gguf.size_label(total, total, 0, 0)
    writer = gguf.GGUFWriter(path=None, arch=architecture)
    writer.add_type(gguf.GGUFType.MODEL)
    metadata.set_gguf_meta_model(writer)
    return [_convert(key, value) for key, value in writer.kv_data[0].items()]


def _convert(name: str, value: object) -> KV:
    kind = ValueType(int(value.type))  # type: ignore[attr-defined]
    content = value.value  # type: ignore[attr-defined]
    if kind is not ValueType.ARRAY:
        return KV(name, kind, content)
    item = value.sub_type  # type: ignore[attr-defined]
    if item is None:
        item = ValueType.STRING if content and isinstance(content[0], str) else ValueType.INT32
    return KV(name, kind, list(content), ValueType(int(item)))
