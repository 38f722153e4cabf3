"""Polling of state that another process changes, where there is no event to wait for.

`tests/unit/test_shape.py` names the few other modules of the tests that may sleep, with the reason.
"""

import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
GUARD_S = 60.0
POLL_S = 0.05
Failure = str | Callable[[], object]
"""What an AssertionError says; a function is called when the error is raised, for a log or the last state."""


def until(
    condition: Callable[[], T],
    failure: Failure = "the condition does not hold",
    *,
    timeout_s: float = GUARD_S,
    poll_s: float = POLL_S,
    process: "subprocess.Popen[Any] | None" = None,
) -> T:
    """Return the first true result of `condition`. AssertionError after `timeout_s`, or when `process` ends before."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := condition()):
        if process is not None and process.poll() is not None:
            raise AssertionError(f"the process ended with {process.returncode}: {_text(failure)}")
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {timeout_s:.0f} s: {_text(failure)}")
        time.sleep(poll_s)
    return found


def _text(failure: Failure) -> object:
    return failure if isinstance(failure, str) else failure()
