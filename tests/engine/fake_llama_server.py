"""Plays llama-server for tests: ``fake_llama_server.py MODE ARGS…``, with logs in the forms llama.cpp writes.

normal            drafts are accepted, the text never changes
old-log           an older build: the acceptance line of 2025, no counts in the reply, no rates by position
zero-drafts       the drafter loads and proposes nothing
oom               out of memory above a context of 2048 tokens
oom-always        out of memory at any context
oom-silent        the drafter does not fit, and the server goes on without it
unknown-type      the option --spec-type is known, draft-dflash is not, and --help does not answer
outdated          --help lists no draft-dflash
crash-second      segmentation fault in the second request
assert            a failed assertion while loading the drafter
differs           the drafter changes the text
differs-long      the same, behind a long prompt only
loses-long        no draft is accepted behind a long prompt
hopeless          drafts are made, and none is accepted
slower            drafting takes 2.5 times as long as not drafting
impossible        drafting is ten times faster, with three tokens a step
hang              the third request is never answered
never-ready       the port opens, the model never loads
late-log          what the log says of a request comes behind its reply
image-blind       no draft is accepted behind an image, and text is drafted as ever
image-poison      no draft is accepted from the first image on
stubborn          as normal, but it ignores SIGTERM
draft-TYPE        as normal, and --help lists this drafting method too
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OOM = (
    "0.01.000.000 E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4096.00 MiB on device 0: "
    "cudaMalloc failed: out of memory"
)
ASSERT = (
    'common/speculative.cpp:1033: GGML_ASSERT(target_layer_ids_n > 0 && "DFlash model has no target_layer_ids") failed'
)


LONG = 400  # characters or tokens of a prompt


BUSY = threading.Lock()
LATE: list[str] | None = None  # lines that wait for the reply, where the mode holds them back


def log(text: str) -> None:
    if LATE is not None:
        LATE.append(text)
        return
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def catch_up() -> None:
    """The held back lines, in three portions."""
    global LATE
    lines, LATE = LATE or [], None
    for portion in (lines[:-2], lines[-2:-1], lines[-1:]):
        time.sleep(0.03)
        log("\n".join(portion))


class Server:
    def __init__(self, mode: str, args: list[str]) -> None:
        self.mode = mode
        self.options = dict(itertools.pairwise(args))
        self.drafter = self.options.get("-md")
        self.n_max = int(self.options.get("--spec-draft-n-max", "0"))
        self.requests = 0
        self.verified = 0
        self.drafting = 0.0
        self.poisoned = False
        self.cached = ""

    def load(self) -> None:
        log("build: 4242 (abc1234) with a compiler for a machine")
        log(f"srv    load_model: loading model '{self.options['-m']}'")
        log("load_tensors:        CUDA0 model buffer size =    30.00 MiB")
        log("llama_context: constructing llama_context")
        log("llama_kv_cache:      CUDA0 KV buffer size =    10.00 MiB")
        log("sched_reserve:      CUDA0 compute buffer size =     5.00 MiB")
        if not self.drafter:
            return
        if self.mode == "unknown-type":
            kind = self.options["--spec-type"]
            log(f'error while handling argument "--spec-type": unknown speculative type: {kind}\n')
            sys.exit(1)
        if self.mode == "oom-always" or (self.mode == "oom" and int(self.options["-c"]) > 2048):
            log(OOM)
            log(f"srv    load_model: failed to load draft model, '{self.drafter}'")
            sys.exit(1)
        if self.mode == "oom-silent":
            log(OOM)
            self.drafter = None
        if self.mode == "assert":
            log(ASSERT)
            os.abort()

    def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """A chat as one answer: images count as ten tokens, and spoil drafting in some modes."""
        content = [part for message in body["messages"] for part in _parts(message)]
        pictured = any(part["type"] != "text" for part in content)
        self.poisoned = self.poisoned or (pictured and self.mode == "image-poison")
        prompt = "".join(part.get("text", "<image: ten>") for part in content)
        blind = self.poisoned or (pictured and self.mode == "image-blind")
        reply = self.complete({**body, "prompt": prompt, "n_predict": body["max_tokens"]}, blind=blind)
        return {
            "choices": [{"message": {"role": "assistant", "content": reply["content"]}, "finish_reason": "length"}],
            "usage": {"prompt_tokens": reply["tokens_evaluated"], "completion_tokens": reply["tokens_predicted"]},
            "timings": reply["timings"],
        }

    def complete(self, body: dict[str, Any], *, blind: bool = False) -> dict[str, Any]:
        self.requests += 1
        if self.mode == "crash-second" and self.drafter and self.requests == 2:
            os.kill(os.getpid(), signal.SIGSEGV)
            time.sleep(60)  # the signal may reach another thread first; this one must not answer meanwhile
        if self.mode == "hang" and self.requests == 3:
            time.sleep(3600)
        count = body["n_predict"]
        first = sum(str(body["prompt"]).encode()) % 1000
        tokens = [first + i for i in range(count)]
        long = len(body["prompt"]) > LONG
        if self.drafter and (self.mode == "differs" or (self.mode == "differs-long" and long)):
            tokens[count // 2 :] = [9999] * (count - count // 2)
        timings: dict[str, Any] = {"predicted_n": count, "predicted_ms": 40.0 * count, "prompt_ms": 0.0}
        known = 0
        if body.get("cache_prompt", True):  # as llama-server has it
            pairs = zip(self.cached, str(body["prompt"]), strict=False)
            known = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        timings["prompt_ms"] = 1.0 + 0.5 * (len(str(body["prompt"])) - known)
        self.cached = str(body["prompt"]) + "".join(f"<{t}>" for t in tokens)
        lost = blind or self.mode == "hopeless" or (self.mode == "loses-long" and long)
        self.report(count, timings, kept=0 if lost else 2)
        reply = {
            "content": "".join(f"<{t}>" for t in tokens),
            "tokens": tokens,
            "tokens_evaluated": len(str(body["prompt"])),
            "tokens_predicted": count,
            "stop_type": "limit",
            "timings": timings,
        }
        log("slot      release: id  0 | task 0 | stop processing: n_tokens = 1, truncated = 0")
        log("srv  update_slots: all slots are idle")
        return reply

    def report(self, count: int, timings: dict[str, Any], kept: int) -> None:
        """Steps of n_max drafts of which the first ``kept`` are accepted; half of a step's time goes into drafting."""
        log("slot print_timing: id  0 | task 0 |        eval time =  1.00 ms")
        if not self.drafter or self.mode == "zero-drafts":
            return
        kept = min(kept, self.n_max)
        steps = max((count - 1) // (kept + 1), 1)
        drafted, accepted = steps * self.n_max, steps * kept
        timings["predicted_ms"] *= {"slower": 2.5, "impossible": 0.1}.get(self.mode, 0.5)
        self.drafting += timings["predicted_ms"] / 2
        line = f"( {accepted:5d} accepted / {drafted:5d} generated)"
        if self.mode == "old-log":
            log(f"slot print_timing: id  0 | task 0 | draft acceptance rate = {accepted / drafted:0.5f} {line}")
            return
        self.verified += steps
        timings |= {"draft_n": drafted, "draft_n_accepted": accepted}
        mean = 1 + accepted / steps
        log(f"0.1 I slot print_timing: id  0 | task 0 | draft acceptance = 0.5 {line}, mean len = {mean:5.2f}")
        rates = ", ".join("1.000" if i < kept else "0.000" for i in range(self.n_max))
        log(f"0.1 I slot print_timing: id  0 | task 0 |      acc per pos = ({rates})")
        calls = f"#calls(b,g,a) = {self.requests:4d} {self.verified:6d} {self.verified:6d}"
        kind = self.options["--spec-type"]
        spent = f"dur(b,g,a) = 0.001, {self.drafting:.3f}, 0.001 ms"
        log(f"0.1 I spec common_specu: statistics     {kind}: {calls}, #gen drafts = {self.verified:6d}, {spent}")


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ready = self.path == "/health" and server.mode != "never-ready"
            self.send({"status": "ok"} if ready else {"error": {"message": "Loading model"}}, 200 if ready else 503)

        def do_POST(self) -> None:
            if self.headers["Authorization"] != f"Bearer {os.environ['LLAMA_API_KEY']}":
                self.send({"error": {"message": "Invalid API Key"}}, 401)
                return
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/completion":
                self.complete(body)
            elif self.path == "/v1/chat/completions":
                self.send(server.chat(body))
            elif self.path == "/tokenize":
                self.send({"tokens": list(body["content"].encode())})
            elif self.path == "/detokenize":
                self.send({"content": bytes(body["tokens"]).decode(errors="replace")})
            elif self.path == "/apply-template":
                mode = body.get("chat_template_kwargs", {}).get("enable_thinking")
                end = {True: "<think>", False: "<answer>", None: "<think>"}[mode]
                turns = [m["content"] + end * (m["role"] == "user") for m in body["messages"]]
                self.send({"prompt": "".join(turns)})
            else:
                self.send({"error": {"message": f"no {self.path} here"}}, 404)

        def complete(self, body: dict[str, Any]) -> None:
            global LATE
            if server.mode != "late-log":
                self.send(server.complete(body))
                return
            with BUSY:  # an engine does one thing after the other, and its log keeps their order
                LATE = []
                self.send(server.complete(body))
                catch_up()

        def send(self, reply: dict[str, Any], status: int = 200) -> None:
            data = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def main(mode: str, args: list[str]) -> None:
    if "--version" in args:
        log("version: 4242 (abc1234)")
        return
    if "--list-devices" in args:
        log("Available devices:\n  CUDA0: A Graphics Card (24000 MiB, 23000 MiB free)")
        return
    if "--help" in args:
        if mode != "unknown-type":
            dflash = "" if mode == "outdated" else ",draft-dflash"
            dflash += f",{mode}" if mode.startswith("draft-") else ""
            log(f"--spec-type none,draft-simple{dflash},ngram-simple\n    comma-separated list of types")
            log("-ctkd, --spec-draft-type-k TYPE\n-ctvd, --spec-draft-type-v TYPE\n-t, --threads N")
            log("-bs, --backend-sampling\n-ngld, --spec-draft-ngl N")
            log("--spec-draft-backend-sampling, --no-spec-draft-backend-sampling")
        return
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server = Server(mode, args)
    server.load()
    log(f"args: {' '.join(args)}")
    http = ThreadingHTTPServer(("127.0.0.1", int(server.options["--port"])), handler(server))
    threading.Thread(target=http.serve_forever, daemon=True).start()
    while True:
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
