"""Keys of a GGUF against what config and tokenizer say."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

from dflash_convert.container.reader import Gguf
from dflash_convert.container.types import KV, ValueType
from dflash_convert.container.writer import packed
from dflash_convert.drafter import Description, Overrides, spelled
from dflash_convert.errors import ContainerError, TokenizerError
from dflash_convert.hashing import sha256_of
from dflash_convert.notes import Note
from dflash_convert.pairing.encoding import fault_of
from dflash_convert.pairing.view import DrafterView
from dflash_convert.plan import shown_value
from dflash_convert.target import Target
from dflash_convert.text import short
from dflash_convert.vocab.copied import vocabulary_of

# keys that are derived from the target; without it they are not judged
FROM_TARGET = ("embedding_scale", "rope.dimension_sections", "context_length")
OURS = "dflash_convert."  # keys that this tool writes unless it was asked for --plain
OVERRULED = f"{OURS}overruled"
MASK = "tokenizer.ggml.mask_token_id"
WITHOUT_TARGET = "the vocabulary and keys derived from the target were not checked: give --target-model-dir"


@dataclass
class Compared:
    """``vocabulary``: the target's keys as the file should hold them; where it does, they are the file's own."""

    checked: int = 0
    differences: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    vocabulary: dict[str, KV] = field(default_factory=dict, repr=False)


def compare_keys(
    gguf: Gguf,
    description: Description,
    target: Target,
    tokenizer_model: Path | None = None,
    pre: str | None = None,
) -> Compared:
    """Architecture keys and tokenizer keys: type and value; ``general.*`` is the maker's own affair."""
    compared = Compared()
    arch = description.architecture
    if gguf.architecture != arch:
        compared.differences.append(f"general.architecture is {gguf.architecture!r}, expected {arch!r}")
    compared.checked += 1
    expected = {kv.name: kv for kv in _described(description)}
    skip = set() if target.known else {f"{arch}.{name}" for name in FROM_TARGET}
    for name, kv in expected.items():
        if name not in skip:
            _check(gguf, kv, compared)
    for name in gguf.keys:
        if name.startswith(f"{arch}.") and name not in expected and name not in skip:
            text = f"key {name} is {shown(gguf.keys[name])}, the checkpoint does not mention it"
            compared.differences.append(text)
    if not target.known:
        compared.notes.append(Note("warning", WITHOUT_TARGET))
        if description.mask_token_id is not None:
            _check(gguf, KV(MASK, ValueType.UINT32, description.mask_token_id), compared)
    else:
        _compare_vocabulary(gguf, description, target, tokenizer_model, pre, compared)
    return compared


def _described(description: Description) -> list[KV]:
    return [*description.first_keys, *description.keys, *description.late_keys]


def _check(gguf: Gguf, expected: KV, compared: Compared) -> None:
    compared.checked += 1
    found = gguf.keys.get(expected.name)
    if found is None:
        compared.differences.append(f"key {expected.name} is missing, expected {shown(expected)}")
    elif not same(found, expected):
        compared.differences.append(f"key {expected.name} is {shown(found)}, expected {shown(expected)}")


def _compare_vocabulary(
    gguf: Gguf,
    description: Description,
    target: Target,
    tokenizer_model: Path | None,
    pre: str | None,
    compared: Compared,
) -> None:
    """Against the vocabulary as we write it; where that differs, as the reference converter does."""

    def keys(plain: bool, pre: str | None) -> dict[str, KV]:
        vocabulary = vocabulary_of(
            target,
            vocab_size=description.vocab_size,
            pre=pre,
            tokenizer_model=tokenizer_model,
            plain=plain,
            eagle3=description.eagle3_vocab,
            fresh=True,  # what the conversion may have used proves nothing
        )
        return {kv.name: kv for kv in vocabulary.keys(description.mask_token_id)}

    try:
        full = keys(plain=False, pre=pre)
    except TokenizerError:
        # a pre-tokenizer that cannot be recognised was given by hand: the file's is believed, and that is said
        found_pre = gguf.get("tokenizer.ggml.pre")
        if not isinstance(found_pre, str):
            raise
        full, pre = keys(plain=False, pre=found_pre), found_pre
        compared.notes.append(Note("warning", f"tokenizer.ggml.pre {short(pre)} was not checked: it is not recognised"))
    names = dict.fromkeys((*full, *(name for name in gguf.keys if name.startswith("tokenizer."))))
    wrong = [name for name in names if not _agrees(gguf.keys.get(name), full.get(name))]
    compared.vocabulary = {name: kv if name in wrong else gguf.keys[name] for name, kv in full.items()}
    compared.checked += len(names)
    if not wrong:
        return
    plain = keys(plain=True, pre=pre)
    for name in wrong:
        found, expected = gguf.keys.get(name), full.get(name)
        if _agrees(found, plain.get(name)):
            compared.notes.append(Note("info", f"{name} is as the reference converter writes it"))
        elif expected is None:
            compared.notes.append(Note("info", f"{name} is not in the target's files: {shown(found)}"))
        else:
            compared.differences.append(f"key {name} {_difference(found, expected)}")


def _agrees(a: KV | None, b: KV | None) -> bool:
    return a is b if a is None or b is None else same(a, b)


def _difference(found: KV | None, expected: KV) -> str:
    if found is None:
        return f"is missing, expected {shown(expected)}"
    if found.item is not None and expected.item is not None:
        a, b = list(found.value), list(expected.value)
        if len(a) != len(b):
            return f"has {len(a)} items, expected {len(b)}"
        at = next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), None)
        if at is not None:
            return f"differs at {at}: {short(a[at])}, expected {short(b[at])}"
    return f"is {shown(found)}, expected {shown(expected)}"


def same(a: KV, b: KV) -> bool:
    """Type and value, as they are stored."""
    if a.type != b.type or a.item != b.item:
        return False
    if a.item is not None:
        return len(a.value) == len(b.value) and _same_items(a, b, a.item)
    if a.type is ValueType.FLOAT32:
        return _stored(a.value) == _stored(b.value)
    return bool(a.value == b.value)


def _same_items(a: KV, b: KV, item: ValueType) -> bool:
    """By the arrays' bytes: nothing of a file is decoded."""
    try:
        return packed(a.name, item, a.value) == packed(b.name, item, b.value)
    except ContainerError:  # what no file can hold
        return list(a.value) == list(b.value)


def _stored(value: float) -> bytes:
    return struct.pack("<f", value)


def shown(kv: KV | None) -> str:
    """A value fit for a message."""
    if kv is None:
        return "absent"
    return str(shown_value(kv)) if kv.item is not None else short(kv.value)


def compare_encoding(view: DrafterView, notes: list[Note]) -> list[str]:
    """general.file_type against the tensors' types; a mixture that somebody chose is only noted."""
    fault = fault_of(view)
    if fault is None:
        return []
    text = f"general.file_type says {fault.stated}, the tensors are {fault.found}"
    if fault.certain:
        return [text]
    notes.append(Note("warning", f"{text}: right only if the types were chosen one by one"))
    return []


def overruled(gguf: Gguf, overrides: Overrides) -> list[Note]:
    """What the caller of the conversion said instead of the checkpoint, where this caller does not say the same."""
    made, now = gguf.get(OVERRULED) or (), [f"{name}={value}" for name, value in overrides.stated().items()]
    missing = [
        spelled(*text.split("=", 1)) for text in made if isinstance(text, str) and "=" in text and text not in now
    ]
    if not missing:
        return []
    return [Note("warning", f"the file was made with {', '.join(missing)}: give verify the same")]


def lost(plain: Description, full: Description) -> list[Note]:
    """What llama.cpp's converter does not write for this drafter, though llama.cpp reads it."""
    have = {kv.name for kv in plain.all_keys} | {plan.name for plan in plain.tensors}
    names = [kv.name for kv in full.all_keys if kv.name not in have]
    names += [tensor.name for tensor in full.tensors if tensor.name not in have]
    if not names:
        return []
    text = f"llama.cpp's converter loses {', '.join(names)}, which llama.cpp reads: convert without --plain"
    return [Note("warning", text)]


def compare_provenance(gguf: Gguf, drafter: Path, target: Path | None) -> list[str]:
    """Hashes and taps that this tool wrote into the file, against the inputs at hand."""
    differences = []
    digest = gguf.get("dflash_convert.drafter.config_sha256")
    if isinstance(digest, str) and digest != sha256_of(drafter / "config.json"):
        differences.append("the file was made from another config.json (dflash_convert.drafter.config_sha256)")
    prefix = "dflash_convert.target.files."
    for name, kv in gguf.keys.items():
        file = name.removeprefix(prefix)
        if target is None or file == name or Path(file).name != file or not (target / file).is_file():
            continue
        if kv.value != sha256_of(target / file):
            differences.append(f"the file was made with another {file} of the target ({name})")
    return differences
