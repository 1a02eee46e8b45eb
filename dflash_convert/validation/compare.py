"""Two texts that should be the same, and where they part."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import TypeVar

from dflash_convert.engine.failures import REQUEST, EngineRunError
from dflash_convert.engine.session import Session
from dflash_convert.engine.trace import Trace
from dflash_convert.validation.requests import Query
from dflash_convert.validation.result import Divergence

T = TypeVar("T")
SHOWN = 40  # characters of either text
CANDIDATES = 20  # likeliest tokens to ask for when two are compared


def common_length(a: Sequence[T], b: Sequence[T]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def divergence(expected: Trace, found: Trace) -> Divergence | None:
    """The first difference of two greedy answers to one prompt; None when there is none.

    Token ids decide where both are known: two different tokens can read the same.
    """
    if expected.tokens and found.tokens:
        if expected.tokens == found.tokens:
            return None
        token: int | None = common_length(expected.tokens, found.tokens)
    elif expected.text == found.text:
        return None
    else:
        token = None
    at = common_length(expected.text, found.text)
    return Divergence(token, at, expected.text[at : at + SHOWN], found.text[at : at + SHOWN])


def measure_gap(session: Session, query: Query, expected: Trace, found: Trace, at: int) -> float | None:
    """How much likelier (nats) the target finds ``expected``'s token at index ``at`` than ``found``'s.

    None when one text simply ends earlier, a token is not among the likeliest few, or the engine cannot tell.
    """
    if at >= len(expected.tokens) or at >= len(found.tokens):
        return None
    prompt = query.request.prompt
    try:
        ids = session.tokenize(prompt) if isinstance(prompt, str) else prompt
        known = session.log_probabilities((*ids, *expected.tokens[:at]), CANDIDATES)
    except EngineRunError as error:
        if error.kind != REQUEST:
            raise
        return None
    pair = (known.get(expected.tokens[at]), known.get(found.tokens[at]))
    if pair[0] is None or pair[1] is None:
        return None
    return abs(pair[0] - pair[1])
