"""Handles stop signals that arrive before the event loop exists, while a service imports modules and reads settings.

They are remembered and obeyed as soon as the loop runs: the process then ends as after any signal during a start.
Without this, the first process of a container would ignore them: the system delivers to it only handled signals.
"""

import contextlib
import signal
from collections.abc import Iterator

from quire_bookie.dataclass import dataclass

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(slots=True)
class EarlySignals:
    """Records the signals received so far."""

    asked: bool = False
    """Whether a signal asked the process to stop."""


@contextlib.contextmanager
def early_signals() -> Iterator[EarlySignals]:
    """Remember the first stop signal; a second one ends the process at once."""
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
