"""Visits many topics in steps of the event loop, so that a broker with a million of them goes on serving clients."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

from quire_broker.limits import TOPICS_PER_STEP

T = TypeVar("T")


async def in_steps(topics: Iterable[T]) -> AsyncIterator[T]:
    """Yield topics or their names, a few in each step. Other work goes on between steps: a topic may have closed."""
    for number, topic in enumerate(topics, 1):
        if number % TOPICS_PER_STEP == 0:
            await asyncio.sleep(0)
        yield topic
