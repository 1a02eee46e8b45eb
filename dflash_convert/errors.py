"""Every error the library raises on purpose.

    DflashError               1   something unexpected
      UsageError              2   the call cannot be carried out as written
      InputError              3   unusable input
        ConfigError               config.json or another JSON file
        CheckpointError           safetensors, index, tensors
        TokenizerError            the target's tokenizer files
        ContainerError            a GGUF file that breaks the format
        FamilyError               a drafter this tool or llama.cpp cannot handle
      PairingError            4   drafter and target do not belong together
      VerificationError       5   a written file differs from its source
      ValidationError         6   acceptance below the threshold
      EngineError             7   llama.cpp missing or failed
      HubError                8   Hub: not found, gated, offline, revision
      OutputError             9   the output exists, has no space or is not writable

The message is one sentence that names the file and the field; ``tip`` says what to do.
The command line prints both and exits with ``exit_code``; the library never prints.
"""

from __future__ import annotations

from collections.abc import Iterator


class DflashError(Exception):
    """Base of all errors; ``tip`` is one sentence on what to do, or None."""

    exit_code = 1

    def __init__(self, message: str, *, tip: str | None = None) -> None:
        super().__init__(message)
        self.tip = tip


class UsageError(DflashError):
    exit_code = 2


class InputError(DflashError):
    exit_code = 3


class ConfigError(InputError):
    pass


class CheckpointError(InputError):
    pass


class TokenizerError(InputError):
    pass


class ContainerError(InputError):
    pass


class FamilyError(InputError):
    pass


class PairingError(DflashError):
    exit_code = 4


class VerificationError(DflashError):
    exit_code = 5


class ValidationError(DflashError):
    exit_code = 6


class EngineError(DflashError):
    exit_code = 7


class HubError(DflashError):
    exit_code = 8


class OutputError(DflashError):
    exit_code = 9


def chain(error: BaseException) -> Iterator[BaseException]:
    """``error`` and what led to it."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        yield at
        at = at.__cause__ or at.__context__
