"""The reader's side of a watch: order, limit, end."""

import asyncio

from quire_bookie.metadata.event_queue import EventQueue
from quire_bookie.metadata.store import Event, EventKind


def event(number: int) -> Event:
    return Event(EventKind.CREATED, f"/w/{number}")


async def take(queue: EventQueue, count: int) -> list[Event]:
    stream = aiter(queue)
    async with asyncio.timeout(60):
        return [await anext(stream) for _ in range(count)]


async def test_events_are_returned_in_order() -> None:
    queue = EventQueue("/w/")
    for number in range(3):
        queue.offer(event(number))
    assert await take(queue, 3) == [event(0), event(1), event(2)]


async def test_a_reader_that_waits_is_woken() -> None:
    queue = EventQueue("/w/")
    reader = asyncio.ensure_future(take(queue, 1))
    await asyncio.sleep(0)
    queue.offer(event(1))
    assert await reader == [event(1)]


async def test_a_reader_that_falls_behind_receives_a_resync() -> None:
    queue = EventQueue("/w/", events_max=3)
    for number in range(4):
        queue.offer(event(number))
    queue.offer(event(9))
    assert await take(queue, 2) == [Event(EventKind.RESYNC, "/w/"), event(9)]


async def test_after_close_no_event_is_returned() -> None:
    queue = EventQueue("/w/")
    queue.offer(event(1))
    await queue.close()
    queue.offer(event(2))
    assert [each async for each in queue] == []
    assert queue.closed
