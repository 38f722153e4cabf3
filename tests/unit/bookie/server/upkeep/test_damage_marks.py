"""Tests that findings of a scrub are reported to auto-recovery once the metadata store accepts them."""

import asyncio
from typing import Any

import pytest

from quire_bookie.errors import MetadataError, MetadataFormatError, MetadataUnavailableError, MetadataUnknownError
from quire_bookie.metadata.damage_notes import DamageNotes
from quire_bookie.metadata.under_replication import UnderReplication
from quire_bookie.model import BookieId, EntryId, LedgerId
from quire_bookie.server.upkeep.damage_marks import DamageMarks
from quire_bookie.server.upkeep.scrubbing import Scrubbing
from quire_bookie.storage.scrub import Damage
from tests.unit.bookie.server.upkeep.test_scrubbing import FAST, Clock, filled

B = BookieId("b")
NOT_NOW = MetadataUnavailableError("not now")


def damage(ledger: int, first: int, last: int) -> Damage:
    return Damage(LedgerId(ledger), EntryId(first), EntryId(last), "log", 0, "wrong")


async def test_findings_become_notes_and_marks_of_ledgers_that_name_the_bookie() -> None:
    store, metadata = await filled()
    marks = DamageMarks(metadata, Clock(), B)
    for found in (damage(1, 2, 2), damage(1, 5, 6), damage(2, -1, -1), damage(-1, -1, -1), damage(99, 0, 0)):
        marks.found(found)
    assert marks.due == 3
    await marks.report()
    assert (marks.due, marks.reported) == (0, 2), "ledger 99 is deleted, and damage without a ledger is not reported"
    notes = DamageNotes(metadata)
    (first,) = await notes.read(LedgerId(1))
    assert (first.bookie, first.ranges) == (B, ((2, 2), (5, 6)))
    (second,) = await notes.read(LedgerId(2))
    assert second.ranges == ((0, 2**63 - 1),)
    under = UnderReplication(metadata, Clock())
    mark = await under.read(LedgerId(1))
    assert mark is not None and mark.bookies == (B,)
    stranger = DamageMarks(metadata, Clock(), BookieId("stranger"))
    stranger.found(damage(3, 0, 0))
    await stranger.report()
    assert (stranger.due, stranger.reported) == (0, 0) and await under.read(LedgerId(3)) is None
    await store.storage.close()


async def test_findings_are_reported_later_if_the_store_is_unavailable() -> None:
    store, metadata = await filled()
    marks = DamageMarks(metadata, Clock(), B)
    marks.found(damage(1, 2, 2))
    metadata.cut = True
    await marks.report()
    assert (marks.due, marks.reported) == (1, 0)
    metadata.cut = False
    await marks.report()
    assert (marks.due, marks.reported) == (0, 1)
    await store.storage.close()


@pytest.mark.parametrize(
    ("error", "calls"),
    [(MetadataFormatError("invalid mark"), 1), (MetadataUnknownError("no answer"), 1), (NOT_NOW, 2)],
)
async def test_a_ledger_that_cannot_be_reported_delays_no_other(
    monkeypatch: pytest.MonkeyPatch, error: MetadataError, calls: int
) -> None:
    store, metadata = await filled()
    note = DamageNotes.note

    async def note_but_of_ledger_1(self: DamageNotes, ledger: LedgerId, *rest: Any) -> None:
        if ledger == 1:
            raise error
        await note(self, ledger, *rest)

    monkeypatch.setattr(DamageNotes, "note", note_but_of_ledger_1)
    marks = DamageMarks(metadata, Clock(), B)
    for ledger in (1, 2):
        marks.found(damage(ledger, 2, 2))
    for _ in range(calls):
        await marks.report()
    assert (marks.due, marks.reported) == (1, 1)
    monkeypatch.undo()
    await marks.report()
    assert (marks.due, marks.reported) == (0, 2)
    await store.storage.close()


async def test_a_round_of_the_scrub_reports_its_findings() -> None:
    store, metadata = await filled(bad=(1, 2))
    marks = DamageMarks(metadata, Clock(), B)
    work = Scrubbing(store.storage, metadata, store.disk, Clock(), FAST, marks)
    await work.run_round()
    assert (marks.due, marks.reported) == (1, 0)
    await work.damage.report()
    assert (marks.due, marks.reported) == (0, 1)
    (note,) = await DamageNotes(metadata).read(LedgerId(1))
    assert note.ranges == ((2, 2),)
    await store.storage.close()


async def test_findings_that_the_store_did_not_accept_are_reported_before_the_next_round() -> None:
    store, metadata = await filled()
    marks = DamageMarks(metadata, Clock(), B)
    marks.found(damage(1, 2, 2))
    work = Scrubbing(store.storage, metadata, store.disk, Clock(), FAST, marks)
    resting = asyncio.ensure_future(work.damage.run())
    async with asyncio.timeout(60):
        while not marks.reported:  # noqa: ASYNC110  there is no event to wait for
            await asyncio.sleep(0.01)
    assert work.stats.rounds == 0, "the next round is an hour away"
    resting.cancel()
    await asyncio.gather(resting, return_exceptions=True)
    await store.storage.close()
