"""What went wrong in a call of the backend: its own fault, or an interrupt of the thread in it."""

from __future__ import annotations

import signal
from types import CodeType

from vivace.errors import EngineError


def describe(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {fault}" if str(fault) else type(fault).__name__


def as_tts_error(fault: BaseException, message: str) -> EngineError:
    error = EngineError(message)
    error.__cause__ = fault
    return error


def is_interrupt(fault: BaseException) -> bool:
    """Whether it was meant for the thread that it was raised in, and not the backend's."""
    if not isinstance(fault, Exception) or isinstance(fault, TimeoutError):
        return True
    handlers, traceback = _handlers(), fault.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            return True
        traceback = traceback.tb_next
    return False


def _handlers() -> set[CodeType]:
    """The code of all signal handlers written in Python."""
    codes = set()
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        code = getattr(getattr(handler, "__func__", handler), "__code__", None)
        if isinstance(code, CodeType):
            codes.add(code)
    return codes
