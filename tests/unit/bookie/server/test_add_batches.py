"""Tests of adds of many connections and ledgers in one loop iteration: batched, and refused one by one."""

from quire_bookie.errors import DiskFullError, JournalPoisonedError
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.settings.service import ServiceSettings
from quire_bookie.wire.messages import AddBatch, AddResponse, ReadResponse, Status
from quire_bookie.wire.server_codec import ServerCodec
from tests.unit.bookie.server.fakes import FakeConnection
from tests.unit.bookie.server.scene import Scene, adds, fencing_read

ONE, TWO, THREE = LedgerId(3), LedgerId(4), LedgerId(5)


def arrive(scene: Scene, connection: FakeConnection, data: bytes) -> None:
    """Deliver a buffer, without an await."""
    scene.bookie.handle(connection.real, ServerCodec(batches=True).feed(data))


async def known(scene: Scene, *ledgers: LedgerId) -> None:
    """Store the first entry of these ledgers."""
    await scene.stored(*(adds(0, ledger=ledger) for ledger in ledgers))
    scene.journal.appended.clear()


def answered(connection: FakeConnection) -> dict[LedgerId, list[Status]]:
    """Return the statuses by ledger, one for each entry."""
    found: dict[LedgerId, list[Status]] = {}
    for response in connection.responses():
        assert isinstance(response, AddResponse)
        found.setdefault(response.ledger, []).extend([response.status] * response.count)
    return found


def test_the_codec_returns_the_adds_of_a_buffer_as_a_batch_if_configured() -> None:
    data = adds(0, 2, ledger=ONE) + adds(0, ledger=TWO) + adds(2, ledger=ONE) + adds(9, recovery=True) + adds(1)
    batch, recovery, last = ServerCodec(batches=True).feed(data)
    assert isinstance(batch, AddBatch) and isinstance(last, AddBatch)
    alone = ServerCodec().feed(data)
    assert [*batch.requests(), recovery, *last.requests()] == alone


async def test_adds_of_one_iteration_are_appended_together_and_answered_on_their_connections(scene: Scene) -> None:
    await known(scene, ONE, TWO)
    other = FakeConnection()
    arrive(scene, scene.connection, adds(1, 2, ledger=ONE) + adds(1, ledger=TWO))
    arrive(scene, other, adds(2, 3, ledger=TWO))
    assert scene.journal.appended == []
    assert (scene.connection.unanswered, other.unanswered) == (3, 3)
    await scene.turn()
    assert [ledger for _kind, ledger in scene.journal.appended] == [ONE, TWO, TWO]
    assert scene.connection.sent == other.sent == []
    assert scene.bookie.stats.adds_in_flight_bytes > 0
    scene.journal.settle()
    assert answered(scene.connection) == {ONE: [Status.OK] * 2, TWO: [Status.OK]}
    assert answered(other) == {TWO: [Status.OK] * 3}
    assert (scene.connection.unanswered, other.unanswered) == (0, 0)
    assert scene.bookie.stats.adds_in_flight_bytes == 0
    assert {entry for ledger, entry in scene.storage.entries if ledger == TWO} == {0, 1, 2, 3, 4}


async def test_a_bad_run_fails_alone(scene: Scene) -> None:
    await known(scene, ONE, TWO, THREE)
    scene.storage.infos[TWO].fenced = True
    wrong_key = adds(1, ledger=THREE, key=bytes(20))
    arrive(scene, scene.connection, adds(1, ledger=ONE) + adds(1, 2, ledger=TWO) + wrong_key + adds(1, ledger=THREE))
    await scene.turn()
    assert answered(scene.connection) == {TWO: [Status.FENCED] * 2, THREE: [Status.UNAUTHORIZED]}
    scene.journal.settle()
    assert answered(scene.connection) == {ONE: [Status.OK], THREE: [Status.OK]}
    assert scene.connection.unanswered == 0
    assert scene.bookie.stats.adds_failed == 3


async def test_a_new_ledger_is_loaded_while_known_ones_are_batched(scene: Scene) -> None:
    await known(scene, ONE)
    arrive(scene, scene.connection, adds(0, ledger=TWO) + adds(1, ledger=ONE) + adds(1, ledger=TWO))
    await scene.turn()
    assert [each for each in scene.journal.appended if each[1] == TWO] == [("key", TWO), ("entries", TWO)]
    scene.journal.settle()
    assert answered(scene.connection) == {ONE: [Status.OK], TWO: [Status.OK] * 2}


async def test_a_fence_of_the_same_iteration_comes_after_the_adds_that_arrived_before_it(scene: Scene) -> None:
    await known(scene, ONE)
    other = FakeConnection()
    arrive(scene, scene.connection, adds(1, ledger=ONE))
    arrive(scene, other, fencing_read())
    arrive(scene, scene.connection, adds(2, ledger=ONE))
    await scene.turn()
    assert scene.journal.appended == [("entries", ONE), ("fence", ONE)]
    assert answered(scene.connection) == {ONE: [Status.FENCED]}
    scene.journal.settle()
    await scene.turn()
    assert answered(scene.connection) == {ONE: [Status.OK]}
    assert scene.storage.infos[ONE].last_entry == 1
    (read,) = other.responses()
    assert isinstance(read, ReadResponse)


async def test_adds_of_an_iteration_that_find_no_space_wait_and_lose_nothing(scene: Scene) -> None:
    await known(scene, ONE, TWO)
    scene.storage.has_space = False
    arrive(scene, scene.connection, adds(1, ledger=ONE) + adds(1, ledger=TWO))
    await scene.turn()
    assert scene.bookie.stats.adds_paused == 2
    scene.storage.has_space = True
    scene.bookie.space_freed()
    scene.journal.settle()
    assert answered(scene.connection) == {ONE: [Status.OK], TWO: [Status.OK]}


async def test_adds_beyond_the_bytes_in_flight_wait() -> None:
    scene = Scene(ServiceSettings(adds_in_flight_bytes_max=1))
    await known(scene, ONE)
    await scene.handle(adds(1, ledger=ONE))
    await scene.handle(adds(2, ledger=ONE))
    assert scene.bookie.stats.adds_paused == 1
    scene.journal.settle()
    scene.journal.settle()
    assert answered(scene.connection) == {ONE: [Status.OK] * 2}
    await scene.bookie.close()


async def test_every_add_is_answered_when_the_journal_fails_and_later_ones_at_once(scene: Scene) -> None:
    await known(scene, ONE, TWO)
    arrive(scene, scene.connection, adds(1, 2, ledger=ONE) + adds(1, ledger=TWO))
    await scene.turn()
    arrive(scene, scene.connection, adds(3, ledger=ONE))
    scene.bookie.poison(JournalPoisonedError("gone"))
    scene.journal.settle(JournalPoisonedError("gone"))
    await scene.turn()
    assert answered(scene.connection) == {ONE: [Status.IO_ERROR] * 3, TWO: [Status.IO_ERROR]}
    assert scene.connection.unanswered == 0
    assert scene.bookie.stats.adds_in_flight_bytes == 0


async def test_a_read_only_bookie_refuses_all_of_them(scene: Scene) -> None:
    await known(scene, ONE)
    scene.bookie.read_only = True
    await scene.handle(adds(1, 2, ledger=ONE))
    assert answered(scene.connection) == {ONE: [Status.READ_ONLY] * 2}


async def test_runs_of_a_ledger_whose_key_found_no_space_are_logged_again_and_the_others_answered(
    scene: Scene,
) -> None:
    await known(scene, ONE)
    await scene.handle(adds(0, ledger=TWO))
    await scene.handle(adds(1, ledger=ONE) + adds(1, ledger=TWO))
    # The key's group found no space, the following one did.
    scene.journal.settle(DiskFullError("no space"), None)
    assert answered(scene.connection) == {ONE: [Status.OK]}
    scene.journal.settle()
    assert answered(scene.connection) == {TWO: [Status.OK] * 2}
    assert scene.connection.unanswered == 0


async def test_gathered_adds_are_settled_at_once_when_they_are_large(scene: Scene) -> None:
    await known(scene, ONE)
    many = adds(1, 9000, ledger=ONE)
    arrive(scene, scene.connection, many)
    assert [ledger for _kind, ledger in scene.journal.appended] == [ONE]
    scene.journal.settle()
    assert answered(scene.connection) == {ONE: [Status.OK] * 9000}


async def test_a_negative_entry_id_is_refused_alone_and_its_bytes_are_not_counted(scene: Scene) -> None:
    await known(scene, ONE)
    frame = bytearray(adds(0, ledger=ONE))
    frame[36:44] = (-5).to_bytes(8, "big", signed=True)
    arrive(scene, scene.connection, bytes(frame) + adds(1, ledger=ONE))
    await scene.turn()
    assert answered(scene.connection) == {ONE: [Status.BAD_REQUEST]}
    scene.journal.settle()
    assert scene.connection.responses() == [AddResponse(Status.OK, ONE, EntryId(1), 1)]
    assert scene.bookie.stats.adds_in_flight_bytes == 0


async def test_refusals_of_thousands_of_runs_are_one_response_for_each_status(scene: Scene) -> None:
    await known(scene, ONE, TWO)
    scene.storage.infos[TWO].fenced = True
    data = b"".join(adds(number, ledger=TWO) + adds(number, ledger=ONE, key=bytes(20)) for number in range(2, 602, 2))
    arrive(scene, scene.connection, data)
    await scene.turn()
    assert len(scene.connection.sent) == 2
    assert answered(scene.connection) == {TWO: [Status.FENCED] * 300, ONE: [Status.UNAUTHORIZED] * 300}
    assert (scene.connection.unanswered, scene.bookie.stats.adds_failed) == (0, 600)
    assert scene.journal.appended == []


async def test_buffers_that_are_too_large_together_are_handled_one_by_one_and_in_order(scene: Scene) -> None:
    await known(scene, ONE)
    other = FakeConnection()
    arrive(scene, scene.connection, adds(1, 5000, ledger=ONE))
    assert scene.journal.appended == []
    arrive(scene, other, adds(5001, 5000, ledger=ONE))
    assert len(scene.journal.appended) == 1
    await scene.turn()
    assert len(scene.journal.appended) == 2
    scene.journal.settle()
    assert answered(scene.connection) == answered(other) == {ONE: [Status.OK] * 5000}
