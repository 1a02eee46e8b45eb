"""general.* keys: the drafter's name, size, licence and lineage, by the gguf library's own heuristics."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from types import NoneType
from typing import Any

from dflash_convert.container.types import KV, ValueType
from dflash_convert.errors import ConfigError

LISTS = ("tags", "pipeline_tag", "language", "languages", "license", "base_model", "base_models", "datasets", "dataset")
TEXTS = ("name", "author", "version", "organization", "description", "finetune", "basename", "size_label")
MORE_TEXTS = ("url", "doi", "uuid", "repo_url", "license_name", "license_link", "model_creator", "model_type")
CARD_TIP = "correct README.md, or convert a copy of the drafter without it"


def general_keys(
    architecture: str,
    directory: Path,
    shapes: Iterable[tuple[str, tuple[int, ...]]],
    name: str | None,
    repository: str | None = None,
) -> list[KV]:
    """Keys in the reference converter's order; ``name`` overrules what the model card or directory says.

    Facts come from the drafter's README.md and config.json, the size label from the element counts of the
    tensors, (name, shape) each: stacked experts count as one beside their number ("4x456K").
    ``repository`` (owner/name) stands in for the directory's name, which in the Hub's cache is only a hash.
    """
    import gguf

    total = one = experts = 0
    for tensor, shape in shapes:
        count = math.prod(shape)
        total += count
        if "_exps." in tensor and len(shape) == 3:
            experts, count = shape[0], count // shape[0]
        one += count
    card, config = read_card(directory), gguf.Metadata.load_hf_parameters(directory)
    if not isinstance(config.get("_name_or_path", ""), (str, NoneType)):
        raise ConfigError(f"config.json: _name_or_path is {config['_name_or_path']!r}, expected a string")
    if repository is None:
        metadata = gguf.Metadata.load(None, directory, name, total)
    else:
        metadata = gguf.Metadata.apply_metadata_heuristic(gguf.Metadata(), card, config, Path(repository), total)
        metadata.name = name or metadata.name
    if metadata.name is None:
        metadata.name = Path(repository or directory).name
    if metadata.size_label is None and total > 0:
        metadata.size_label = gguf.size_label(total, one, 0, experts)
    writer = gguf.GGUFWriter(path=None, arch=architecture)
    writer.add_type(gguf.GGUFType.MODEL)
    metadata.set_gguf_meta_model(writer)
    return [_convert(key, value) for key, value in writer.kv_data[0].items()]


def read_card(directory: Path) -> dict[str, Any]:
    """The front matter of README.md; ConfigError when it is no YAML or a field is not text where text belongs."""
    import gguf
    import gguf.metadata

    unreadable = gguf.metadata.yaml.YAMLError  # type: ignore[attr-defined]  # what its safe loader raises
    try:
        card: dict[str, Any] = gguf.Metadata.load_model_card(directory)
    except (unreadable, UnicodeDecodeError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"README.md: the front matter cannot be read ({reason[:120]})", tip=CARD_TIP) from None
    for field in (*TEXTS, *(f"model_{text}" for text in TEXTS), *MORE_TEXTS):
        if not isinstance(card.get(field), (str, NoneType)):
            raise ConfigError(f"README.md: {field} is {card[field]!r:.60}, expected text (in quotes)", tip=CARD_TIP)
    for field in LISTS:
        value = card.get(field)
        kinds = (str, dict) if field.startswith(("base_model", "dataset")) else str
        if value is not None and not all(isinstance(v, kinds) for v in (value if isinstance(value, list) else [value])):
            raise ConfigError(f"README.md: {field} is {value!r:.60}, expected texts (in quotes)", tip=CARD_TIP)
    return card


def _convert(name: str, value: object) -> KV:
    kind = ValueType(int(value.type))  # type: ignore[attr-defined]
    content = value.value  # type: ignore[attr-defined]
    if kind is not ValueType.ARRAY:
        return KV(name, kind, content)
    item = value.sub_type  # type: ignore[attr-defined]
    if item is None:
        item = ValueType.STRING if content and isinstance(content[0], str) else ValueType.INT32
    return KV(name, kind, list(content), ValueType(int(item)))
