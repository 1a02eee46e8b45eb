"""general.* keys: the drafter's name, size, licence and lineage, by the gguf library's own heuristics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import NoneType
from typing import Any

from dflash_convert.container.types import KV, ValueType
from dflash_convert.errors import ConfigError
from dflash_convert.gguf_library import gguf_library
from dflash_convert.hparams import F32_MAX
from dflash_convert.jsonfile import read_bounded, read_json
from dflash_convert.notes import Note

MAX_CARD = 4_000_000  # bytes; the library reads the whole file, and its YAML takes its time
LISTS = ("tags", "pipeline_tag", "language", "languages", "license", "base_model", "base_models", "datasets", "dataset")
TEXTS = ("name", "author", "version", "organization", "description", "finetune", "basename", "size_label")
MORE_TEXTS = ("url", "doi", "uuid", "repo_url", "license_name", "license_link", "model_creator", "model_type")
INT32 = ("top_k", "penalty_last_n", "mirostat")  # fields of generation_config.json that are not any number
BOM = b"\xef\xbb\xbf"


def general_keys(
    architecture: str,
    directory: Path,
    config: Mapping[str, Any],
    shapes: Iterable[tuple[str, tuple[int, ...]]],
    name: str | None,
    repository: str | None = None,
    *,
    plain: bool = False,
) -> tuple[list[KV], list[Note]]:
    """Keys in the reference converter's order; ``name`` overrules what the model card or directory says.

    Facts come from the drafter's README.md and ``config``, its config.json, the size label from the element counts of
    the tensors, (name, shape) each: stacked experts count as one beside their number ("4x456K").
    ``repository`` (owner/name) stands in for the directory's name, which in the Hub's cache is only a hash.
    """
    gguf = gguf_library()
    total = one = experts = 0
    for tensor, shape in shapes:
        count = math.prod(shape)
        total += count
        if "_exps." in tensor and len(shape) == 3:
            experts, count = shape[0], count // shape[0]
        one += count
    card, notes = read_card(directory, plain=plain)
    config = dict(config)
    if not isinstance(config.get("_name_or_path", ""), (str, NoneType)):
        found = config.pop("_name_or_path")
        notes.append(Note("warning", f"config.json: _name_or_path is {found!r:.60}, expected a string; left out"))
    origin = Path(repository or directory.resolve())
    metadata = gguf.Metadata.apply_metadata_heuristic(gguf.Metadata(), card, config, origin, total)
    if repository is None:
        _add_sampling(metadata, directory, notes)
    metadata.name = name or metadata.name or origin.name
    if metadata.size_label is None and total > 0:
        metadata.size_label = gguf.size_label(total, one, 0, experts)
    writer = gguf.GGUFWriter(path=None, arch=architecture)
    writer.add_type(gguf.GGUFType.MODEL)
    metadata.set_gguf_meta_model(writer)
    return [_convert(key, value) for key, value in writer.kv_data[0].items()], notes


def _add_sampling(metadata: Any, directory: Path, notes: list[Note]) -> None:
    """Sampling defaults of the drafter's generation_config.json, where it has one, as the gguf library reads them."""
    path = directory / "generation_config.json"
    if not path.is_file():
        return
    try:
        stated = read_json(path)
    except ConfigError as error:
        notes.append(Note("warning", f"{error}; left out"))
        return
    for field in (name for name in vars(metadata) if name.startswith("sampling_")):
        stem = field.removeprefix("sampling_")
        key = "temperature" if stem == "temp" else stem
        value = stated.get(key)
        if value is None:
            continue
        if _fits(stem, value):
            setattr(metadata, field, value)
        else:
            notes.append(Note("warning", f"generation_config.json: {key} is {value!r:.60}; left out"))


def _fits(stem: str, value: object) -> bool:
    if stem == "sequence":
        return isinstance(value, str)
    if isinstance(value, bool) or not isinstance(value, int if stem in INT32 else (int, float)):
        return False
    high = (1 << 31) - 1 if stem in INT32 else F32_MAX
    return -high <= value <= high


def read_card(directory: Path, *, plain: bool = False) -> tuple[dict[str, Any], list[Note]]:
    """The front matter of README.md, without what is no YAML or no text where text belongs: a warning for each.

    ``plain`` keeps a byte order mark, behind which the reference converter finds no front matter.
    """
    gguf = gguf_library()
    unreadable = gguf.metadata.yaml.YAMLError  # what its safe loader raises
    try:
        card = _load_card(directory, plain)
    except (unreadable, UnicodeDecodeError, RecursionError, ValueError, ConfigError) as error:
        reason = " ".join(str(error).split())
        return {}, [Note("warning", f"README.md: the front matter cannot be read ({reason[:120]}); left out")]
    wrong = {}
    for field in (*TEXTS, *(f"model_{text}" for text in TEXTS), *MORE_TEXTS):
        if not isinstance(card.get(field), (str, NoneType)):
            wrong[field] = "text (in quotes)"
    for field in LISTS:
        value = card.get(field)
        kinds = (str, dict) if field.startswith(("base_model", "dataset")) else str
        if value is not None and not all(isinstance(v, kinds) for v in (value if isinstance(value, list) else [value])):
            wrong[field] = "texts (in quotes)"
    told = [
        f"README.md: {field} is {card.pop(field)!r:.60}, expected {kind}; left out" for field, kind in wrong.items()
    ]
    return card, [Note("warning", text) for text in told]


def _load_card(directory: Path, plain: bool) -> dict[str, Any]:
    path = directory / "README.md"
    data = read_bounded(path, MAX_CARD) if path.is_file() else b""
    with ExitStack() as stack:
        if data.startswith(BOM) and not plain:
            directory = Path(stack.enter_context(TemporaryDirectory()))  # the library reads a directory
            (directory / path.name).write_bytes(data.removeprefix(BOM))
        card: dict[str, Any] = gguf_library().Metadata.load_model_card(directory)
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
