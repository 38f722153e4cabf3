"""Adds: what is checked, in which order, and when the answer leaves."""

from quire_bookie.errors import DiskFullError, JournalPoisonedError
from quire_bookie.model import EntryId
from quire_bookie.server.replaying import ReplayTarget
from quire_bookie.wire.messages import AddResponse, Status
from tests.unit.bookie.server.fakes import FakeJournal, FakeStorage
from tests.unit.bookie.server.scene import LEDGER, Scene, adds, fencing_read


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


async def test_nothing_is_acknowledged_that_a_replay_would_not_place_because_its_key_found_no_space(
    scene: Scene,
) -> None:
    await scene.handle(adds(0) + adds(5) + fencing_read())
    # The key's group was refused, the records behind it got space.
    scene.journal.settle(DiskFullError("no space"), None)
    await scene.turn()
    assert scene.statuses() == []
    acknowledged: set[EntryId] = set()
    for outcomes in ([DiskFullError("no space"), None], [None], [None]):  # once more without space, then with
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
    """What the next run would find after a crash that lost everything but the journal."""
    storage = FakeStorage()
    target = ReplayTarget(storage)
    for record in journal.durable:
        await target.deliver(record)
    return storage
