"""Prompts with images: does drafting survive one, and what follows it?

Every such prompt is asked without its images first, then with them, and without them once more in the same engine.
The engine reads the images itself (``-- --mmproj FILE``); a chat with images is sent as messages, as it was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dflash_convert.contest.candidates import Candidate
from dflash_convert.contest.trial import Book, Work
from dflash_convert.engine.trace import Request
from dflash_convert.errors import UsageError
from dflash_convert.validation.prompts import Item
from dflash_convert.validation.requests import Query

BEFORE, IMAGE, AFTER = "before an image", "with an image", "after an image"
LABEL = "images"
PROJECTORS = frozenset(("--mmproj", "-mm", "--mmproj-url", "-mmu"))
SURVIVES = 0.5  # of the acceptance without an image


def pictured(item: Item) -> bool:
    """Whether a message holds a part that is no text."""
    return any(part.get("type") != "text" for message in item.messages for part in _parts(message))


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def require_projector(items: Sequence[Item], arguments: Sequence[str]) -> None:
    """UsageError for images that nothing can read."""
    first = next((item for item in items if pictured(item)), None)
    if first is not None and not any(word.split("=")[0] in PROJECTORS for word in arguments):
        raise UsageError(f"the prompt {first.name} holds an image, which needs a projector", tip="add -- --mmproj FILE")


def without_images(items: Sequence[Item]) -> list[Query]:
    """The chats with their text alone."""
    return [_query(item, item.set, _text_alone(item.messages)) for item in items]


def work(items: Sequence[Item]) -> Work:
    """Text first, all of it before any image; then every image, followed by text again."""
    texts = without_images(items)
    made = [(BEFORE, query) for query in texts]
    for item, text in zip(items, texts, strict=True):
        made += [(IMAGE, _query(item, item.set, item.messages)), (AFTER, text)]
    kinds, queries = zip(*made, strict=True)
    return Work(LABEL, tuple(q.name for q in queries), tuple(kinds), tuple(q.request for q in queries), apart=True)


def _query(item: Item, kind: str, messages: Sequence[dict[str, Any]]) -> Query:
    return Query(item.name, kind, item.name, Request("", item.n_predict, messages=tuple(messages)), tuple(messages))


def _text_alone(messages: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Every message with its text parts; a message of images alone says so, for no template takes an empty one."""
    found = []
    for message in messages:
        texts = [str(part.get("text", "")) for part in _parts(message) if part.get("type") == "text"]
        content = "\n".join(texts) or "(an image)"
        found.append({**message, "content": content if _parts(message) else message.get("content", "")})
    return tuple(found)


@dataclass(frozen=True)
class Survival:
    """One candidate's share of accepted drafts before, with and after images; None where it drafted nothing."""

    candidate: Candidate
    before: float | None
    image: float | None
    after: float | None

    @property
    def survives(self) -> bool:
        return _holds(self.before, self.image)

    @property
    def follows(self) -> bool:
        """Whether text behind an image is drafted as text before it was."""
        return _holds(self.before, self.after)


def _holds(before: float | None, now: float | None) -> bool:
    return before is not None and now is not None and now >= SURVIVES * before


def survivals(candidates: Sequence[Candidate], book: Book, work: Work) -> tuple[Survival, ...]:
    """Of every candidate that drafts; in the first round, which begins in a fresh engine."""
    return tuple(
        Survival(each, *(_share(book, side, work, kind) for kind in (BEFORE, IMAGE, AFTER)))
        for side, each in enumerate(candidates)
        if each.methods
    )


def _share(book: Book, side: int, work: Work, kind: str) -> float | None:
    traces = [trace for trace, own in zip(book.traces(side), work.kinds, strict=True) if own == kind]
    drafted = sum(trace.drafted for trace in traces)
    return sum(trace.accepted for trace in traces) / drafted if drafted else None
