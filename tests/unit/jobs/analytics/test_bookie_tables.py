"""Responses of a real bookie about its ledgers, and results of a thorough check of its replicas."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from quire_bookie.admin import holdings_api
from quire_bookie.admin.listening import listen, port_of
from quire_bookie.admin.web import BookieWeb
from quire_bookie.client import LedgerClient
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerState, Segment
from quire_bookie.recovery.access import ClusterAccess
from quire_bookie.recovery.fragment_check import Health
from quire_bookie.recovery.ledger_report import Damage
from quire_bookie.settings.client import ClientSettings
from quire_bookie.settings.recovery import RecoverySettings
from quire_jobs.analytics.bookie_tables import PagedQuestions, read_bookies, read_damages, read_responses, rows_of
from tests.support.bookie_world import SETTINGS, BookieWorld

AWAY = BookieId("never.started:3181")


@dataclass(frozen=True)
class World:
    """One bookie with or without an HTTP port, and clients for it."""

    bookie: BookieId
    access: ClusterAccess
    questions: PagedQuestions
    client: LedgerClient

    async def write(self, entries: int) -> LedgerId:
        """Write a closed ledger."""
        writer = await self.client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        for number in range(entries):
            await writer.append(b"%d" % number)
        await writer.close()
        return writer.ledger_id


@asynccontextmanager
async def world_of(*, http: bool) -> AsyncIterator[World]:
    async with AsyncExitStack() as undo:
        listening = listen("127.0.0.1", 0)
        given = replace(SETTINGS, http_port=port_of(listening)) if http else SETTINGS
        world = BookieWorld(settings=given)
        running = await world.start()
        undo.push_async_callback(world.stop)
        assert world.session is not None
        web = BookieWeb(world.session, world.disk, {}, clock=SystemClock(), chance=SystemChance())
        await web.open(listening, None)
        undo.push_async_callback(web.close)
        web.serve(running)
        client = await LedgerClient.open(world.session, clock=SystemClock(), chance=SystemChance())
        undo.push_async_callback(client.close)
        access = await ClusterAccess.open(
            world.session, RecoverySettings(), ClientSettings(), clock=SystemClock(), chance=SystemChance()
        )
        undo.push_async_callback(access.close)
        questions = await undo.enter_async_context(PagedQuestions(access))
        yield World(running.bookie_id, access, questions, client)


async def test_a_bookie_responds_page_by_page_and_ends_with_a_final_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holdings_api, "PAGE_LEDGERS_MAX", 2)
    async with world_of(http=True) as world:
        written = [(await world.write(count), count - 1) for count in (1, 2, 3)]
        pages = [page async for page in read_responses(world.questions, world.bookie, 7)]
    rows = [(world.bookie, 7, ledger, last, True, False, None) for ledger, last in written]
    assert [[row[:4] for row in page] for page in pages[:-1]] == [
        [row[:4] for row in rows[:2]],
        [row[:4] for row in rows[2:]],
    ]
    assert pages[-1] == [(world.bookie, 7, None, None, None, None, None)]


async def test_a_bookie_that_cannot_be_asked_is_silent_with_the_reason() -> None:
    async with world_of(http=False) as world:
        for bookie, reason in ((world.bookie, "has no HTTP port"), (AWAY, "is not registered")):
            ((row,),) = [page async for page in read_responses(world.questions, bookie, 1)]
            assert row[:3] == (bookie, 1, None) and reason in row[6]


async def test_a_check_names_missing_entries_and_unknown_replicas() -> None:
    async with world_of(http=False) as world:
        whole, short, alone = [await world.write(3) for _ in range(3)]
        nodes = world.access.nodes
        found = await nodes.read(short)
        assert found.value.state is LedgerState.CLOSED
        await nodes.update(short, replace(found.value, last_entry=EntryId(4)), found.version)
        found = await nodes.read(alone)
        elsewhere = replace(found.value, segments=(Segment(EntryId(0), (AWAY,)),))
        await nodes.update(alone, elsewhere, found.version)
        chosen = [whole, short, alone, 999]  # the last was deleted meanwhile
        rows = [row async for page in read_damages(world.access, chosen, 0) for row in page]
    (damaged,) = [row for row in rows if row[5] is None]
    assert damaged[:4] == (short, world.bookie, 3, 4) and damaged[4].startswith("lacking: ")
    assert [row[:5] for row in rows if row[5] is not None] == [(alone, AWAY, None, None, None)]


def test_a_silent_bookie_is_reported_once_and_later_damage_still_counts() -> None:
    other = BookieId("b:3181")

    def one(bookie: BookieId, first: int, health: Health) -> Damage:
        return Damage(bookie, EntryId(first), EntryId(first + 999), health, "why")

    silent: set[BookieId] = set()
    begun = rows_of(7, [one(AWAY, 0, Health.UNKNOWN), one(other, 0, Health.LACKING)], silent)
    assert begun == [(7, AWAY, None, None, None, "why"), (7, other, 0, 999, "lacking: why", None)]
    assert rows_of(7, [one(AWAY, 1000, Health.LIMBO)], silent) == [(7, AWAY, 1000, 1999, "limbo: why", None)]
    assert rows_of(7, [one(AWAY, 2000, Health.LACKING)], silent) == [(7, AWAY, 2000, 2999, "lacking: why", None)]
    assert rows_of(7, [one(AWAY, 3000, Health.GONE)], silent) == []
    assert rows_of(7, [one(other, 3000, Health.GONE)], silent) == [(7, other, None, None, None, "why")]


async def test_a_bookie_has_its_space_or_the_reason_why_not() -> None:
    async with world_of(http=False) as world:
        (row,) = await read_bookies(world.access)
    assert row[:2] == (world.bookie, "writable") and 0 < row[2] <= row[3] and row[4] is None
