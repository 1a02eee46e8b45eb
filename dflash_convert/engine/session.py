"""A started engine and the requests it answers."""

from __future__ import annotations

import contextlib
import http.client
import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from dflash_convert.engine import embedded, external, logs
from dflash_convert.engine.client import Client, RefusedError, free_port
from dflash_convert.engine.failures import REQUEST, TIMEOUT, EngineRunError, died
from dflash_convert.engine.process import EngineProcess
from dflash_convert.engine.trace import EngineInfo, Launch, Request, Trace
from dflash_convert.text import reason

POLL, PAUSE = 0.02, 0.1  # seconds between two looks at an engine that loads: first and longest
LOG_PATIENCE = 5.0  # seconds the log of a finished request may lag behind its reply
IDLE_PATIENCE = 0.5  # and its last line behind the one before
LAST_WORDS = 10.0  # seconds a dying engine has to finish dying
SHORT = 60.0

Message = Mapping[str, Any]


class Session:
    """A loaded engine. Every method raises :class:`EngineRunError` when llama.cpp cannot answer."""

    def __init__(self, process: EngineProcess, client: Client, launch: Launch, info: EngineInfo) -> None:
        self.launch = launch
        self.info = info
        self._process = process
        self._client = client
        self._requests = 0
        self._accepts: int | None = 0
        self._draft_ms: float | None = 0.0

    def complete(self, request: Request) -> Trace:
        """Run one request to its end; nothing of an earlier request is reused unless it asks for that."""
        start = self._process.log_size()
        self._requests += 1
        reply = self._answer(request, f"during request {self._requests}")
        return self._trace(reply, self._request_log(start))

    def complete_together(self, requests: Sequence[Request]) -> tuple[list[Trace], float]:
        """Requests at the same time, and the milliseconds until the last one ended; the log, which mixes them, tells
        nothing of their steps and positions."""
        began = time.monotonic()
        doing = f"during {len(requests)} requests at a time"
        with ThreadPoolExecutor(len(requests)) as pool:
            replies = list(pool.map(lambda request: self._answer(request, doing), requests))
        ms = 1000 * (time.monotonic() - began)
        return [replace(self._trace(reply, ""), steps=None, draft_ms=None) for reply in replies], ms

    def render(self, messages: Sequence[Message], thinking: bool | None = None) -> str:
        """The prompt the engine makes of a chat with the target's own template; None: the template's default."""
        body: dict[str, Any] = {"messages": list(messages)}
        if thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": thinking}
        reply = self._call("POST", "/apply-template", body, "applying the chat template", SHORT)
        return str(_field(reply, "prompt", str))

    def tokenize(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """Token ids of ``text``; ``special`` as for a prompt: adds bos, reads control tokens."""
        body = {"content": text, "add_special": special, "parse_special": special}
        reply = self._call("POST", "/tokenize", body, "tokenizing", SHORT)
        return tuple(int(t) for t in _field(reply, "tokens", list))

    def detokenize(self, tokens: Sequence[int]) -> str:
        reply = self._call("POST", "/detokenize", {"tokens": list(tokens)}, "detokenizing", SHORT)
        return str(_field(reply, "content", str))

    def log_probabilities(self, prompt: Sequence[int], count: int) -> dict[int, float]:
        """Log probabilities (nats) of the ``count`` likeliest tokens after ``prompt``; empty if not supported."""
        body = {
            "prompt": list(prompt),
            "n_predict": 1,
            "temperature": 0.0,
            "n_probs": count,
            "cache_prompt": False,
        }
        reply = self._call("POST", "/completion", body, "comparing two tokens")
        try:
            top = reply["completion_probabilities"][0]["top_logprobs"]
            found = {int(item["id"]): float(item["logprob"]) for item in top}
        except (KeyError, IndexError, TypeError, ValueError):
            return {}
        return {token: value for token, value in found.items() if math.isfinite(value)}

    def log(self) -> str:
        return self._process.log()

    def taken_mib(self) -> float | None:
        """The memory that it says it took, MiB."""
        return logs.memory_of(self._process.log())

    def build(self) -> str:
        return logs.build_of(self._process.log()) or self.info.build

    def _answer(self, request: Request, doing: str) -> Any:
        if not request.messages:
            return self._call("POST", "/completion", _body(request), doing)
        return _as_completion(self._call("POST", "/v1/chat/completions", _body(request), doing))

    def _call(self, method: str, path: str, body: Any, doing: str, timeout: float | None = None) -> Any:
        limit = timeout or self.launch.request_timeout
        try:
            return self._client.call(method, path, body, limit)
        except TimeoutError:
            status = self._process.status
            if status is not None:
                raise died(self.log(), status, doing) from None
            raise _timeout(f"llama.cpp did not answer within {limit:g} s {doing}", self.log()) from None
        except (OSError, http.client.HTTPException) as error:
            status = self._process.wait(LAST_WORDS)
            if status is None:
                text = f"llama.cpp closed the connection {doing}: {reason(error)}"
                raise EngineRunError(REQUEST, text, log=self.log()) from None
            raise died(self.log(), status, doing) from None
        except RefusedError as error:
            text = f"llama.cpp refused a request {doing}: {error} (status {error.status})"
            tip = "raise --ctx-size, or shorten the prompt" if "context size" in str(error) else None
            raise EngineRunError(REQUEST, text, tip=tip, log=self.log()) from None

    def _request_log(self, start: int) -> str:
        """The log from byte ``start`` on, once the engine has said that the request is over.

        The log is written behind the reply: what is not waited for here would be read as the next request's.
        """
        deadline, finished = time.monotonic() + LOG_PATIENCE, False
        while True:
            text, now = self._process.log(start), time.monotonic()
            if logs.IDLE.search(text) or now > deadline:
                return text
            if not finished and logs.FINISHED.search(text):
                finished, deadline = True, now + IDLE_PATIENCE
            time.sleep(POLL / 4)

    def _trace(self, reply: Any, log: str) -> Trace:
        timings = reply.get("timings", {}) if isinstance(reply, dict) else {}
        stats = logs.parse_request(log)
        try:
            drafted = int(timings.get("draft_n", stats.drafted))
            accepted = int(timings.get("draft_n_accepted", stats.accepted))
            steps = logs.steps_of(stats, self._accepts, accepted) if drafted else 0
            self._accepts = stats.total_accepts if drafted else self._accepts
            now, before = stats.total_draft_ms, self._draft_ms
            self._draft_ms = now if drafted else before
            return Trace(
                prompt_tokens=int(reply["tokens_evaluated"]),
                tokens=tuple(int(t) for t in reply.get("tokens", ())),
                text=str(reply["content"]),
                drafted=drafted,
                accepted=accepted,
                generated=int(timings.get("predicted_n", reply["tokens_predicted"])),
                prompt_ms=float(timings.get("prompt_ms", 0)),
                generation_ms=float(timings.get("predicted_ms", 0)),
                steps=steps,
                accepted_per_position=logs.position_counts(stats.position_rates, steps, accepted),
                stop=str(reply.get("stop_type", "")),
                draft_ms=now - before if drafted and now is not None and before is not None else None,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            text = f"llama.cpp sent a reply without a usable field {error}"
            raise EngineRunError(REQUEST, text, tip="use a newer llama.cpp", log=log) from None


def _body(request: Request) -> dict[str, Any]:
    asked: dict[str, Any] = {"messages": list(request.messages), "max_tokens": request.n_predict}
    if not request.messages:
        prompt = request.prompt if isinstance(request.prompt, str) else list(request.prompt)
        asked = {"prompt": prompt, "n_predict": request.n_predict}
    body: dict[str, Any] = {
        **asked,
        "temperature": request.sampling.temperature,
        "cache_prompt": request.reuse,
        "return_tokens": True,
        "ignore_eos": request.ignore_eos,
    }
    if not request.sampling.greedy:
        sampling = request.sampling
        body |= {"top_p": sampling.top_p, "top_k": sampling.top_k, "min_p": 0.0, "seed": sampling.seed}
    return body


def _as_completion(reply: Any) -> Any:
    """The answer to a chat in the form of a plain completion; as it is when it has another form."""
    try:
        choice, usage = reply["choices"][0], reply["usage"]
        message = choice["message"]
        text = f"{message.get('reasoning_content') or ''}{message.get('content') or ''}"
        return {
            "content": text,
            "tokens_evaluated": usage["prompt_tokens"],
            "tokens_predicted": usage["completion_tokens"],
            "stop_type": choice.get("finish_reason") or "",
            "timings": reply.get("timings", {}),
        }
    except (KeyError, IndexError, TypeError, AttributeError):
        return reply


@contextlib.contextmanager
def start(info: EngineInfo, launch: Launch, meanwhile: Callable[[], object] = lambda: None) -> Iterator[Session]:
    """Start an engine, wait until its models are loaded, and end it whatever happens inside the block.

    ``meanwhile`` is called while it loads.

    Raises :class:`EngineRunError` when it ends early, or is not ready within ``launch.start_timeout``.
    """
    key, port = secrets.token_urlsafe(24), free_port()
    plan = embedded.command if info.kind == "embedded" else external.command
    command, environment = plan(info, launch, port, key)
    process = EngineProcess(command, environment)
    try:
        client = Client(port, key)
        meanwhile()
        _wait_until_ready(process, client, launch.start_timeout)
        yield Session(process, client, launch, info)
    finally:
        process.stop()


def _wait_until_ready(process: EngineProcess, client: Client, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    pause = POLL
    while not client.healthy():
        status = process.wait(pause)
        if status is not None:
            raise died(process.log(), status, "while loading")
        if time.monotonic() > deadline:
            raise _timeout(f"llama.cpp was not ready after {seconds:g} s", process.log())
        pause = min(pause * 1.5, PAUSE)
    if process.status is not None:
        raise died(process.log(), process.status, "while loading")


def _timeout(text: str, log: str) -> EngineRunError:
    return EngineRunError(TIMEOUT, text, tip="give it more time (--timeout) or less work (--n-predict)", log=log)


def _field(reply: Any, name: str, kind: type) -> Any:
    value = reply.get(name) if isinstance(reply, dict) else None
    if not isinstance(value, kind):
        raise EngineRunError(REQUEST, f"llama.cpp sent a reply without the field {name}", tip="use a newer llama.cpp")
    return value
