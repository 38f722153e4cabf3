"""Slow adds and reads of a bookie: one line each, with the parts of the duration."""

import asyncio
import logging
from typing import Any

import pytest

from quire_bookie.model import EntryId
from quire_bookie.server.requests.slow_adds import parts
from quire_bookie.settings.service import ServiceSettings
from quire_bookie.settings.slow import SlowSettings
from quire_bookie.wire import client_codec
from tests.unit.bookie.server.scene import LEDGER, Scene, adds

ALL = ServiceSettings(slow=SlowSettings(1e-9))
"""Every operation is slow."""


def events(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return the fields of the lines so far."""
    return [vars(record)["event"] for record in caplog.records if record.name == "quire.slow"]


def test_the_parts_of_an_add_make_up_its_duration() -> None:
    found = parts(arrived_s=10.0, waited_s=0.5, group=(12.0, 15.0), now_s=15.25)
    assert found == {"space_s": 0.5, "queue_s": 1.5, "journal_s": 3.0, "answer_s": 0.25}


@pytest.mark.parametrize("group", [None, (9.0, 9.5)])
def test_an_add_whose_group_is_unknown_shows_only_its_wait_for_space(group: tuple[float, float] | None) -> None:
    assert parts(10.0, 0.5, group, 11.0) == {"space_s": 0.5}


@pytest.mark.parametrize("batches", [True, False])
async def test_a_slow_add_names_its_ledger_and_the_time_of_its_journal_group(
    batches: bool, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(ALL)
    scene.batches = batches
    await scene.handle(adds(0, 3))
    now_s = asyncio.get_running_loop().time()
    scene.journal.group_s = (now_s, now_s)
    scene.journal.settle()
    await scene.turn()
    (event,) = events(caplog)
    assert {name: event[name] for name in ("operation", "client", "ledger", "first", "entries", "unsent_bytes")} == {
        "operation": "add",
        "client": "client",
        "ledger": LEDGER,
        "first": 0,
        "entries": 3,
        "unsent_bytes": 0,
    }
    assert event["journal_ms"] == 0.0 and event["queue_ms"] >= 0.0 and event["answer_ms"] >= 0.0


async def test_a_read_from_memory_and_one_in_turn_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(ALL)
    await scene.stored(adds(0, 3))
    caplog.clear()
    scene.storage.cached.add((LEDGER, EntryId(1)))
    await scene.handle(client_codec.v2_read(LEDGER, EntryId(1)))
    await scene.handle(client_codec.v2_read(LEDGER, EntryId(2)))
    memory, disk = events(caplog)
    assert (memory["operation"], memory["first"], "disk_ms" in memory) == ("read", 1, False)
    assert (disk["operation"], disk["first"], disk["status"]) == ("read", 2, "OK")
    assert min(disk["queue_ms"], disk["memory_ms"], disk["disk_ms"]) >= 0.0


async def test_nothing_is_logged_below_the_limit_or_without_one(caplog: pytest.LogCaptureFixture) -> None:
    for settings in (SlowSettings(0.0), SlowSettings(3600.0)):
        scene = Scene(ServiceSettings(slow=settings))
        with caplog.at_level(logging.DEBUG):
            await scene.stored(adds(0, 3))
        assert events(caplog) == [] and not scene.bookie.slow.counts
