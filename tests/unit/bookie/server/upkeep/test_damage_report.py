"""Tests that damage found by a scrub or a read is listed, reported within seconds, and checked until repaired."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from quire_bookie import limits
from quire_bookie.errors import DamagedError
from quire_bookie.metadata.damage_notes import DamageNotes
from quire_bookie.metadata.under_replication import UnderReplication
from quire_bookie.model import BookieId, EntryId, LedgerId
from quire_bookie.server.upkeep.damage_marks import DamageMarks
from quire_bookie.server.upkeep.scrubbing import Scrubbing
from tests.sim.loop import SimLoop
from tests.sim.metadata import SimMetadataStore
from tests.unit.bookie.server.upkeep.test_scrubbing import FAST, Clock, entry_of, filled
from tests.unit.bookie.storage.rebuilt_stores import log_paths
from tests.unit.bookie.storage.store import Store

B = BookieId("b")


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario on virtual time."""
    loop = SimLoop(seed=1)
    try:
        loop.run_until_complete(scenario)
    finally:
        loop.close()


def corrupt(store: Store, ledger: int, entry: int) -> None:
    """Flip a bit of an entry in its log."""
    body = entry_of(ledger, entry)
    for path in log_paths(store.disk):
        at = store.disk.content(path).find(body)
        if at >= 0:
            store.disk.corrupt(path, at + 90)


async def scrubbed() -> tuple[Store, SimMetadataStore, Scrubbing]:
    """Return four ledgers in logs, the newest of which is still written, and the scrub with its report."""
    store, metadata = await filled()
    work = Scrubbing(store.storage, metadata, store.disk, Clock(), FAST, DamageMarks(metadata, Clock(), B))
    store.storage.on_damage = work.damage.read_failed
    return store, metadata, work


async def meet(store: Store, ledger: int, entry: int) -> None:
    """Read a damaged entry."""
    with pytest.raises(DamagedError):
        await store.read(ledger, entry)


def test_damage_found_by_a_read_is_listed_and_reported_within_seconds() -> None:
    async def scenario() -> None:
        store, metadata, work = await scrubbed()
        corrupt(store, 1, 5)
        reporting = asyncio.ensure_future(work.damage.run())
        for _ in range(3):
            await meet(store, 1, 5)
        (finding,) = work.damage.findings
        assert (finding.ledger, finding.first, finding.last) == (1, 5, 5) and finding.path.endswith(".qlog")
        assert (work.damage.stats.damages, work.damage.stats.by_reads) == (1, 1)
        await asyncio.sleep(limits.DAMAGE_REPORT_INTERVAL_S)
        (note,) = await DamageNotes(metadata).read(LedgerId(1))
        assert (note.bookie, note.ranges) == (B, ((5, 5),))
        mark = await UnderReplication(metadata, Clock()).read(LedgerId(1))
        assert mark is not None and mark.bookies == (B,)
        reporting.cancel()
        await asyncio.wait((reporting,))
        await store.storage.close()

    run(scenario())


def test_a_finding_leaves_the_list_once_its_entries_are_repaired() -> None:
    async def scenario() -> None:
        store, _, work = await scrubbed()
        corrupt(store, 1, 5)
        corrupt(store, 2, 7)
        await meet(store, 1, 5)
        await meet(store, 2, 7)
        reporting = asyncio.ensure_future(work.damage.run())
        await store.put(1, 5, [entry_of(1, 5)])  # as a recovery add of auto-recovery does
        await asyncio.sleep(2 * limits.DAMAGE_CHECK_INTERVAL_S)
        assert [(found.ledger, found.first) for found in work.damage.findings] == [(2, 7)]
        assert work.damage.stats.repaired == 1
        reporting.cancel()
        await asyncio.wait((reporting,))
        assert [(found.ledger, found.first) for found in await work.run_round()] == [(2, 7)]
        await store.storage.close()

    run(scenario())


def test_damage_that_lasts_is_reported_again() -> None:
    async def scenario() -> None:
        store, metadata, work = await scrubbed()
        corrupt(store, 1, 5)
        reporting = asyncio.ensure_future(work.damage.run())
        await meet(store, 1, 5)
        await asyncio.sleep(limits.DAMAGE_REPORT_INTERVAL_S)
        notes = DamageNotes(metadata)
        (note,) = await notes.read(LedgerId(1))
        await notes.clear(LedgerId(1), note)
        await asyncio.sleep(limits.DAMAGE_REPORTED_AGAIN_S + 2 * limits.DAMAGE_CHECK_INTERVAL_S)
        assert [found.ranges for found in await notes.read(LedgerId(1))] == [((5, 5),)]
        reporting.cancel()
        await asyncio.wait((reporting,))
        await store.storage.close()

    run(scenario())


def test_an_intact_copy_in_the_read_cache_does_not_hide_damage_that_the_scrub_found() -> None:
    async def scenario() -> None:
        store, _, work = await scrubbed()
        await store.storage.flush()
        assert await store.read(1, 5) == entry_of(1, 5)
        corrupt(store, 1, 5)
        assert await store.read(1, 5) == entry_of(1, 5), "from the cache"
        assert [(found.ledger, found.first) for found in await work.run_round()] == [(1, 5)]
        await meet(store, 1, 5)
        await work.damage.check_again()
        assert len(work.damage.findings) == 1
        await store.storage.close()

    run(scenario())


def test_the_list_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(limits, "SCRUB_REPORT_MAX", 2)
        store, _, work = await scrubbed()
        for entry in range(4):
            work.damage.read_failed(LedgerId(1), EntryId(entry), DamagedError("log", entry, "wrong"))
        assert [found.first for found in work.damage.findings] == [0, 1]
        await store.storage.close()

    run(scenario())
