"""Tests of the limit on small requests per loop iteration: others follow in order later, with the socket paused."""

from quire_bookie.limits import READ_SHARE_BESIDE_ADDS, READS_PER_TURN, REQUESTS_PER_TURN
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.server.requests.connections import PAUSED_BY_TURN
from quire_bookie.wire import client_codec, client_v3
from quire_bookie.wire.messages import ReadLacResponse, Status
from quire_bookie.wire.server_codec import ServerCodec
from tests.unit.bookie.server.fakes import FakeConnection
from tests.unit.bookie.server.scene import KEY, LEDGER, Scene, adds, entry_bytes

MANY = 3 * REQUESTS_PER_TURN + 7


def read_lacs(count: int) -> bytes:
    """Return small requests of V3."""
    return b"".join(client_v3.read_lac(transaction, LedgerId(99)) for transaction in range(count))


def arrive(scene: Scene, connection: FakeConnection, data: bytes) -> None:
    """Deliver a buffer, without an await."""
    scene.bookie.handle(connection.real, ServerCodec(batches=True).feed(data))


async def test_a_buffer_of_thousands_of_requests_takes_several_iterations_and_loses_none(scene: Scene) -> None:
    arrive(scene, scene.connection, read_lacs(MANY))
    assert scene.connection.paused & PAUSED_BY_TURN
    assert scene.connection.unanswered > 0
    for _ in range(4):
        await scene.turn()
    assert not scene.connection.paused & PAUSED_BY_TURN
    answers = scene.connection.responses(3)
    assert len(answers) == MANY
    assert all(isinstance(answer, ReadLacResponse) and answer.status is Status.NO_ENTRY for answer in answers)
    assert scene.connection.unanswered == 0


async def test_another_connection_gets_its_turn_meanwhile(scene: Scene) -> None:
    other = FakeConnection()
    arrive(scene, scene.connection, read_lacs(MANY))
    arrive(scene, other, read_lacs(1))
    assert other.sent == []
    behind: list[object] = list(scene.bookie._waiting)
    scene.bookie._next_turn()
    scene.bookie._next_turn()
    assert behind == [scene.connection, other]
    left: list[object] = list(scene.bookie._waiting)
    assert left == [scene.connection]


async def test_adds_that_arrive_after_waiting_requests_stay_behind_them_and_in_order(scene: Scene) -> None:
    first, second, third = (
        client_v3.add(number, LedgerId(3), EntryId(number), KEY, entry_bytes(number)) for number in range(3)
    )
    arrive(scene, scene.connection, read_lacs(MANY) + first)
    arrive(scene, scene.connection, second)
    assert scene.journal.appended == []
    arrive(scene, scene.connection, third)
    for _ in range(4):
        await scene.turn()
    assert [kind for kind, _ledger in scene.journal.appended] == ["key"] + ["entries"] * 3
    scene.journal.settle()
    await scene.turn()
    assert scene.storage.infos[LedgerId(3)].last_entry == 2
    assert scene.connection.unanswered == 0


async def test_an_iteration_answers_fewer_reads_while_adds_wait_for_the_journal(scene: Scene) -> None:
    await scene.stored(adds(0, 100))
    scene.storage.cached = set(scene.storage.entries)
    reads = ServerCodec().feed(b"".join(client_codec.v2_read(LEDGER, EntryId(entry)) for entry in range(100)))
    scene.bookie.handle(scene.connection.real, reads)
    assert len(scene.connection.responses()) == 100
    await scene.turn()
    await scene.handle(adds(100))
    scene.bookie.handle(scene.connection.real, reads)
    assert len(scene.connection.responses()) == READS_PER_TURN // READ_SHARE_BESIDE_ADDS
    for _ in range(4):
        await scene.turn()
    assert len(scene.connection.responses()) == 100 - READS_PER_TURN // READ_SHARE_BESIDE_ADDS
