"""Ctrl-C and the signals that politely end a program: they unwind it wherever they come, and none is lost."""

from __future__ import annotations

import _thread
import math
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

from dflash_convert.errors import chain
from dflash_convert.system import ending_signals, signal_main_thread

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

AGAIN = 0.05  # seconds until an interrupt that was swallowed comes again: what swallowed it has ended by then
CLEANUP = 1.0  # seconds in which one more changes nothing: it would break into what the first has begun to clean up

_last = -math.inf  # when an interrupt was raised


class Stopped(KeyboardInterrupt):
    """SIGTERM or SIGHUP (its number): unwinds like Ctrl-C, so that workers end and hidden files are removed."""


def unwind_on_signals() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt and the ending signals :class:`Stopped`, each once: more of them
    within CLEANUP do nothing, and one that Python swallows comes again."""
    if threading.current_thread() is not threading.main_thread():
        return
    _forget()
    # what somebody else decided stays: nohup keeps its meaning, and so does Ctrl-C in the background of a script
    for number in ending_signals():
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _stop)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _unraisable


def _stop(number: int, frame: object) -> None:
    global _last
    before, now = _last, time.monotonic()
    if now - before >= CLEANUP:
        _last = now
        raise KeyboardInterrupt if number == signal.SIGINT else Stopped(number)


def _forget() -> None:
    global _last
    _last = -math.inf


def interrupt_behind(error: BaseException) -> KeyboardInterrupt | None:
    """The interrupt that ``error`` is or came in place of: where one breaks into a lock's ``acquire``, say, the
    ``release`` in a library's ``finally`` raises an error of its own."""
    return next((each for each in chain(error) if isinstance(each, KeyboardInterrupt)), None)


def end_as(stopped: KeyboardInterrupt | None, exit_code: int) -> None:
    """End the program: by the signal that stopped it, so that the caller sees it; after Ctrl-C with ``exit_code``."""
    if isinstance(stopped, Stopped):
        signal.signal(stopped.args[0], signal.SIG_DFL)
        os.kill(os.getpid(), stopped.args[0])
    sys.exit(exit_code)


def _unraisable(lost: UnraisableHookArgs) -> None:
    """What a finalizer or a weak reference's callback raises ends there; imports run one for every module."""
    if isinstance(lost.exc_value, KeyboardInterrupt):
        number = lost.exc_value.args[0] if isinstance(lost.exc_value, Stopped) else signal.SIGINT
        _forget()
        _thread.start_new_thread(_once_more, (number,))  # threading's own locks may be held here
    else:
        sys.__unraisablehook__(lost)


def _once_more(number: int) -> None:
    time.sleep(AGAIN)
    signal_main_thread(number)
