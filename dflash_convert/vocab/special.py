"""Special token ids and the add_bos/add_eos flags, by the reference's rules.

Names in tokenizer_config.json are resolved through tokenizer.json's added tokens; ids in config.json fill the
gaps; generation_config.json is never read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dflash_convert.container.types import KV, boolean, u32
from dflash_convert.errors import TokenizerError
from dflash_convert.hparams import text_config
from dflash_convert.notes import Note
from dflash_convert.vocab.files import content, is_int
from dflash_convert.vocab.types import SPECIAL_KEY

KINDS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
ADD_KEY = {kind: f"tokenizer.ggml.add_{kind}_token" for kind in ("bos", "eos", "sep")}


@dataclass
class Specials:
    """``ids`` and ``add`` keep the order in which the reference writes them."""

    ids: dict[str, int] = field(default_factory=dict)
    add: dict[str, bool] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def entries(self) -> list[KV]:
        keys = [u32(SPECIAL_KEY[kind], tid) for kind, tid in self.ids.items() if kind in SPECIAL_KEY]
        return keys + [boolean(ADD_KEY[kind], value) for kind, value in self.add.items() if kind in ADD_KEY]

    def fill(self, ids: Mapping[str, int], size: int, source: str) -> None:
        """Takes kinds that are still missing from ``ids``, each with a note."""
        for kind, tid in ids.items():
            if kind not in self.ids and 0 <= tid < size:
                self.ids[kind] = tid
                self.notes.append(Note("derived", f"{kind} {tid}: from {source}"))


@dataclass(frozen=True)
class SpecialSources:
    """What the ids are read from; ``added`` maps the text of an added token to its id.

    ``post_processor`` is None and ``from_json`` False for a target without tokenizer.json.
    """

    config: Mapping[str, Any]
    model_config: Mapping[str, Any]
    added: Mapping[str, int]
    post_processor: Mapping[str, Any] | None
    from_json: bool


def read_specials(sources: SpecialSources, size: int, *, strict: bool = True, plain: bool = False) -> Specials:
    """Ids below ``size``; an out-of-range bos, eos or mask is an error when ``strict``, else left out with a note,
    and so is a bos or eos that is no text unless ``plain``: the reference passes over it."""
    found = Specials()
    config = dict(sources.config)
    kinds = list(KINDS)
    if sources.from_json:
        _apply_post_processor(sources.post_processor or {}, config, kinds, found)
    if sources.config:
        for kind in kinds:
            _add_flag(found, kind, config.get(f"add_{kind}_token"))
            name = _text(config, kind, plain, found)
            _put(
                found,
                kind,
                sources.added.get(name) if name is not None else None,
                size,
                strict,
                "tokenizer_config.json",
            )
    inside = {"text_config": sources.model_config.get("text_config")} if plain else sources.model_config
    nested = text_config(inside)  # the reference knows one name only
    for kind in kinds:
        value = sources.model_config.get(f"{kind}_token_id")
        if value is None:
            value = nested.get(f"{kind}_token_id")
        if isinstance(value, list) and kind not in found.ids:
            found.notes.append(
                Note("info", f"config.json: {kind}_token_id is a list {value}; the tokenizer names no {kind}")
            )
        _put(found, kind, value, size, strict, "config.json")
    return found


def _text(config: Mapping[str, Any], kind: str, plain: bool, found: Specials) -> str | None:
    value = config.get(f"{kind}_token")
    text = content(value)
    if text is None and value is not None and value is not False:
        problem = f"tokenizer_config.json: {kind}_token is {value!r:.60}, expected a token's text"
        if kind in ("bos", "eos") and not plain:
            raise TokenizerError(problem, tip="Write the token's text, or null if there is none.")
        found.notes.append(Note("warning", f"{problem}; left out"))
    return text


def _put(found: Specials, kind: str, value: object, size: int, strict: bool, source: str) -> None:
    if not is_int(value) or kind in found.ids:
        return
    tid = int(value)  # type: ignore[call-overload]
    if 0 <= tid < size:
        found.ids[kind] = tid
    elif tid < 0:
        found.notes.append(Note("info", f"{source}: {kind}_token_id {tid} means unset"))
    elif strict and kind in ("bos", "eos", "mask"):
        raise TokenizerError(
            f"{source}: {kind}_token_id {tid} lies outside the vocabulary of {size} tokens",
            tip=f"Correct {kind}_token_id in the target's {source}, or set it to null.",
        )
    else:
        found.notes.append(Note("warning", f"{source}: {kind}_token_id {tid} lies outside the vocabulary; left out"))


def _add_flag(found: Specials, kind: str, value: object) -> None:
    if not isinstance(value, bool):
        return
    if kind not in found.add:
        found.add[kind] = value
    elif found.add[kind] != value:
        text = (
            f"tokenizer_config.json says add_{kind}_token {value}, the post-processor {found.add[kind]}, which is used"
        )
        found.notes.append(Note("info", text))


def _apply_post_processor(post: Mapping[str, Any], config: dict[str, Any], kinds: list[str], found: Specials) -> None:
    """What tokenizer.json's post-processor says about bos, eos and sep; may fill gaps in ``config``."""
    for kind, fallback in (("bos", "cls"), ("eos", "sep")):
        if not config.get(f"{kind}_token") and config.get(f"{fallback}_token"):
            config[f"{kind}_token"] = config[f"{fallback}_token"]
    steps = post.get("processors", [post]) if post else []
    for step in steps if isinstance(steps, list) else []:
        if not isinstance(step, Mapping):
            continue
        if step.get("type") == "ByteLevel":
            found.add.setdefault("bos", False)
            found.add.setdefault("eos", False)
        elif step.get("type") == "RobertaProcessing":
            found.add.update(bos=True, eos=True, sep=True)
            for kind, fallback in (("cls", "bos"), ("sep", "eos")):
                if not config.get(f"{kind}_token"):
                    config[f"{kind}_token"] = _first(step.get(kind)) or config.get(f"{fallback}_token")
        elif step.get("type") == "TemplateProcessing":
            _apply_template(step, config, kinds, found)


def _first(value: object) -> object:
    return value[0] if isinstance(value, list) and value else None


def _special_id(piece: object) -> str | None:
    inner = piece.get("SpecialToken") if isinstance(piece, Mapping) else None
    name = inner.get("id") if isinstance(inner, Mapping) else None
    return name if isinstance(name, str) else None


def _sequence(piece: object) -> object:
    inner = piece.get("Sequence") if isinstance(piece, Mapping) else None
    return inner.get("id") if isinstance(inner, Mapping) else None


def _pieces(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _apply_template(step: Mapping[str, Any], config: dict[str, Any], kinds: list[str], found: Specials) -> None:
    single = _pieces(step.get("single"))
    first = _special_id(single[0]) if len(single) > 1 else None
    last = _special_id(single[-1]) if len(single) > 1 else None
    if first:
        for kind in ("bos", "cls"):
            known = (config.get("bos_token"), config.get("cls_token"))
            if first not in known and not config.get(f"{kind}_token"):
                config[f"{kind}_token"] = first
        found.add["bos"] = first in (config.get("bos_token"), config.get("cls_token"))
    if last:
        _template_end(last, config, kinds, found)
    _template_pair(_pieces(step.get("pair")), first, last, config, found)


def _template_end(last: str, config: dict[str, Any], kinds: list[str], found: Specials) -> None:
    """A template that ends in another token than eos: that one becomes eos, the former eos becomes eot."""
    if last != config.get("eos_token"):
        for kind in ("eot", "eom"):
            if kind not in kinds:
                kinds.append(kind)
                config[f"{kind}_token"] = config.get("eos_token")
                break
        config["eos_token"] = last
    found.add["eos"] = True


def _template_pair(
    pair: list[Any], first: str | None, last: str | None, config: dict[str, Any], found: Specials
) -> None:
    """add_sep: does the template put a separator between two texts (A sep B)?"""
    if not pair:
        return
    start = 1 if first and _special_id(pair[0]) == first else 0
    stop = len(pair) - 1 if last and _special_id(pair[-1]) == last else len(pair)
    inner = pair[start:stop]
    if not inner or _sequence(inner[0]) != "A" or _sequence(inner[-1]) != "B" or not inner[1:-1]:
        return
    middle = [_special_id(piece) for piece in inner[1:-1]]
    ends = (config.get("sep_token"), config.get("eos_token"))
    add = middle[0] is not None and middle[0] in ends and not last
    if len(middle) == 2 and middle[1] is not None and middle[1] in ends:
        add = True
    found.add["sep"] = add
    if add and not config.get("sep_token"):
        config["sep_token"] = config.get("eos_token")
