"""Signals that come before there is an event loop: while a service imports what it needs and reads its settings.

Remembered, and obeyed as soon as the loop can: the process then ends as after any signal during a start. Without it the
first process of a container would not even notice them, since the system passes it only signals that it handles.
"""

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(slots=True)
class EarlySignals:
    """What came so far."""

    asked: bool = False
    """The process was asked to stop."""


@contextlib.contextmanager
def early_signals() -> Iterator[EarlySignals]:
    """Remember the first signal that asks us to stop; a second one ends the process at once."""
    early = EarlySignals()

    def remember(_number: int, _frame: object) -> None:
        early.asked = True
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, remember) for number in STOP_SIGNALS}
    try:
        yield early
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
