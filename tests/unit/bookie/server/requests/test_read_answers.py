"""Tests of the responses to reads of every kind, with each error code, in both protocol generations."""

from collections.abc import Callable

import pytest

from quire_bookie.errors import DamagedError, StorageError
from quire_bookie.model import NO_ENTRY, EntryId, LedgerId
from quire_bookie.settings.service import ServiceSettings
from quire_bookie.wire import client_codec
from quire_bookie.wire.availability import decode
from quire_bookie.wire.messages import BatchReadResponse, ListEntriesResponse, ReadLacResponse, ReadResponse, Status
from tests.unit.bookie.server.scene import DIGEST, KEY, LEDGER, Scene, adds, entry_bytes, fencing_read

UNKNOWN = LedgerId(77)
Failure = Callable[[Scene], None]


def no_ledger(scene: Scene) -> None:
    """Store nothing."""


def no_entry(scene: Scene) -> None:
    """Create an empty ledger."""
    scene.storage.create_ledger(LEDGER, KEY)


def deleted(scene: Scene) -> None:
    """Create a tombstone."""
    info = scene.storage.create_ledger(LEDGER, KEY)
    info.deleted = info.fenced = True


def limbo_absent(scene: Scene) -> None:
    """Put an absent ledger into limbo."""
    scene.storage.limbo.add(LEDGER)


def limbo_present(scene: Scene) -> None:
    """Put an existing ledger into limbo."""
    scene.storage.limbo.add(LEDGER)
    scene.storage.create_ledger(LEDGER, KEY)


def damaged(scene: Scene) -> None:
    """Fail reads with damage."""
    scene.storage.create_ledger(LEDGER, KEY)
    fail_reads(scene, DamagedError("log", 7, "bits"))


def disk_fails(scene: Scene) -> None:
    """Fail reads with an I/O error."""
    scene.storage.create_ledger(LEDGER, KEY)
    fail_reads(scene, OSError(5, "I/O"))


def bug(scene: Scene) -> None:
    """Fail reads with an unforeseen exception."""
    scene.storage.create_ledger(LEDGER, KEY)
    fail_reads(scene, RuntimeError("unforeseen"))


def fail_reads(scene: Scene, error: Exception) -> None:
    """Fail every read with `error`."""

    async def fail(*_: object) -> None:
        raise error

    scene.storage.read = scene.storage.entry_ranges = fail  # type: ignore[method-assign, assignment]


CASES = [
    # failure, single read, last entry, READ_LAC, list of entries
    (no_ledger, Status.NO_LEDGER, Status.NO_LEDGER, Status.NO_ENTRY, Status.NO_LEDGER),
    (no_entry, Status.NO_ENTRY, Status.NO_ENTRY, Status.NO_ENTRY, Status.OK),
    (deleted, Status.NO_LEDGER, Status.NO_LEDGER, Status.NO_ENTRY, None),
    (limbo_absent, *[Status.UNKNOWN_LEDGER_STATE] * 4),
    (limbo_present, *[Status.UNKNOWN_LEDGER_STATE] * 4),
    (damaged, *[Status.IO_ERROR] * 4),
    (disk_fails, *[Status.IO_ERROR] * 4),
    (bug, *[Status.IO_ERROR] * 4),
]


@pytest.mark.parametrize(
    ("prepare", "single", "last", "lac", "listed"), CASES, ids=lambda each: getattr(each, "__name__", "")
)
async def test_each_failure_has_its_code(
    scene: Scene, prepare: Failure, single: Status, last: Status, lac: Status, listed: Status | None
) -> None:
    prepare(scene)
    assert (await ask(scene, client_codec.v3_read(1, LEDGER, EntryId(4)))) == single
    assert (await ask(scene, client_codec.v3_read(1, LEDGER, EntryId(-9)))) in (single, Status.NO_ENTRY)
    assert (await ask(scene, client_codec.v3_read(1, LEDGER, NO_ENTRY))) == last
    assert (await ask(scene, client_codec.v3_read_lac(1, LEDGER))) == lac
    if listed is not None:
        assert (await ask(scene, client_codec.v3_list_entries(1, LEDGER))) == listed
    # V2 has no code for limbo that its client would survive.
    v2 = Status.IO_ERROR if single is Status.UNKNOWN_LEDGER_STATE else single
    assert (await ask(scene, client_codec.v2_read(LEDGER, EntryId(4)), 2)) == v2
    assert (await ask(scene, client_codec.v2_batch_read(LEDGER, EntryId(4), 1, 5, 100), 2)) == v2
    assert scene.connection.unanswered == 0


async def ask(scene: Scene, frame: bytes, generation: int = 3) -> Status:
    """Send a frame; return the status of its response."""
    await scene.handle(frame)
    (status,) = scene.statuses(generation)
    return status


@pytest.mark.parametrize("generation", [2, 3])
async def test_a_fencing_read_of_a_ledger_in_limbo_fences_and_is_of_unknown_state(
    scene: Scene, generation: int
) -> None:
    """A recovery must not treat entries missing on a bookie that lost its journal as the end of the ledger."""
    limbo_absent(scene)
    frame = fencing_read() if generation == 2 else client_codec.v3_read(1, LEDGER, NO_ENTRY, fence_with=KEY)
    await scene.handle(frame)
    scene.journal.settle()
    await scene.turn()
    expected = Status.IO_ERROR if generation == 2 else Status.UNKNOWN_LEDGER_STATE
    assert scene.statuses(generation) == [expected]
    assert scene.storage.infos[LEDGER].fenced


async def test_existing_entries_of_a_ledger_in_limbo_are_served(scene: Scene) -> None:
    limbo_absent(scene)
    await scene.stored(adds(3, recovery=True))
    await scene.handle(client_codec.v2_read(LEDGER, EntryId(3)))
    assert scene.statuses() == [Status.OK]
    scene.storage.cached.add((LEDGER, EntryId(3)))
    await scene.handle(client_codec.v2_read(LEDGER, NO_ENTRY))
    assert scene.statuses() == [Status.IO_ERROR], "the last stored entry may not be the last one that was stored"


async def test_a_plain_read_of_v3_returns_the_lac_and_a_fencing_one_does_not(scene: Scene) -> None:
    await scene.stored(adds(0, 3, lac=1))
    (plain,) = await scene.ask_v3(client_codec.v3_read(1, LEDGER, EntryId(0)))
    assert isinstance(plain, ReadResponse) and plain.max_lac == 1
    await scene.handle(client_codec.v3_read(1, LEDGER, EntryId(0), fence_with=KEY))
    scene.journal.settle()
    await scene.turn()
    (fenced,) = scene.connection.responses(3)
    assert isinstance(fenced, ReadResponse) and fenced.data is not None and fenced.max_lac is None


async def test_read_lac_from_memory_is_the_same_as_from_disk(scene: Scene) -> None:
    await scene.stored(adds(0, 2, lac=0))
    packet = DIGEST.encode_lac(LEDGER, EntryId(1))
    await scene.stored(client_codec.v3_write_lac(1, LEDGER, EntryId(1), KEY, packet))
    (from_disk,) = await scene.ask_v3(client_codec.v3_read_lac(2, LEDGER))
    assert from_disk == ReadLacResponse(Status.OK, LEDGER, packet, entry_bytes(1, lac=0), 2)
    scene.storage.reads.clear()
    scene.storage.cached.add((LEDGER, EntryId(1)))
    assert await scene.ask_v3(client_codec.v3_read_lac(2, LEDGER)) == [from_disk]
    assert scene.storage.reads == []


async def test_the_list_of_entries_has_the_stored_ranges(scene: Scene) -> None:
    await scene.stored(adds(0, 3) + adds(5, 2))
    (answer,) = await scene.ask_v3(client_codec.v3_list_entries(1, LEDGER))
    assert isinstance(answer, ListEntriesResponse) and answer.availability is not None
    assert list(decode(answer.availability).ranges()) == [(0, 2), (5, 6)]


async def test_a_list_that_is_too_large_for_a_frame_is_an_io_error_and_not_truncated() -> None:
    scene = Scene(ServiceSettings(frame_bytes_max=64 + 64 + 24))
    for entry in (0, 2, 9):
        await scene.stored(adds(entry))
    assert (await ask(scene, client_codec.v3_list_entries(1, LEDGER))) == Status.IO_ERROR
    await scene.bookie.close()


async def test_negative_ledgers_are_bad_requests_to_readers(scene: Scene) -> None:
    negative = LedgerId(-4)
    assert (await ask(scene, client_codec.v3_read(1, negative, EntryId(0)))) == Status.BAD_REQUEST
    assert (await ask(scene, client_codec.v2_read(negative, EntryId(0)), 2)) == Status.BAD_REQUEST
    assert (await ask(scene, client_codec.v2_batch_read(negative, EntryId(0), 1, 1, 1), 2)) == Status.BAD_REQUEST
    assert (await ask(scene, client_codec.v3_read_lac(1, negative))) == Status.NO_ENTRY
    assert (await ask(scene, client_codec.v3_list_entries(1, negative))) == Status.NO_LEDGER


async def test_a_batch_ends_before_a_missing_or_unknown_entry(scene: Scene) -> None:
    await scene.stored(adds(0, 3))
    for _ in range(2):
        await scene.handle(client_codec.v2_batch_read(LEDGER, EntryId(1), 6, 10, 10_000))
        (answer,) = scene.connection.responses()
        assert isinstance(answer, BatchReadResponse)
        assert [bytes(entry) for entry in answer.entries] == [entry_bytes(1), entry_bytes(2)]
        scene.storage.infos[LEDGER].limbo = True


async def test_a_state_that_cannot_be_loaded_is_an_io_error(scene: Scene) -> None:
    scene.storage.load_error = StorageError("failed")
    assert (await ask(scene, client_codec.v3_read_lac(1, UNKNOWN))) == Status.IO_ERROR
    assert (await ask(scene, client_codec.v3_read(1, UNKNOWN, EntryId(-5)))) == Status.IO_ERROR
