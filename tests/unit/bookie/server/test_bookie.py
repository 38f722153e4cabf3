"""The rules of adds, fences and explicit LACs: what is checked, in which order, and when the answer leaves."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from quire_bookie.errors import DamagedError, DiskFullError, JournalPoisonedError
from quire_bookie.limits import EXPLICIT_LAC_BYTES_MAX, MASTER_KEY_BYTES_MAX
from quire_bookie.model import NO_ENTRY, DigestType, EntryId, LedgerId
from quire_bookie.server.bookie import Bookie
from quire_bookie.server.replaying import ReplayTarget
from quire_bookie.server.settings import ServiceSettings
from quire_bookie.wire import client_codec
from quire_bookie.wire.digest import Digest
from quire_bookie.wire.messages import (
    AddResponse,
    BookieInfoResponse,
    ReadLacResponse,
    ReadResponse,
    Response,
    Status,
    StatusResponse,
)
from quire_bookie.wire.server_codec import ServerCodec
from tests.unit.bookie.server.fakes import FakeConnection, FakeJournal, FakeStorage, make_bookie

LEDGER = LedgerId(3)
KEY = bytes(range(20))
DIGEST = Digest(DigestType.DUMMY, b"")


class Scene:
    """A bookie on fakes with one connection."""

    def __init__(self) -> None:
        self.journal = FakeJournal()
        self.storage = FakeStorage()
        self.bookie: Bookie = make_bookie(self.journal, self.storage)
        self.connection = FakeConnection()

    async def handle(self, data: bytes) -> None:
        """Feed one buffer and let loading and reading come to an end."""
        self.bookie.handle(self.connection.real, ServerCodec().feed(data))
        await self.turn()

    async def turn(self) -> None:
        """Let the loop run until nothing is ready."""
        for _ in range(10):
            await asyncio.sleep(0)

    def statuses(self) -> list[Status]:
        """Statuses of what was answered since the last call, one a response."""
        return [response.status for response in self.connection.responses()]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """A fresh scene."""
    scene = Scene()
    yield scene
    await scene.bookie.close()


def adds(first: int, count: int = 1, *, recovery: bool = False, key: bytes = KEY) -> bytes:
    """Adds in one buffer."""
    entries = [
        (DIGEST.encode_entry(LEDGER, EntryId(each), NO_ENTRY, 0, ()), b"x") for each in range(first, first + count)
    ]
    return b"".join(client_codec.v2_adds(key, entries, recovery=recovery))


def fencing_read() -> bytes:
    """A fencing read of the last entry."""
    return client_codec.v2_read(LEDGER, NO_ENTRY, fence_with=KEY)


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


async def test_requests_of_a_ledger_that_is_being_loaded_go_on_in_their_order(scene: Scene) -> None:
    await scene.handle(adds(0))
    scene.journal.settle()
    scene.storage.hidden.add(LEDGER)
    scene.connection.responses()
    await scene.handle(adds(1) + fencing_read() + adds(2))
    assert scene.journal.appended[2:] == [("entries", LEDGER), ("fence", LEDGER)]
    assert scene.statuses() == [Status.FENCED]


async def test_a_state_that_cannot_be_read_is_an_io_error_for_everything_that_waited(scene: Scene) -> None:
    scene.storage.load_error = DamagedError("index", 0, "bits")
    await scene.handle(adds(0, 2) + fencing_read())
    assert scene.statuses() == [Status.IO_ERROR, Status.IO_ERROR]
    assert scene.journal.appended == []


async def test_a_fence_is_answered_after_its_record_is_durable_even_if_the_ledger_was_fenced_before(
    scene: Scene,
) -> None:
    await scene.handle(adds(0) + fencing_read() + fencing_read())
    assert scene.journal.appended[2:] == [("fence", LEDGER)] * 2
    assert scene.statuses() == []
    scene.journal.settle()
    await scene.turn()
    answered = scene.connection.responses()
    assert sorted(type(one).__name__ for one in answered) == ["AddResponse", "ReadResponse", "ReadResponse"]
    assert all(one.status is Status.OK for one in answered)


async def test_a_fence_that_could_not_be_logged_is_an_io_error_without_the_entry(scene: Scene) -> None:
    await scene.handle(adds(0))
    scene.journal.settle()
    scene.connection.responses()
    await scene.handle(fencing_read())
    scene.journal.settle(DiskFullError("no space"))
    await scene.turn()
    assert scene.connection.responses() == [ReadResponse(Status.IO_ERROR, LEDGER, NO_ENTRY)]


async def test_reads_do_not_wait_behind_a_fence_that_waits_for_the_journal(scene: Scene) -> None:
    await scene.handle(adds(0))
    scene.journal.settle()
    scene.connection.responses()
    await scene.handle(fencing_read() * 20 + client_codec.v2_read(LEDGER, EntryId(0)))
    assert scene.statuses() == [Status.OK]


async def test_a_full_disk_is_read_only_to_the_writer(scene: Scene) -> None:
    await scene.handle(adds(0))
    scene.journal.settle(None, DiskFullError("no space"))
    assert scene.statuses() == [Status.READ_ONLY]


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


async def test_an_explicit_lac_is_stored_answered_after_the_sync_and_given_back(scene: Scene) -> None:
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
async def test_an_explicit_lac_that_cannot_be_taken_is_refused(scene: Scene, prepare, status: Status) -> None:  # type: ignore[no-untyped-def]
    prepare(scene)
    await scene.handle(client_codec.v3_write_lac(1, LEDGER, EntryId(9), KEY, DIGEST.encode_lac(LEDGER, EntryId(9))))
    assert [one.status for one in scene.connection.responses(3)] == [status]
    assert scene.journal.appended == []


async def test_keys_and_packets_that_no_state_can_hold_are_bad_requests(scene: Scene) -> None:
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
        assert [answer.status for answer in await ask_v3(scene, frame)] == [Status.BAD_REQUEST]
    assert scene.journal.appended == [] and scene.storage.infos == {}


async def ask_v3(scene: Scene, frame: bytes) -> list[Response]:
    """Responses to one V3 frame."""
    await scene.handle(frame)
    return scene.connection.responses(3)


async def test_bookie_info_gives_what_was_asked_for(scene: Scene) -> None:
    assert await ask_v3(scene, client_codec.v3_bookie_info(1, 3)) == [BookieInfoResponse(Status.OK, 1000, 400, 1)]
    assert await ask_v3(scene, client_codec.v3_bookie_info(2, 2)) == [BookieInfoResponse(Status.OK, None, 400, 2)]
    assert await ask_v3(scene, client_codec.v3_bookie_info(3, 0)) == [BookieInfoResponse(Status.OK, None, None, 3)]


async def test_force_is_ok_as_every_answered_add_is_durable_and_an_error_on_a_failed_journal(scene: Scene) -> None:
    assert await ask_v3(scene, client_codec.v3_force(1, LEDGER)) == [StatusResponse(Status.OK, 10, 1)]
    scene.bookie.poison(OSError())
    assert await ask_v3(scene, client_codec.v3_force(2, LEDGER)) == [StatusResponse(Status.IO_ERROR, 10, 2)]


async def test_what_is_not_served_yet_is_a_bad_request_and_not_silence(scene: Scene) -> None:
    long_poll = client_codec.v3_read(1, LEDGER, NO_ENTRY, previous_lac=EntryId(3), timeout_ms=500, piggyback=True)
    (answer,) = await ask_v3(scene, long_poll)
    assert answer.status is Status.BAD_REQUEST
    (answer,) = await ask_v3(scene, client_codec.v3_list_entries(2, LEDGER))
    assert answer.status is Status.BAD_REQUEST


async def test_a_deferred_add_is_durable_when_it_is_answered(scene: Scene) -> None:
    entry = DIGEST.encode_entry(LEDGER, EntryId(0), NO_ENTRY, 0, ())
    await scene.handle(client_codec.v3_add(5, LEDGER, EntryId(0), KEY, entry, deferred_sync=True))
    assert scene.connection.sent == []
    scene.journal.settle()
    assert scene.connection.responses(3) == [AddResponse(Status.OK, LEDGER, EntryId(0), 1, 5)]


async def test_a_flood_of_fencing_reads_pauses_its_socket_until_half_of_them_are_answered() -> None:
    journal, storage, connection = FakeJournal(), FakeStorage(), FakeConnection()
    bookie = make_bookie(journal, storage, ServiceSettings(reads_queued_per_connection=8))
    bookie.handle(connection.real, ServerCodec().feed(adds(0) + fencing_read() * 7))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not connection.paused
    bookie.handle(connection.real, ServerCodec().feed(fencing_read()))
    assert connection.paused
    journal.settle()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not connection.paused and connection.unanswered == 0
    await bookie.close()
