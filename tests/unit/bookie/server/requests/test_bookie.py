"""Tests that the bookie dispatches each request to its handler."""

from quire_bookie.errors import DamagedError
from quire_bookie.model import NO_ENTRY, EntryId, IdCounters, IdReport, LedgerId
from quire_bookie.wire import client_codec, client_v3
from quire_bookie.wire.messages import BatchReadResponse, BookieInfoResponse, Status
from tests.unit.bookie.server.scene import DIGEST, KEY, LEDGER, Scene, adds, entry_bytes


async def test_bookie_info_reports_ledger_ids_if_requested(scene: Scene) -> None:
    await scene.stored(adds(0))
    report = IdReport(LEDGER, LedgerId(-1), IdCounters())
    (answer,) = await scene.ask_v3(client_v3.id_marks(1))
    assert answer == BookieInfoResponse(Status.OK, None, None, 1, report)
    scene.storage.hidden.add(LEDGER)
    scene.storage.limbo.add(LedgerId(500))
    for ledger, known in ((LEDGER, True), (LedgerId(499), False), (LedgerId(500), True)):
        (answer,) = await scene.ask_v3(client_v3.id_marks(2, ledger))
        assert isinstance(answer, BookieInfoResponse) and answer.ids is not None
        assert (answer.status, answer.ids.ledger_known) == (Status.OK, known)
    scene.storage.infos[LEDGER].deleted = True
    (answer,) = await scene.ask_v3(client_v3.id_marks(3, LEDGER))
    assert isinstance(answer, BookieInfoResponse) and answer.ids is not None and answer.ids.ledger_known
    (answer,) = await scene.ask_v3(client_v3.id_marks(4, LedgerId(-5)))
    assert answer.status is Status.BAD_REQUEST
    scene.storage.load_error = DamagedError("index", 0, "page")
    (answer,) = await scene.ask_v3(client_v3.id_marks(5, LedgerId(77)))
    assert answer.status is Status.IO_ERROR


async def test_bookie_info_has_only_the_requested_fields(scene: Scene) -> None:
    assert await scene.ask_v3(client_codec.v3_bookie_info(1, 3)) == [BookieInfoResponse(Status.OK, 1000, 400, 1)]
    assert await scene.ask_v3(client_codec.v3_bookie_info(2, 2)) == [BookieInfoResponse(Status.OK, None, 400, 2)]
    assert await scene.ask_v3(client_codec.v3_bookie_info(3, 0)) == [BookieInfoResponse(Status.OK, None, None, 3)]


async def test_requests_refused_by_the_protocol_layer_are_counted(scene: Scene) -> None:
    frame = bytearray(client_codec.v3_force(1, LedgerId(3)))
    assert frame[7] == 3  # the version in the header
    frame[7] = 2
    assert [one.status for one in await scene.ask_v3(bytes(frame))] == [Status.BAD_VERSION]
    assert scene.bookie.stats.requests_refused == 1
    assert scene.connection.unanswered == 0


async def test_every_request_of_a_mixed_buffer_is_answered_once(scene: Scene) -> None:
    frames = [
        client_codec.v3_add(1, LEDGER, EntryId(0), KEY, entry_bytes(0)),
        client_codec.v3_read(2, LEDGER, EntryId(0)),
        client_codec.v3_read(3, LEDGER, EntryId(0), fence_with=KEY),
        client_codec.v3_write_lac(4, LEDGER, EntryId(0), KEY, DIGEST.encode_lac(LEDGER, EntryId(0))),
        client_codec.v3_read_lac(5, LEDGER),
        client_codec.v3_force(6, LEDGER),
        client_codec.v3_bookie_info(7, 3),
        client_codec.v3_list_entries(8, LEDGER),
        client_codec.v3_auth(9, "none", b""),
        client_codec.v3_read(10, LEDGER, NO_ENTRY, previous_lac=EntryId(-5), timeout_ms=10_000, piggyback=True),
    ]
    await scene.handle(b"".join(frames))
    scene.journal.settle()
    await scene.turn()
    answers = scene.connection.responses(3)
    assert sorted(one.transaction or 0 for one in answers if not isinstance(one, BatchReadResponse)) == list(
        range(1, 11)
    )
    assert scene.connection.unanswered == 0
