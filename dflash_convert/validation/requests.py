"""Prompts become requests: rendered by the engine, replayed word for word in every run.

The run without the drafter comes first: its answers are the earlier turns of a conversation and the text that
fills the long context. So all runs send exactly the same prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dflash_convert.engine.session import Session
from dflash_convert.engine.trace import Request, Sampling, Trace
from dflash_convert.validation.prompts import Item

WARM_UP = Request("The first ten prime numbers are", 16)
MARGIN = 16  # cells llama.cpp keeps free at the end of a context, rounded up
SOME = 4  # requests of a run that only complements the main one
LONG_REQUESTS = 2
LONG_PREDICT = 128

Progress = Callable[[str, bool], None]  # what begins now, and whether it is a detail


@dataclass(frozen=True)
class Query:
    """A request with its origin; ``chat`` are the messages it was rendered from (empty for a plain prompt)."""

    name: str
    set: str
    text: str
    request: Request
    chat: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Answered:
    query: Query
    trace: Trace


@dataclass(frozen=True)
class Case:
    """Requests that belong together: ``label`` is main, sampled, thinking or long-context."""

    label: str
    thinking: bool | None
    context: int
    answered: tuple[Answered, ...]

    @property
    def queries(self) -> tuple[Query, ...]:
        return tuple(a.query for a in self.answered)

    @property
    def traces(self) -> tuple[Trace, ...]:
        return tuple(a.trace for a in self.answered)

    @property
    def temperature(self) -> float:
        return self.queries[0].request.sampling.temperature


def warm_up(session: Session) -> None:
    """A request whose figures nobody sees: the first one pays for allocations, and a second must work too."""
    session.complete(WARM_UP)


def plain(item: Item) -> Request:
    """A prompt that is sent as it is."""
    return Request(str(item.prompt), item.n_predict)


def answer_items(
    session: Session, items: Sequence[Item], use_chat: bool, thinking: bool | None, progress: Progress
) -> tuple[Answered, ...]:
    """Run prompts one after the other, conversations turn by turn with the engine's own answers."""
    answered: list[Answered] = []
    for item in items:
        for query in _queries(session, item, use_chat, thinking, answered):
            progress(query.name, True)
            answered.append(Answered(query, session.complete(query.request)))
    return tuple(answered)


def _queries(
    session: Session, item: Item, use_chat: bool, thinking: bool | None, answered: list[Answered]
) -> Iterator[Query]:
    """The requests of one item; a conversation reads the last answer before it makes its next turn."""
    if item.prompt is not None:
        yield Query(item.name, item.set, item.prompt, plain(item))
        return
    if item.messages:
        yield _chat(session, item, item.name, list(item.messages), use_chat, thinking)
        return
    messages: list[dict[str, Any]] = []
    for number, turn in enumerate(item.turns, 1):
        messages.append({"role": "user", "content": turn})
        name = f"{item.name} turn {number}" if len(item.turns) > 1 else item.name
        yield _chat(session, item, name, messages, use_chat, thinking)
        messages.append({"role": "assistant", "content": answered[-1].trace.text})


def _chat(
    session: Session, item: Item, name: str, messages: list[dict[str, Any]], use_chat: bool, thinking: bool | None
) -> Query:
    shown = str(messages[-1].get("content", ""))
    if not use_chat:
        plain = "\n\n".join(str(m.get("content", "")) for m in messages) + "\n\n"
        return Query(name, item.set, shown, Request(plain, item.n_predict))
    prompt = session.render(messages, thinking)
    return Query(name, item.set, shown, Request(prompt, item.n_predict), tuple(messages))


def thinking_modes(session: Session) -> bool | None:
    """The template's own thinking mode, or None when switching it changes nothing.

    The engine renders the same chat with the switch on, off and untouched; no template is read here.
    """
    chat = [{"role": "user", "content": "How many days does a leap year have?"}]
    on, off = session.render(chat, True), session.render(chat, False)
    if on == off:
        return None
    return session.render(chat) == on


def sampled(queries: Sequence[Query], sampling: Sampling) -> list[Query]:
    """Some of the queries at a temperature, each with its own fixed seed."""
    return [
        replace(q, request=replace(q.request, sampling=replace(sampling, seed=sampling.seed + i)))
        for i, q in enumerate(queries[:SOME])
    ]


def lengthened(session: Session, answered: Sequence[Answered], context: int, thinking: bool | None) -> list[Query]:
    """Some queries with text of the same kind before them, so that they end close to ``context`` tokens."""
    text = "".join((a.query.text + a.trace.text + "\n\n") for a in answered)
    filler = session.tokenize(text, special=False)
    if not filler:
        return []
    filler *= context // len(filler) + 1
    start = session.tokenize("")  # bos, where the target wants one
    made = []
    for query in (a.query for a in answered[:LONG_REQUESTS]):
        n_predict = min(query.request.n_predict, LONG_PREDICT)
        own = session.tokenize(str(query.request.prompt), special=False)
        room = context - n_predict - MARGIN - len(own) - len(start)
        if room <= 0:
            continue
        name = f"{query.name} after {room} tokens"
        if query.chat:
            prompt: str | tuple[int, ...] = _behind(session, query, filler, room, thinking)
        else:
            prompt = start + filler[-room:] + own
        made.append(replace(query, name=name, request=Request(prompt, n_predict)))
    return made


def _behind(session: Session, query: Query, filler: tuple[int, ...], room: int, thinking: bool | None) -> str:
    """The chat with the filler inside its last message; text may grow when it is tokenized again."""
    prompt = ""
    limit = room + len(session.tokenize(session.render(query.chat, thinking)))
    for _ in range(4):
        last = dict(query.chat[-1])
        last["content"] = f"{session.detokenize(filler[-room:])}\n\n{last.get('content', '')}"
        prompt = session.render([*query.chat[:-1], last], thinking)
        excess = len(session.tokenize(prompt)) - limit
        if excess <= 0:
            break
        room = max(room - excess - MARGIN, 1)
    return prompt


def replay(session: Session, queries: Sequence[Query], progress: Progress) -> tuple[Answered, ...]:
    answered = []
    for query in queries:
        progress(query.name, True)
        answered.append(Answered(query, session.complete(query.request)))
    return tuple(answered)
