"""Tests of adds: their checks, the order of these, and the time of the response."""

import asyncio

from quire_bookie.errors import DamagedError, DiskFullError, JournalPoisonedError
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.server.start.replaying import ReplayTarget
from quire_bookie.settings.service import ServiceSettings
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo
from quire_bookie.wire import client_codec
from quire_bookie.wire.messages import AddResponse, Status
from tests.unit.bookie.server.fakes import FakeJournal, FakeStorage
from tests.unit.bookie.server.scene import KEY, LEDGER, Scene, adds, entry_bytes, fencing_read


async def test_an_add_is_answered_after_the_sync_and_not_before(scene: Scene) -> None:
    await scene.handle(adds(0, 3))
    assert scene.journal.appended == [("key", LEDGER), ("entries", LEDGER)]
    assert scene.connection.sent == []
    assert scene.connection.unanswered == 3
    scene.journal.settle()
    assert scene.connection.responses() == [AddResponse(Status.OK, LEDGER, EntryId(0), 3)]
    assert scene.connection.unanswered == 0


async def test_the_key_of_a_ledger_is_logged_before_its_first_entries_and_once(scene: Scene) -> None:
    await scene.handle(adds(0) + adds(5))
    await scene.handle(adds(6))
    assert scene.journal.appended == [("key", LEDGER)] + [("entries", LEDGER)] * 3


async def test_a_duplicate_waits_for_the_sync_of_its_own_copy(scene: Scene) -> None:
    await scene.handle(adds(0))
    scene.journal.settle()
    assert scene.statuses() == [Status.OK]
    await scene.handle(adds(0))
    assert scene.statuses() == []
    scene.journal.settle()
    assert scene.statuses() == [Status.OK]


async def test_a_full_disk_is_read_only_to_the_writer(scene: Scene) -> None:
    await scene.handle(adds(0))
    scene.journal.settle(None, DiskFullError("no space"))
    assert scene.statuses() == [Status.READ_ONLY]


async def test_a_poisoned_bookie_answers_io_error_at_once(scene: Scene) -> None:
    await scene.handle(adds(0))
    scene.journal.settle(JournalPoisonedError("gone"))
    scene.bookie.poison(JournalPoisonedError("gone"))
    await scene.handle(adds(5) + fencing_read())
    assert scene.statuses() == [Status.IO_ERROR] * 3
    assert len(scene.journal.appended) == 2


async def test_a_deleted_ledger_is_fenced_to_its_writer_and_missing_to_a_recoverer(scene: Scene) -> None:
    await scene.handle(adds(0))
    scene.journal.settle()
    info = scene.storage.infos[LEDGER]
    info.deleted = info.fenced = True
    await scene.handle(adds(1) + adds(1, recovery=True))
    assert scene.statuses() == [Status.OK, Status.FENCED, Status.NO_LEDGER]


async def test_no_entry_is_acknowledged_that_a_replay_would_drop_because_its_key_found_no_space(
    scene: Scene,
) -> None:
    await scene.handle(adds(0) + adds(5) + fencing_read())
    # The key's group was refused, the following records got space.
    scene.journal.settle(DiskFullError("no space"), None)
    await scene.turn()
    assert scene.statuses() == []
    acknowledged: set[EntryId] = set()
    for outcomes in ([DiskFullError("no space"), None], [None], [None]):  # without space again, then with space
        scene.journal.settle(*outcomes)
        await scene.turn()
        answers = scene.connection.responses()
        acknowledged |= {answer.first for answer in answers if isinstance(answer, AddResponse)}
        replayed = await replayed_from(scene.journal)
        assert {(LEDGER, entry) for entry in acknowledged} <= set(replayed.entries)
    assert acknowledged == {0, 5}
    assert replayed.infos[LEDGER].fenced
    await scene.handle(adds(6, recovery=True))
    assert scene.journal.appended[-1] == ("entries", LEDGER)
    scene.journal.settle()
    assert scene.statuses() == [Status.OK]


async def replayed_from(journal: FakeJournal) -> FakeStorage:
    """Return storage as the next run would replay it after a crash that lost everything but the journal."""
    storage = FakeStorage()
    target = ReplayTarget(storage)
    for record in journal.durable:
        await target.deliver([record])
    return storage


# Permission to add


async def test_a_read_only_bookie_accepts_high_priority_adds_while_it_has_space_for_them(scene: Scene) -> None:
    await scene.stored(adds(0))
    scene.bookie.read_only = True
    await scene.handle(adds(1) + adds(1, recovery=True) + adds(1, recovery=True, high_priority=True))
    scene.journal.settle()
    assert scene.statuses() == [Status.READ_ONLY, Status.READ_ONLY, Status.OK]
    scene.bookie.accepts_high_priority = False
    await scene.handle(adds(2, recovery=True, high_priority=True))
    assert scene.statuses() == [Status.READ_ONLY]
    scene.bookie.read_only = False
    await scene.handle(adds(2))
    scene.journal.settle()
    assert scene.statuses() == [Status.OK]


async def test_a_read_only_bookie_accepts_fences(scene: Scene) -> None:
    await scene.stored(adds(0))
    scene.bookie.read_only = True
    scene.bookie.accepts_high_priority = False
    await scene.handle(fencing_read())
    scene.journal.settle()
    await scene.turn()
    assert scene.statuses() == [Status.OK]
    assert scene.storage.infos[LEDGER].fenced


async def test_a_ledger_in_limbo_is_fenced_to_its_writer_and_restored_by_a_recoverer(scene: Scene) -> None:
    scene.storage.limbo.add(LEDGER)
    await scene.handle(adds(0))
    assert scene.statuses() == [Status.FENCED]
    assert scene.journal.appended == [] and scene.storage.infos == {}
    await scene.handle(adds(0, recovery=True))
    scene.journal.settle()
    assert scene.statuses() == [Status.OK]
    await scene.handle(adds(1))
    assert scene.statuses() == [Status.FENCED]


async def test_another_key_is_unauthorized_unless_the_ledgers_own_was_lost(scene: Scene) -> None:
    await scene.stored(adds(0))
    wrong = bytes(20)
    await scene.handle(adds(1, key=wrong))
    assert scene.statuses() == [Status.UNAUTHORIZED]
    scene.storage.infos[LEDGER].key_unknown = True
    frame = client_codec.v3_add(1, LEDGER, EntryId(1), wrong, entry_bytes(1), recovery=True)
    assert [one.status for one in await scene.ask_v3(frame)] == [Status.UNKNOWN_LEDGER_STATE]
    await scene.handle(client_codec.v2_read(LEDGER, EntryId(0), fence_with=wrong))
    assert scene.statuses() == [Status.IO_ERROR]
    assert not scene.storage.infos[LEDGER].fenced


async def test_negative_ids_and_keys_that_are_too_long_are_bad_requests(scene: Scene) -> None:
    """The stock bookie stores negative entry ids; they are unsigned in our index."""
    for frame in (adds(-5), adds(0, ledger=LedgerId(-1)), adds(-5, recovery=True)):
        await scene.handle(frame)
        assert scene.statuses() == [Status.BAD_REQUEST]
    assert scene.storage.infos == {} and scene.journal.appended == []


async def test_an_entry_without_a_complete_header_is_a_bad_request_that_creates_its_ledger(scene: Scene) -> None:
    (answer,) = await scene.ask_v3(client_codec.v3_add(1, LEDGER, EntryId(0), KEY, entry_bytes(0)[:20]))
    assert answer.status is Status.BAD_REQUEST
    assert LEDGER in scene.storage.infos and scene.storage.entries == {}


async def test_v3_adds_repeat_the_ids_of_the_request_and_store_those_of_the_entry(scene: Scene) -> None:
    await scene.handle(client_codec.v3_add(4, LedgerId(50), EntryId(60), KEY, entry_bytes(2)))
    scene.journal.settle()
    assert scene.connection.responses(3) == [AddResponse(Status.OK, LedgerId(50), EntryId(60), 1, 4)]
    assert (LEDGER, 2) in scene.storage.entries


async def test_recovery_adds_have_their_own_budget() -> None:
    scene = Scene(ServiceSettings(adds_in_flight_bytes_max=1, priority_adds_in_flight_bytes_max=1))
    await scene.stored(adds(0))
    await scene.handle(adds(1))
    assert len(scene.journal.appended) == 3
    await scene.handle(adds(1, recovery=True))
    assert len(scene.journal.appended) == 4, "ledgers can still be recovered on a full bookie"
    await scene.handle(adds(2) + adds(2, recovery=True))
    assert len(scene.journal.appended) == 4
    scene.journal.settle()
    assert scene.statuses() == [Status.OK, Status.OK]
    await scene.bookie.close()


async def test_adds_are_counted_and_timed_per_entry(scene: Scene) -> None:
    await scene.handle(adds(0, 5) + adds(9, 2, recovery=True))
    scene.journal.settle()
    await scene.handle(adds(1, key=bytes(20)))
    stats = scene.bookie.stats
    assert (stats.add_runs, stats.add_entries, stats.recovery_add_entries, stats.adds_failed) == (2, 7, 2, 1)
    assert stats.add_seconds.total == 7


# Superfluous copies that the cluster needs again


async def a_deleted_copy(scene: Scene) -> LedgerInfo:
    """Return a ledger that was deleted here while the cluster still has it."""
    await scene.stored(adds(0, 3))
    info = scene.storage.infos[LEDGER]
    info.deleted = info.fenced = info.superfluous = True
    scene.journal.appended.clear()
    return info


async def test_only_a_recovery_add_revives_a_superfluous_copy(scene: Scene) -> None:
    info = await a_deleted_copy(scene)
    await scene.handle(adds(3) + fencing_read(0))
    scene.journal.settle()
    await scene.turn()
    assert scene.statuses() == [Status.FENCED, Status.NO_LEDGER] and info.deleted
    await scene.handle(adds(1, 2, recovery=True))
    assert not info.deleted and scene.statuses() == []
    scene.journal.settle()
    assert scene.statuses() == [Status.OK]
    assert sorted(entry for _ledger, entry in scene.storage.entries) == [1, 2]
    await scene.handle(adds(3))
    assert scene.statuses() == [Status.FENCED]
    assert scene.bookie.stats.ledgers_revived == 1


async def test_adds_that_arrive_while_a_ledger_is_being_revived_wait_in_order(scene: Scene) -> None:
    await a_deleted_copy(scene)
    scene.storage.blocked_revival = asyncio.Event()
    await scene.handle(adds(1, recovery=True))
    await scene.handle(adds(2, recovery=True) + adds(7))
    scene.journal.settle()
    assert scene.journal.appended == [] and scene.statuses() == []
    scene.storage.blocked_revival.set()
    await scene.turn()
    assert scene.journal.appended == [("entries", LEDGER)] * 2
    scene.journal.settle()
    answers = [answer for answer in scene.connection.responses() if isinstance(answer, AddResponse)]
    assert sorted((answer.first, answer.count, answer.status) for answer in answers) == [
        (1, 2, Status.OK),
        (7, 1, Status.FENCED),
    ]
    assert scene.bookie.stats.ledgers_revived == 1


async def test_a_failed_revival_fails_the_adds_that_wait_for_it(scene: Scene) -> None:
    info = await a_deleted_copy(scene)
    scene.storage.revival_error = DamagedError("log", 0, "test")
    await scene.handle(adds(1, recovery=True))
    assert scene.statuses() == [Status.IO_ERROR] and info.deleted
    scene.storage.revival_error = None
    await scene.handle(adds(1, recovery=True))
    scene.journal.settle()
    assert scene.statuses() == [Status.OK]


async def test_another_key_revives_nothing_unless_the_ledgers_own_was_lost(scene: Scene) -> None:
    info = await a_deleted_copy(scene)
    await scene.handle(adds(1, recovery=True, key=b"x" * 20))
    assert scene.statuses() == [Status.UNAUTHORIZED] and info.deleted
    info.key_unknown = True
    await scene.handle(adds(1, recovery=True, key=b"x" * 20))
    scene.journal.settle()
    assert scene.statuses() == [Status.OK] and info.master_key == b"x" * 20
