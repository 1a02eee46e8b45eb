"""The chat template: found in up to three files, copied verbatim, never rendered."""

from __future__ import annotations

from typing import Any

from dflash_convert.container.types import KV, ValueType, array, string
from dflash_convert.errors import TokenizerError
from dflash_convert.notes import Note
from dflash_convert.vocab.files import TokenizerFiles, left_out

KEY = "tokenizer.chat_template"
BOM = "\ufeff"
Template = str | list[dict[str, Any]]


def find_template(files: TokenizerFiles, config: dict[str, Any], *, plain: bool) -> tuple[Template | None, list[Note]]:
    """The template and where it came from.

    Files of their own win over tokenizer_config.json, as in transformers; the reference prefers the latter,
    and so does ``plain``.
    """
    notes: list[Note] = []
    found = [(source, template) for source, template in _sources(files, plain, notes) if template is not None]
    inline = _template(config, "tokenizer_config.json", plain)
    if inline is not None:
        found.insert(0 if plain else len(found), ("tokenizer_config.json", inline))
    if not plain:
        found = [(source, template) for source, template in found if template]
    hidden = plain and inline is None and "chat_template" in config  # a null hides the files from the reference
    if not found or hidden or (plain and not config):
        return None, notes
    source, template = found[0]
    if not template:
        return None, notes  # an empty one is no template, and the reference looks no further
    notes.append(Note("info", f"chat template from {source}"))
    for other, text in found[1:]:
        if text != template:
            notes.append(
                Note("warning", f"the chat template in {other} differs from the one in {source}, which is used")
            )
    if isinstance(template, str) and "{% generation %}" in template:
        notes.append(Note("warning", "the chat template has a training-only generation tag; copied as it is"))
    return template, notes


def _sources(files: TokenizerFiles, plain: bool, notes: list[Note]) -> list[tuple[str, Template | None]]:
    found: list[tuple[str, Template | None]] = []
    text = _text(files, "chat_template.jinja", plain, notes) if files.has("chat_template.jinja") else None
    if text is not None:
        named = []
        for path in files.glob("additional_chat_templates/*.jinja"):
            more = _text(files, f"additional_chat_templates/{path.name}", plain, notes)
            named += [] if more is None else [{"name": path.stem, "template": more}]
        found.append(("chat_template.jinja", [{"name": "default", "template": text}, *named] if named else text))
    if files.has("chat_template.json"):
        document = files.side_json("chat_template.json", notes)
        found.append(("chat_template.json", _template(document, "chat_template.json", plain)))
    return found


def _text(files: TokenizerFiles, name: str, plain: bool, notes: list[Note]) -> str | None:
    """None, with a warning, for a file of another encoding; the reference keeps a byte order mark."""
    with left_out(notes):
        text = files.text(name)
        return BOM + text if plain and files.read(name).startswith(BOM.encode()) else text
    return None


def _template(config: dict[str, Any], source: str, plain: bool) -> Template | None:
    """The field of ``source``; what is no template is an error, or passed over as the reference does if ``plain``."""
    value = config.get("chat_template")
    if isinstance(value, (str, list)):
        return value
    if value is None or value is False or plain:
        return None
    raise TokenizerError(
        f"{source}: chat_template is {value!r:.60}, expected text or a list of named templates",
        tip="Write the template's text, or leave the field out.",
    )


def default_template(template: Template | None) -> str | None:
    """The text that goes under the plain key: the template itself, or the one named ``default``."""
    if template is None or isinstance(template, str):
        return template
    return dict(_named(template)).get("default")


def template_entries(template: Template | None) -> list[KV]:
    """``tokenizer.chat_template.NAME`` for the named ones, their list, and the default last."""
    if template is None:
        return []
    entries: list[KV] = []
    if not isinstance(template, str):
        named = {name: text for name, text in _named(template) if name != "default"}
        entries = [string(f"{KEY}.{name}", text) for name, text in named.items()]
        if named:
            entries.append(array("tokenizer.chat_templates", ValueType.STRING, sorted(named)))
    text = default_template(template)
    return entries if text is None else [*entries, string(KEY, text)]


def _named(template: list[dict[str, Any]]) -> list[tuple[str, str]]:
    pairs = []
    for item in template:
        if not isinstance(item, dict):
            continue
        name, text = item.get("name"), item.get("template")
        if isinstance(name, str) and name and isinstance(text, str):
            # llama.cpp's converter keeps ASCII letters and digits only
            pairs.append(("".join(c if c.isascii() and c.isalnum() else "_" for c in name), text))
    return pairs
