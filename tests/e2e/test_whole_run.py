"""After all other scenarios (files run in the order of their names, jobs last): checks all messages of the run."""

import os
from collections.abc import Callable

import pytest

from tests.e2e.kube import until
from tests.e2e.stack import Stack

ENOUGH_S = 3000.0
QUICK_RATE = 1000
"""Messages a second of each topic until enough are acknowledged."""


@pytest.mark.timeout(4000)
def test_every_message_of_the_whole_run_can_be_read_at_the_end(stack: Stack, measured: Callable[..., None]) -> None:
    wanted = int(os.environ.get("QUIRE_E2E_MESSAGES", "0"))
    stack.set_rate(QUICK_RATE)
    until(f"{wanted} messages are acknowledged", lambda: stack.acknowledged() >= wanted, ENOUGH_S, poll_s=2.0)
    stack.set_rate(stack.rate)
    measured("messages checked by content", stack.check_all(), "")
