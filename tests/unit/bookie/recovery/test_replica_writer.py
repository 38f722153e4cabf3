"""Tests copies on one bookie over a link that only records: which count as stored, and which are sent again."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from quire_bookie.client.ledger_entry import LedgerEntry, StoredRun
from quire_bookie.client.ledger_handle import LedgerHandle
from quire_bookie.client.links.bookie_link import Purpose
from quire_bookie.client.links.bound_links import BoundLinks
from quire_bookie.errors import BookieIoError, LedgerError, TooManyRequestsError
from quire_bookie.model import BookieId, Buffer, DigestType, EntryId, LedgerId
from quire_bookie.recovery.replica_writer import ReplicaWriter
from quire_bookie.settings.client import ClientSettings
from quire_bookie.wire.digest import Digest, master_key
from quire_bookie.wire.messages import AddRequest
from quire_bookie.wire.server_codec import ServerCodec

BOOKIE, LEDGER = BookieId("b"), LedgerId(7)


class Link:
    """Records the sent frames and the timers."""

    def __init__(self) -> None:
        self.sent: list[list[tuple[int, bytes]]] = []
        self.timers: list[Callable[[], None]] = []

    def link(self, bookie: BookieId, purpose: Purpose) -> "Link":
        """Return this link."""
        assert (bookie, purpose) == (BOOKIE, Purpose.RECOVERY)
        return self

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Record the callback; the test calls it."""
        self.timers.append(callback)

    def send_adds(self, ledger: LedgerId, frames: Buffer, sink: object) -> None:
        """Record the frames."""
        adds = [request for request in ServerCodec().feed(bytes(frames)) if isinstance(request, AddRequest)]
        assert all(add.run.ledger == ledger == LEDGER and add.recovery for add in adds)
        self.sent.append([(add.run.first + at, bytes(one)) for add in adds for at, one in enumerate(add.run.entries)])

    def forget_sink(self, ledger: LedgerId, sink: object) -> None:
        """Do nothing."""

    @property
    def ids(self) -> list[list[int]]:
        """The ids of the entries sent, by frame."""
        return [[entry for entry, _ in one] for one in self.sent]


def entries(first: int, count: int) -> list[LedgerEntry]:
    """Return entries, each with its own LAC and length."""
    return [
        LedgerEntry(LEDGER, EntryId(at), EntryId(at - 2), 100 * at + 9, memoryview(b"entry %d" % at))
        for at in range(first, first + count)
    ]


def writer_on(link: Link) -> ReplicaWriter:
    """Return a writer for a ledger with CRC32C digests."""
    handle = LedgerHandle(
        LEDGER,
        Digest(DigestType.CRC32C, b""),
        master_key(b""),
        cast("BoundLinks", link),
        cast(Any, None),  # it copies, and decides nothing
        ClientSettings(),
        cast(Any, None),
        cast(Any, None),
    )
    return ReplicaWriter(handle, BOOKIE)


async def test_entries_are_stored_as_they_were_read_and_each_counts_by_its_own_answer() -> None:
    link = Link()
    writer = writer_on(link)
    storing = asyncio.ensure_future(writer.store(entries(5, 3)))
    await asyncio.sleep(0)
    digest = Digest(DigestType.CRC32C, b"")
    for (_, stored), entry in zip(link.sent[0], entries(5, 3), strict=True):
        found = digest.decode_entry(stored, LEDGER, entry.entry_id)
        assert (found.lac, found.length, found.payload) == (entry.lac, entry.length, entry.payload)
    for first, count in ((7, 1), (5, 1), (5, 1), (90, 3)):
        writer.adds_stored(BOOKIE, EntryId(first), count)
    await asyncio.sleep(0)
    assert not storing.done()
    writer.adds_stored(BOOKIE, EntryId(6), 1)
    await storing


async def test_only_temporarily_refused_adds_are_sent_again() -> None:
    link = Link()
    writer = writer_on(link)
    stores = [asyncio.ensure_future(writer.store(entries(first, 4))) for first in (0, 4)]
    await asyncio.sleep(0)
    writer.adds_refused(BOOKIE, EntryId(2), 4, TooManyRequestsError("busy"))
    for first, count in ((0, 2), (6, 2), (3, 1)):  # 3 was stored after all
        writer.adds_stored(BOOKIE, EntryId(first), count)
    link.timers.pop()()
    assert link.ids == [[0, 1, 2, 3], [4, 5, 6, 7], [2, 4, 5]]
    assert link.sent[2][0] == link.sent[0][2]
    writer.adds_stored(BOOKIE, EntryId(2), 1)
    await stores[0]
    writer.adds_stored(BOOKIE, EntryId(4), 2)
    await stores[1]


@pytest.mark.parametrize("lost", [True, False])
async def test_a_refusal_or_a_lost_connection_fails_every_batch_under_way(lost: bool) -> None:
    link = Link()
    writer = writer_on(link)
    stores = [asyncio.ensure_future(writer.store(entries(first, 2))) for first in (0, 2)]
    await asyncio.sleep(0)
    writer.adds_stored(BOOKIE, EntryId(0), 1)
    if lost:
        writer.link_lost(BOOKIE, BookieIoError("gone"))
    else:
        writer.adds_refused(BOOKIE, EntryId(1), 1, BookieIoError("disk"))
    for store in stores:
        with pytest.raises(LedgerError):
            await store
    with pytest.raises(LedgerError):
        await writer.store(entries(9, 1))


def run_of(first: int, count: int) -> StoredRun:
    """Return the same entries as bookies store them."""
    digest = Digest(DigestType.CRC32C, b"")
    stored: list[Buffer] = [
        digest.encode_entry(LEDGER, one.entry_id, one.lac, one.length, (one.payload,)) + one.payload
        for one in entries(first, count)
    ]
    return StoredRun(EntryId(first), stored, sum(len(one.payload) for one in entries(first, count)))


async def test_a_run_is_sent_as_it_is_stored_and_its_answers_may_come_in_any_pieces_and_twice() -> None:
    for answers in (
        [(0, 9)],  # includes entries of other batches
        [(3, 1), (3, 1), (4, 1), (3, 2), (2, 2), (5, 9)],
        [(6, 1), (4, 2), (3, 1)],
        [(4, 1), (6, 3), (5, 1), (4, 1), (0, 4)],
    ):
        link = Link()
        writer = writer_on(link)
        storing = asyncio.ensure_future(writer.store_run(run_of(3, 4)))
        await asyncio.sleep(0)
        assert [stored for _, stored in link.sent[0]] == [bytes(one) for one in run_of(3, 4).entries]
        answered: set[int] = set()
        for first, count in answers:
            assert not storing.done()
            writer.adds_stored(BOOKIE, EntryId(first), count)
            answered |= set(range(first, first + count))
            await asyncio.sleep(0)
            assert storing.done() is (answered >= {3, 4, 5, 6})
        await storing


async def test_of_a_refused_run_only_entries_without_a_response_are_sent_again() -> None:
    link = Link()
    writer = writer_on(link)
    storing = asyncio.ensure_future(writer.store_run(run_of(0, 6)))
    await asyncio.sleep(0)
    for refused, stored in ((2, 4), (0, 1)):
        writer.adds_refused(BOOKIE, EntryId(refused), 2, TooManyRequestsError("busy"))
        writer.adds_stored(BOOKIE, EntryId(stored), 1)
        link.timers.pop()()
    assert link.ids == [[0, 1, 2, 3, 4, 5], [2, 3], [0]]
    assert link.sent[1] == link.sent[0][2:4]
    for first, count in ((5, 1), (2, 2)):
        writer.adds_stored(BOOKIE, EntryId(first), count)
        await asyncio.sleep(0)
        assert not storing.done()
    writer.adds_stored(BOOKIE, EntryId(0), 1)
    await storing


async def test_a_bookie_is_given_up_when_its_oldest_batch_has_waited_too_long() -> None:
    link = Link()
    writer = writer_on(link)
    timeout_s = ClientSettings().add_timeout_s
    began_s = asyncio.get_running_loop().time()
    stores = [asyncio.ensure_future(writer.store_run(run_of(first, 2))) for first in (0, 2)]
    assert not writer.owes(BOOKIE)
    await asyncio.sleep(0)
    assert writer.owes(BOOKIE)
    assert not writer.check_overdue(BOOKIE, began_s + timeout_s / 2)
    writer.adds_stored(BOOKIE, EntryId(2), 2)
    await stores[1]
    assert writer.check_overdue(BOOKIE, asyncio.get_running_loop().time() + timeout_s)
    with pytest.raises(LedgerError):
        await stores[0]
    assert not writer.check_overdue(BOOKIE, began_s + 9 * timeout_s)
    assert not writer.owes(BOOKIE)
