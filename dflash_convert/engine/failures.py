"""Why an engine failed: its log and exit status turned into one sentence and a tip."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from dflash_convert.errors import EngineError
from dflash_convert.system import KILLED

OUT_OF_MEMORY = "out-of-memory"
CRASH = "crash"
TIMEOUT = "timeout"
MISSING = "missing"
OPTION = "unknown-option"
LOAD = "load"
REQUEST = "request"
EXIT = "exit"

LOG_TAIL_LINES = 40


class EngineRunError(EngineError):
    """llama.cpp could not do its work. ``kind`` tells out of memory, a crash, a hang and the rest apart;
    ``log`` is the end of what it wrote to stderr."""

    def __init__(self, kind: str, message: str, *, tip: str | None = None, log: str = "") -> None:
        super().__init__(message, tip=tip)
        self.kind = kind
        self.log = "\n".join(log.splitlines()[-LOG_TAIL_LINES:])


@dataclass(frozen=True)
class Cause:
    """A line an engine writes when it fails; ``message`` and ``tip`` may use the pattern's groups."""

    kind: str
    pattern: re.Pattern[str]
    message: str
    tip: str | None = None


def _cause(kind: str, pattern: str, message: str, tip: str | None = None) -> Cause:
    return Cause(kind, re.compile(pattern, re.IGNORECASE), message, tip)


_SMALLER = "use a smaller --ctx-size, fewer layers on the GPU (--n-gpu-layers) or another device"
_SAME_DEVICE = (
    "a drafter that borrows the target's embeddings or head must sit where they do: "
    "leave --spec-draft-device out, or name the target's device"
)

# in order: the first that matches anywhere in the log is the reason
CAUSES = (
    _cause(
        OUT_OF_MEMORY,
        r"out of memory|cudaMalloc failed|bad_alloc|OutOfDeviceMemory|insufficient memory"
        r"|failed to allocate (?!host|pinned)[^\n]*(?:buffer|bytes|MB)|unable to allocate [^\n]*buffer"
        r"|failed to allocate (?:compute|graph)",
        "llama.cpp ran out of memory",
        _SMALLER,
    ),
    _cause(
        CRASH,
        r"GGML_ASSERT\((?P<what>.*DFlash model has no target_layer_ids.*)\) failed",
        "llama.cpp found no target layers in the drafter: the file is not a DFlash drafter",
        "check that drafter and target are not swapped",
    ),
    _cause(
        CRASH,
        r"layer input tensor is null",
        "llama.cpp has no input of a layer that the drafter taps",
        "a tap lies beyond the target's layers, or this llama.cpp cannot tap this architecture: dflash-convert check",
    ),
    _cause(
        CRASH,
        r"pre-allocated tensor \((?P<what>[^)\n]+)\) in a buffer \((?P<where>[^)\n]+)\) that cannot run",
        "llama.cpp needs {what} on the device of the drafter, and it lies on {where}",
        _SAME_DEVICE,
    ),
    _cause(
        CRASH,
        r"GGML_ASSERT\((?P<what>[^\n]*(?:split|meta)[^\n]*)\) failed",
        "llama.cpp stopped at its assertion {what}",
        "a drafter's head split over several GPUs is known to do this: use -sm layer or a newer build",
    ),
    _cause(
        CRASH,
        r"GGML_ASSERT\((?P<what>[^\n]*(?:buffer|backend|device)[^\n]*)\) failed",
        "llama.cpp stopped at its assertion {what}",
        _SAME_DEVICE,
    ),
    _cause(
        CRASH,
        r"GGML_ASSERT\((?P<what>ggml_can_mul_mat[^\n]*)\) failed",
        "llama.cpp stopped at its assertion {what}: the sizes of drafter and target do not fit each other",
        "dflash-convert check DRAFTER TARGET lists what does not fit",
    ),
    _cause(CRASH, r"GGML_ASSERT\((?P<what>[^\n]*)\) failed", "llama.cpp stopped at its assertion {what}"),
    _cause(
        OPTION,
        r"unknown speculative (?:decoding )?type:? *(?P<what>\S+)",
        "this llama.cpp does not know the drafting method {what}",
        "update llama.cpp: DFlash needs a build that lists it under --spec-type",
    ),
    _cause(
        OPTION,
        r"(?:invalid argument|unknown argument|unrecognized option):? *(?P<what>\S+)",
        "this llama.cpp does not know the option {what}",
        "update llama.cpp, or leave the option out of the arguments after --",
    ),
    _cause(
        LOAD,
        r"unknown (?:model )?architecture:? *'(?P<what>[^']*)'",
        "this llama.cpp does not know the architecture {what}",
        "update llama.cpp; a drafter in a fork's dialect can be rewritten with: dflash-convert migrate",
    ),
    _cause(
        LOAD,
        r"wrong number of tensors; expected (?P<n>\d+), got (?P<m>\d+)",
        "the file holds {n} tensors and llama.cpp claims {m} of them: at least one does not belong there",
        "convert the drafter again, or see which tensors are foreign with: dflash-convert check",
    ),
    _cause(LOAD, r"tensor '(?P<what>[^']+)' not found", "the tensor {what} is missing from the file"),
    _cause(LOAD, r"missing tensor '(?P<what>[^']+)'", "the tensor {what} is missing from the file"),
    _cause(
        LOAD,
        r"tensor '(?P<what>[^']+)' has wrong shape; (?P<more>[^\n]*)",
        "the tensor {what} has the wrong shape: {more}",
    ),
    _cause(
        LOAD,
        r"tensor '(?P<what>[^']+)' data is not within the file bounds",
        "the file is cut off: the data of tensor {what} lies beyond its end",
        "download or convert the file again",
    ),
    _cause(LOAD, r"key not found in model: (?P<what>\S+)", "the key {what} is missing from the file"),
    _cause(LOAD, r"invalid magic characters", "the file is not a GGUF"),
    _cause(
        LOAD,
        r"(?:failed to open|cannot open|No such file or directory)[^\n]*?(?P<what>\S+\.gguf)",
        "llama.cpp cannot open {what}",
    ),
    _cause(LOAD, r"error loading model: (?P<what>[^\n]+)", "llama.cpp cannot load the model: {what}"),
    _cause(LOAD, r"couldn't bind|address already in use", "the port was taken by another program"),
)
# said while llama.cpp probes the device's memory, and harmless there
HARMLESS = re.compile(r"normal during memory fitting")


def find_cause(log: str) -> tuple[Cause, str] | None:
    """The first known reason in ``log`` with its finished sentence."""
    lines = "\n".join(line for line in log.splitlines() if not HARMLESS.search(line))
    for cause in CAUSES:
        match = cause.pattern.search(lines)
        if match:
            groups = {name: _unquoted(value.strip()) for name, value in match.groupdict().items() if value}
            return cause, cause.message.format(**groups)
    return None


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def out_of_memory(log: str) -> bool:
    """True when the log tells of failed allocations, even if the engine went on without the drafter."""
    found = find_cause(log)
    return found is not None and found[0].kind == OUT_OF_MEMORY


def died(log: str, status: int, doing: str) -> EngineRunError:
    """The failure of an engine that ended by itself: ``status`` is the exit code, negative for a signal."""
    found = find_cause(log)
    if found:
        cause, message = found
        # the same words may stand in a log of a process that a signal ended
        return EngineRunError(cause.kind, f"{message} ({doing})", tip=cause.tip, log=log)
    if status == KILLED:
        text = f"llama.cpp was killed from outside {doing}, most often because the system ran out of memory"
        return EngineRunError(OUT_OF_MEMORY, text, tip=_SMALLER, log=log)
    if status < 0:
        text = f"llama.cpp crashed with {signal_name(-status)} {doing}"
        return EngineRunError(CRASH, text, tip="try another build, and report the log to llama.cpp", log=log)
    last = _last_error(log)
    text = f"llama.cpp ended with status {status} {doing}" + (f": {last}" if last else "")
    return EngineRunError(EXIT, text, log=log)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_error(log: str) -> str:
    """The last line that llama.cpp marked as an error, else the last line that says anything."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    marked = [line for line in lines if re.match(r"[\d.]+ E |.*\berror\b", line)]
    return (marked or lines or [""])[-1][:200]
