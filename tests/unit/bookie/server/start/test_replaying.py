"""Tests of replay: records reach storage again, in any number of repetitions."""

import asyncio

import pytest

from quire_bookie.errors import DamagedError
from quire_bookie.journal import (
    EntryRecord,
    ExplicitLacRecord,
    FenceRecord,
    JournalPosition,
    JournalPositions,
    MasterKeyRecord,
)
from quire_bookie.journal.records import JournalRecord
from quire_bookie.model import NO_ENTRY, EntryId, LedgerId, Run
from quire_bookie.server.start.replaying import JournalMarks, ReplayTarget
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo
from tests.unit.bookie.server.fakes import FakeStorage

LEDGER = LedgerId(4)
PACKET = (4).to_bytes(8, "big") + (9).to_bytes(8, "big")
RECORDS: tuple[JournalRecord, ...] = (
    MasterKeyRecord(LEDGER, b"key"),
    EntryRecord(Run(LEDGER, EntryId(0), [b"a", b"b"], EntryId(-1), 2)),
    FenceRecord(LEDGER),
    ExplicitLacRecord(LEDGER, PACKET),
)


async def test_everything_is_applied_and_a_second_time_changes_nothing() -> None:
    storage = FakeStorage()
    for _ in range(2):
        target = ReplayTarget(storage)
        for record in RECORDS:
            await target.deliver([record])
        info = storage.infos[LEDGER]
        assert (info.master_key, info.fenced, info.explicit_lac, info.explicit_lac_entry) == (b"key", True, PACKET, 9)
        assert storage.entries == {(LEDGER, 0): b"a", (LEDGER, 1): b"b"}
        assert (target.entries, target.orphans) == (2, 0)


async def test_a_full_cache_is_flushed_and_nothing_is_dropped() -> None:
    storage = FakeStorage()
    target = ReplayTarget(storage)
    await target.deliver([RECORDS[0]])
    storage.has_space = False
    await target.deliver([RECORDS[1]])
    assert len(storage.entries) == 2


class SlowStorage(FakeStorage):
    """Answers no load before all ledgers of a group were asked for, if they are asked for together."""

    def __init__(self, ledgers: int) -> None:
        super().__init__()
        self.all_asked = asyncio.Event()
        self.left = ledgers
        self.damaged: LedgerId | None = None

    async def load_ledger(self, ledger_id: LedgerId, covered: EntryId = NO_ENTRY) -> LedgerInfo | None:
        """Load once every ledger was asked for."""
        self.left -= 1
        if self.left <= 0:
            self.all_asked.set()
        await self.all_asked.wait()
        if ledger_id == self.damaged:
            raise DamagedError("index", 0, f"the state of ledger {ledger_id} does not match its checksum")
        return await super().load_ledger(ledger_id, covered)


def _group_of(ledgers: int) -> list[JournalRecord]:
    """Return one entry of each ledger, twice."""
    ids = [LedgerId(ledger) for ledger in range(ledgers)] * 2
    return [EntryRecord(Run(ledger, EntryId(at // ledgers), [b"a"], EntryId(-1), 1)) for at, ledger in enumerate(ids)]


async def test_the_ledgers_of_a_group_are_loaded_together() -> None:
    storage = SlowStorage(20)
    for ledger in range(20):
        storage.create_ledger(LedgerId(ledger), b"key")
    storage.hidden.update(storage.infos)
    target = ReplayTarget(storage)
    await asyncio.wait_for(target.deliver(_group_of(20)), 30)
    assert target.entries == len(storage.entries) == 40


async def test_a_ledger_whose_state_is_damaged_ends_the_replay_once_all_loads_ended() -> None:
    storage = SlowStorage(20)
    storage.damaged = LedgerId(7)
    with pytest.raises(DamagedError, match="ledger 7 "):
        await asyncio.wait_for(ReplayTarget(storage).deliver(_group_of(20)), 30)
    assert storage.left == 0 and not storage.entries


async def test_entries_of_a_deleted_or_unknown_ledger_are_counted_and_skipped() -> None:
    storage = FakeStorage()
    target = ReplayTarget(storage)
    await target.deliver([RECORDS[1]])
    storage.create_ledger(LEDGER, b"key").deleted = True
    for record in RECORDS[1:]:
        await target.deliver([record])
    assert target.orphans == 4
    assert storage.entries == {}
    assert storage.infos[LEDGER].explicit_lac is None


async def test_the_mark_moves_to_the_positions_at_the_swap_and_not_at_the_commit() -> None:
    class Journals:
        current: JournalPositions = (JournalPosition(1, 4096, 0), JournalPosition(7, 8192, 3))
        marked: JournalPositions | None = None

        def position(self) -> JournalPositions:
            return self.current

        async def set_mark(self, positions: JournalPositions, /) -> None:
            self.marked = positions

    journals = Journals()
    marks = JournalMarks(journals)
    captured = marks.capture()
    journals.current = (JournalPosition(2, 4096, 9), JournalPosition(7, 8192, 3))
    await marks.commit(captured)
    assert journals.marked == (JournalPosition(1, 4096, 0), JournalPosition(7, 8192, 3))


async def test_records_before_the_key_of_their_ledger_are_delivered_a_second_time() -> None:
    key, others = RECORDS[0], RECORDS[1:]
    storage = FakeStorage()
    target = ReplayTarget(storage)
    for record in (*others, key):
        await target.deliver([record])
    assert storage.entries == {}
    assert target.again()
    for record in (*others, key):
        await target.deliver([record])
    info = storage.infos[LEDGER]
    assert (info.fenced, info.explicit_lac) == (True, PACKET)
    assert storage.entries == {(LEDGER, 0): b"a", (LEDGER, 1): b"b"}
    assert (target.entries, target.orphans) == (2, 0)


async def test_records_that_never_get_a_key_are_not_delivered_again() -> None:
    target = ReplayTarget(FakeStorage())
    for record in RECORDS[1:]:
        await target.deliver([record])
    await target.deliver([MasterKeyRecord(LedgerId(LEDGER + 1), b"key")])
    assert not target.again()


async def test_in_limbo_entries_are_kept_although_the_key_of_their_ledger_was_lost() -> None:
    storage = FakeStorage()
    storage.limbo.add(LEDGER)
    target = ReplayTarget(storage)
    for record in RECORDS[1:]:
        await target.deliver([record])
    info = storage.infos[LEDGER]
    assert storage.entries == {(LEDGER, 0): b"a", (LEDGER, 1): b"b"}
    assert info.key_unknown and info.fenced and info.explicit_lac == PACKET
    assert (target.entries, target.orphans) == (2, 0)
    await target.deliver([RECORDS[0]])  # another journal had it
    assert info.master_key == b"key" and not info.key_unknown
    assert not target.again()


async def test_in_limbo_a_fence_alone_makes_no_ledger() -> None:
    storage = FakeStorage()
    storage.limbo.add(LEDGER)
    await ReplayTarget(storage).deliver([FenceRecord(LEDGER)])
    assert not storage.infos, "limbo fences it anyway; without a key it would refuse the copies of a recovery"


async def test_in_limbo_a_superfluous_copy_whose_revival_was_lost_keeps_its_entries() -> None:
    storage = FakeStorage()
    info = storage.create_ledger(LEDGER, b"key")
    info.deleted = info.fenced = info.superfluous = True
    target = ReplayTarget(storage)
    await target.deliver([RECORDS[1]])
    assert storage.entries == {} and target.orphans == 2, "they precede the deletion"
    info.limbo = True
    await target.deliver([RECORDS[1]])
    assert storage.entries == {(LEDGER, 0): b"a", (LEDGER, 1): b"b"} and not info.deleted
    assert info.master_key == b"key" and info.fenced


async def test_a_token_is_replayed_with_the_key_or_after_it_and_never_replaced() -> None:
    storage = FakeStorage()
    target = ReplayTarget(storage)
    other = LedgerId(LEDGER + 1)
    for record in (
        MasterKeyRecord(LEDGER, b"key", b"token"),
        MasterKeyRecord(other, b"key"),
        FenceRecord(other),
        MasterKeyRecord(other, b"key", b"late"),
        MasterKeyRecord(other, b"key", b"later"),
        MasterKeyRecord(LEDGER, b"key"),
    ):
        await target.deliver([record])
    assert (storage.infos[LEDGER].token, storage.infos[other].token) == (b"token", b"late")
