"""Slow publishes: one line a batch, with the wait for a ledger, the bookies, and the receipt."""

import asyncio
from typing import Any

import pytest

from quire_bookie.errors import BookieUnavailableError
from tests.unit.broker.managed_ledger.world import NAME, Answers, World, run


def events(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return the fields of the lines so far."""
    return [vars(record)["event"] for record in caplog.records if record.name == "quire.slow"]


def test_a_line_tells_which_bookies_a_publish_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        process, answers = world.process(), Answers()
        ledger = await process.open()
        process.client.tail().held = True
        ledger.append(b"one", answers(b"one"))
        ledger.append(b"two", answers(b"two"))
        await asyncio.sleep(2.0)
        process.client.tail().release()
        await asyncio.sleep(0.01)
        assert answers.order == [b"one", b"two"]

    run(scenario)
    (event,) = events(caplog)
    bookies = {name: event.pop(name) for name in list(event) if name.startswith("bookies_")}
    assert event == {
        "operation": "publish",
        "took_ms": 2000.0,
        "ledger_name": NAME,
        "ledger": 3,
        "first": 0,
        "entries": 2,
        "bytes": 6,
        "limit_ms": 0.0,
        "wait_ms": 0.0,
        "ledger_ms": 2000.0,
        "answer_ms": 0.0,
    }
    assert sorted(bookies) == ["bookies_last", "bookies_stored", "bookies_waiting"]


def test_the_time_that_a_limit_held_a_publish_back_counts(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        process, answers = world.process(), Answers()
        ledger = await process.open()
        for held_s in (1.5, 0.5):
            ledger.held(held_s)
            ledger.append(b"x", answers(b"x"))
            await asyncio.sleep(0.5)

    run(scenario)
    assert [(event["limit_ms"], event["took_ms"]) for event in events(caplog)] == [(1500.0, 1500.0)]


def test_publishes_that_fail_after_a_long_wait_are_logged_with_the_error(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        process, answers = world.process(), Answers()
        ledger = await process.open()
        world.away(True)
        process.client.tail().held = True
        process.client.tail().fail(BookieUnavailableError("gone"))
        ledger.append(b"x", answers(b"x"))
        await asyncio.sleep(60.0)
        assert answers.failed

    run(scenario)
    (event,) = events(caplog)
    assert event["entries"] == 1 and event["took_ms"] >= 1000.0
    assert "no new ledger" in event["error"]


def test_an_append_that_waits_for_a_new_ledger_shows_the_wait(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        process, answers = world.process(), Answers()
        ledger = await process.open()
        world.away(True)
        process.client.tail().fail(BookieUnavailableError("gone"))
        ledger.append(b"x", answers(b"x"))
        await asyncio.sleep(5.0)
        world.away(False)
        await asyncio.sleep(60.0)
        assert answers.order == [b"x"]

    run(scenario)
    (event,) = events(caplog)
    assert event["wait_ms"] >= 5000.0 > event["ledger_ms"]
