"""The loads of a contest: which requests run, in which state of the engine.

What needs the engine (chats that it renders, conversations that hold its answers, long prompts) is made in one start
without a drafter; every candidate then gets the same requests, word for word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dflash_convert.contest import images
from dflash_convert.contest.candidates import NOTHING
from dflash_convert.contest.engines import LlamaCpp
from dflash_convert.contest.trial import Say, Work
from dflash_convert.engine.session import Session
from dflash_convert.engine.trace import Sampling
from dflash_convert.errors import UsageError
from dflash_convert.validation import requests
from dflash_convert.validation.prompts import Item
from dflash_convert.validation.requests import Answered, Query

FIRST, RESUMED = "first turn", "resumed turn"
FOLLOW_UP = "Go on from there, and then sum up in two sentences what you have said so far."


@dataclass(frozen=True)
class Loads:
    """What to run beside one request at a time: so many at once, at so many tokens of context, sampled at a
    temperature, conversations whose beginning is cached, with the template's thinking on and off."""

    parallel: tuple[int, ...] = ()
    contexts: tuple[int, ...] = ()
    temperature: float | None = None
    resumed: bool = False
    thinking: bool = False

    @property
    def need_answers(self) -> bool:
        return bool(self.contexts) or self.resumed


def make(engines: LlamaCpp, items: Sequence[Item], chats: bool, loads: Loads, say: Say = lambda _: None) -> list[Work]:
    """The main load first, then the others in the order of :class:`Loads`, images last."""
    plain = [item for item in items if not images.pictured(item)]
    pictured = [item for item in items if images.pictured(item)]
    known = [item for item in plain if item.prompt is not None]
    made: list[Work] = []
    if plain and len(known) == len(plain) and not loads.need_answers and not loads.thinking:
        main = [Query(i.name, i.set, str(i.prompt), requests.plain(i)) for i in known]
    elif plain:
        with engines.start(NOTHING) as session:
            answered = requests.answer_items(session, plain, chats, None, lambda *_: None)
            main = [each.query for each in answered]
            made = [*_rendered(session, plain, answered, chats, loads, say)]
    else:
        main = images.without_images(pictured)
    first = work("one request at a time", main)
    found = [first, *(parallel_work(first, n) for n in loads.parallel if n > 1)]
    if loads.temperature is not None:
        found.append(sampled_work(first, loads.temperature))
    return [*found, *made, *([images.work(pictured)] if pictured else [])]


def _rendered(
    session: Session, items: Sequence[Item], answered: Sequence[Answered], chats: bool, loads: Loads, say: Say
) -> list[Work]:
    """The loads that a loaded engine has to prepare."""
    made = [_long(session, answered, context) for context in loads.contexts]
    if loads.resumed:
        made.append(_resumed(session, answered))
    if loads.thinking:
        if not chats or requests.thinking_modes(session) is None:
            say("--thinking: the target's template has no such switch, or no prompt is a chat")
        else:
            made += [_thinking(session, items, on) for on in (True, False)]
    return made


def work(label: str, made: Sequence[Query]) -> Work:
    return Work(label, tuple(q.name for q in made), tuple(q.set for q in made), tuple(q.request for q in made))


def parallel_work(first: Work, parallel: int) -> Work:
    """The same requests, that many at a time; repeated until every group is full."""
    count = max(len(first.requests), parallel)
    order = [i % len(first.requests) for i in range(-(-count // parallel) * parallel)]
    return Work(
        label=f"{parallel} requests at a time",
        names=tuple(first.names[i] for i in order),
        kinds=tuple(first.kinds[i] for i in order),
        requests=tuple(first.requests[i] for i in order),
        parallel=parallel,
    )


def sampled_work(first: Work, temperature: float) -> Work:
    """The same requests at a temperature, each with a seed of its own. Answers differ from candidate to candidate:
    nothing but their speed and length is compared."""
    seeds = [Sampling(temperature, seed=1 + i) for i in range(len(first.requests))]
    changed = tuple(replace(each, sampling=seed) for each, seed in zip(first.requests, seeds, strict=True))
    return replace(first, label=f"sampled at temperature {temperature:g}", requests=changed)


def _long(session: Session, answered: Sequence[Answered], context: int) -> Work:
    """Some of the prompts behind text of their own kind, so that they end close to ``context`` tokens."""
    made = requests.lengthened(session, answered[: requests.SOME], context, None)
    if not made:
        raise UsageError(f"no prompt is short enough for a context of {context} tokens")
    return work(f"{context} tokens of context", made)


def _thinking(session: Session, items: Sequence[Item], on: bool) -> Work:
    """The chats with the template's switch on or off; conversations hold the answers that belong to it."""
    chats = [item for item in items if item.prompt is None]
    answered = requests.answer_items(session, chats, True, on, lambda *_: None)
    return work(f"thinking {'on' if on else 'off'}", [each.query for each in answered])


def _resumed(session: Session, answered: Sequence[Answered]) -> Work:
    """Conversations, two turns at least: the first is processed anew, the next finds its beginning in the cache.

    Prompts with several turns are taken as they are; without any, some prompts get one more question.
    """
    own = [each.query for each in answered if _turn(each.query)]
    turns = own or [query for each in answered[: requests.SOME] for query in _two_turns(session, each)]
    made = [replace(q, set=FIRST if _turn(q) == 1 else RESUMED) for q in turns]
    ready = [replace(q, request=replace(q.request, reuse=q.set == RESUMED)) for q in made]
    return replace(work("conversation", ready), apart=True)


def _turn(query: Query) -> int:
    """The number of the turn in a conversation of several, 0 for anything else."""
    name, _, number = query.name.rpartition(" turn ")
    return int(number) if name and number.isdecimal() else 0


def _two_turns(session: Session, first: Answered) -> tuple[Query, Query]:
    query, answer = first.query, first.trace.text
    if query.chat:
        messages = [*query.chat, {"role": "assistant", "content": answer}, {"role": "user", "content": FOLLOW_UP}]
        prompt: str | tuple[int, ...] = session.render(messages)
    elif isinstance(query.request.prompt, str):
        prompt = f"{query.request.prompt}{answer}\n\n{FOLLOW_UP}\n\n"
    else:
        raise TypeError("the prompts of a contest are text")
    second = replace(query, name=f"{query.name} turn 2", request=replace(query.request, prompt=prompt))
    return replace(query, name=f"{query.name} turn 1"), second
