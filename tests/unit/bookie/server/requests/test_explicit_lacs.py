"""Tests of explicit LACs: stored as sent, answered after the sync, refused if they cannot be stored."""

import pytest

from quire_bookie.limits import EXPLICIT_LAC_BYTES_MAX, MASTER_KEY_BYTES_MAX
from quire_bookie.model import NO_ENTRY, EntryId
from quire_bookie.wire import client_codec
from quire_bookie.wire.messages import ReadLacResponse, Status, StatusResponse
from tests.unit.bookie.server.scene import DIGEST, KEY, LEDGER, Scene


async def test_an_explicit_lac_is_stored_answered_after_the_sync_and_readable(scene: Scene) -> None:
    packet = DIGEST.encode_lac(LEDGER, EntryId(9))
    await scene.handle(client_codec.v3_write_lac(1, LEDGER, EntryId(9), KEY, packet))
    assert scene.journal.appended == [("key", LEDGER), ("lac", LEDGER)]
    assert scene.connection.sent == []
    scene.journal.settle()
    await scene.handle(client_codec.v3_read_lac(2, LEDGER))
    assert scene.connection.responses(3) == [
        StatusResponse(Status.OK, 6, 1),
        ReadLacResponse(Status.OK, LEDGER, packet, None, 2),
    ]
    assert scene.storage.infos[LEDGER].explicit_lac_entry == 9


@pytest.mark.parametrize(
    ("prepare", "status"),
    [
        (lambda scene: setattr(scene.bookie, "read_only", True), Status.READ_ONLY),
        (lambda scene: scene.bookie.poison(OSError()), Status.IO_ERROR),
        (lambda scene: scene.storage.create_ledger(LEDGER, bytes(20)), Status.UNAUTHORIZED),
    ],
    ids=["read-only", "poisoned", "another key"],
)
async def test_an_explicit_lac_that_cannot_be_stored_is_refused(scene: Scene, prepare, status: Status) -> None:  # type: ignore[no-untyped-def]
    prepare(scene)
    await scene.handle(client_codec.v3_write_lac(1, LEDGER, EntryId(9), KEY, DIGEST.encode_lac(LEDGER, EntryId(9))))
    assert [one.status for one in scene.connection.responses(3)] == [status]
    assert scene.journal.appended == []


async def test_keys_and_packets_that_are_too_long_are_bad_requests(scene: Scene) -> None:
    """V3 bounds neither; the states of all ledgers stay in memory and in the index."""
    long_key, packet = bytes(MASTER_KEY_BYTES_MAX + 1), DIGEST.encode_lac(LEDGER, EntryId(9))
    long_packet = packet + bytes(EXPLICIT_LAC_BYTES_MAX)
    head = DIGEST.encode_entry(LEDGER, EntryId(0), NO_ENTRY, 0, ())
    for frame in (
        client_codec.v3_add(1, LEDGER, EntryId(0), long_key, head),
        client_codec.v3_read(1, LEDGER, EntryId(0), fence_with=long_key),
        client_codec.v3_write_lac(1, LEDGER, EntryId(9), long_key, packet),
        client_codec.v3_write_lac(1, LEDGER, EntryId(9), KEY, long_packet),
    ):
        assert [answer.status for answer in await scene.ask_v3(frame)] == [Status.BAD_REQUEST]
    assert scene.journal.appended == [] and scene.storage.infos == {}


async def test_an_explicit_lac_creates_its_ledger_and_is_accepted_by_a_fenced_one(scene: Scene) -> None:
    packet = DIGEST.encode_lac(LEDGER, EntryId(9))
    await scene.stored(client_codec.v3_write_lac(1, LEDGER, EntryId(9), KEY, packet))
    info = scene.storage.infos[LEDGER]
    info.fenced = True
    await scene.handle(client_codec.v3_write_lac(2, LEDGER, EntryId(10), KEY, DIGEST.encode_lac(LEDGER, EntryId(10))))
    scene.journal.settle()
    assert scene.statuses(3) == [Status.OK]
    info.deleted = True
    assert [
        one.status for one in await scene.ask_v3(client_codec.v3_write_lac(3, LEDGER, EntryId(9), KEY, packet))
    ] == [Status.NO_LEDGER]
    stats = scene.bookie.stats
    assert (stats.lac_writes, stats.lac_writes_failed, stats.write_lac_seconds.total) == (3, 1, 2)
