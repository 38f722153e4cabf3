"""A started bookie over TCP, on simulated disks: errors, crashes, a failed journal, malformed bytes, full queues."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from quire_bookie.errors import StartupError
from quire_bookie.limits import FRAME_BYTES_MAX, MIB
from quire_bookie.metadata import layout
from quire_bookie.model import NO_ENTRY, DigestType, EntryId, LedgerId
from quire_bookie.server import BookieState
from quire_bookie.server.requests import overload
from quire_bookie.settings.disks import DiskRules
from quire_bookie.settings.service import ServiceSettings
from quire_bookie.settings.storage import StorageSettings
from quire_bookie.wire import client_codec
from quire_bookie.wire.client_codec import ClientCodec
from quire_bookie.wire.digest import Digest, master_key
from quire_bookie.wire.messages import AddResponse, ReadResponse, Status
from tests.support.bookie_world import SETTINGS, BookieWorld, RawPeer

LEDGER = LedgerId(7)
KEY = master_key(b"secret")
DIGEST = Digest(DigestType.CRC32C, b"secret")


@pytest.fixture
async def world() -> AsyncIterator[BookieWorld]:
    """A bookie that has seen nothing yet."""
    world = BookieWorld()
    await world.start()
    yield world
    await world.stop()


def port(world: BookieWorld) -> int:
    """Where the present process listens."""
    assert world.running is not None
    return world.running.port


def entry(entry_id: int, payload: bytes = b"payload", ledger: LedgerId = LEDGER) -> tuple[bytes, bytes]:
    """An entry as the client builds it."""
    head = DIGEST.encode_entry(ledger, EntryId(entry_id), EntryId(entry_id - 1), len(payload), (payload,))
    return head, payload


def adds(first: int, count: int, *, ledger: LedgerId = LEDGER, key: bytes = KEY, recovery: bool = False) -> bytes:
    """Pipelined adds in one buffer."""
    entries = [entry(each, b"payload %d" % each, ledger) for each in range(first, first + count)]
    return b"".join(client_codec.v2_adds(key, entries, recovery=recovery))


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until something has happened."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - there is no event: a counter of the product is watched
            await asyncio.sleep(0)


class Client:
    """A V2 client that sends and collects."""

    def __init__(self, peer: RawPeer) -> None:
        self.peer = peer
        self._codec = ClientCodec(2)

    @classmethod
    async def connect(cls, world: BookieWorld) -> "Client":
        """Connect to the present process."""
        return cls(await RawPeer.connect(port(world)))

    async def add(self, frames: bytes, count: int) -> list[Status]:
        """Send adds; their statuses in the order of the answers."""
        self.peer.send(frames)
        statuses: list[Status] = []
        while len(statuses) < count:
            (response,) = self._codec.feed(await self.peer.receive())
            assert isinstance(response, AddResponse)
            statuses.append(response.status)
        return statuses

    async def read(
        self, entry_id: int, *, ledger: LedgerId = LEDGER, fence_with: bytes | None = None
    ) -> tuple[Status, bytes | None]:
        """One entry's payload; the digest is checked."""
        request = client_codec.v2_read(ledger, EntryId(entry_id), fence_with=fence_with)
        (response,) = self._codec.feed(await self.peer.ask(request))
        assert isinstance(response, ReadResponse)
        if response.data is None:
            return response.status, None
        wanted = None if entry_id == NO_ENTRY else EntryId(entry_id)
        return response.status, bytes(DIGEST.decode_entry(response.data, ledger, wanted).payload)


async def test_what_was_acknowledged_is_there_after_a_power_cut_without_a_flush(world: BookieWorld) -> None:
    client = await Client.connect(world)
    assert await client.add(adds(0, 500), 500) == [Status.OK] * 500
    await world.crash()
    await world.restart()
    client = await Client.connect(world)
    for each in (0, 1, 250, 499):
        assert await client.read(each) == (Status.OK, b"payload %d" % each)
    assert await client.read(NO_ENTRY) == (Status.OK, b"payload 499")
    assert (await client.read(500))[0] is Status.NO_ENTRY
    assert await client.add(adds(500, 3), 3) == [Status.OK] * 3
    assert await client.add(adds(503, 1, key=bytes(20)), 1) == [Status.UNAUTHORIZED]


async def test_several_power_cuts_in_a_row_lose_nothing(world: BookieWorld) -> None:
    for life in range(5):
        client = await Client.connect(world)
        first = life * 20
        assert await client.add(adds(first, 20), 20) == [Status.OK] * 20
        for each in range(0, first + 20, 7):
            assert await client.read(each) == (Status.OK, b"payload %d" % each)
        await world.crash()
        await world.restart()
    assert world.running is not None
    assert await (await Client.connect(world)).read(99) == (Status.OK, b"payload 99")


async def test_a_clean_stop_flushes_and_leaves_nothing_to_replay(world: BookieWorld) -> None:
    client = await Client.connect(world)
    assert await client.add(adds(0, 50), 50) == [Status.OK] * 50
    bookie_id = world.running.bookie_id if world.running else None
    await world.stop()
    running = await world.restart()
    assert running.bookie_id == bookie_id
    assert running.storage.stats.entries_put == 0
    assert await (await Client.connect(world)).read(49) == (Status.OK, b"payload 49")


async def test_a_fence_holds_after_a_power_cut_and_lets_only_recovery_add(world: BookieWorld) -> None:
    client = await Client.connect(world)
    assert await client.add(adds(0, 3), 3) == [Status.OK] * 3
    assert await client.read(NO_ENTRY, fence_with=KEY) == (Status.OK, b"payload 2")
    assert await client.add(adds(3, 2), 2) == [Status.FENCED] * 2
    await world.crash()
    await world.restart()
    client = await Client.connect(world)
    assert await client.add(adds(3, 2), 2) == [Status.FENCED] * 2
    assert await client.add(adds(3, 2, recovery=True), 2) == [Status.OK] * 2


async def test_fencing_an_unknown_ledger_keeps_its_writer_out_even_after_a_power_cut(world: BookieWorld) -> None:
    client = await Client.connect(world)
    assert (await client.read(NO_ENTRY, fence_with=KEY))[0] is Status.NO_ENTRY
    await world.crash()
    await world.restart()
    client = await Client.connect(world)
    assert await client.add(adds(0, 1), 1) == [Status.FENCED]
    assert (await client.read(0))[0] is Status.NO_ENTRY


async def test_a_wrong_key_neither_adds_nor_fences(world: BookieWorld) -> None:
    client = await Client.connect(world)
    assert await client.add(adds(0, 1), 1) == [Status.OK]
    assert await client.add(adds(1, 2, key=bytes(20)), 2) == [Status.UNAUTHORIZED] * 2
    assert (await client.read(0, fence_with=bytes(20)))[0] is Status.UNAUTHORIZED
    assert await client.add(adds(1, 1), 1) == [Status.OK]
    assert await client.read(NO_ENTRY) == (Status.OK, b"payload 1")


async def test_negative_ids_are_bad_requests(world: BookieWorld) -> None:
    client = await Client.connect(world)
    negative = LedgerId(-4)
    assert await client.add(adds(0, 1, ledger=negative), 1) == [Status.BAD_REQUEST]
    assert await client.add(adds(-5, 1), 1) == [Status.BAD_REQUEST]
    assert (await client.read(0, ledger=negative))[0] is Status.BAD_REQUEST
    assert (await client.read(0, ledger=negative, fence_with=KEY))[0] is Status.BAD_REQUEST
    assert (await client.read(0))[0] is Status.NO_LEDGER


async def test_adds_of_a_new_ledger_keep_their_order_while_its_state_is_loaded(world: BookieWorld) -> None:
    client = await Client.connect(world)
    client.peer.send(adds(0, 2), client_codec.v2_read(LEDGER, NO_ENTRY, fence_with=KEY), adds(2, 1))
    answers = await client.peer.receive_all(4)
    codes = sorted((answer[5], int.from_bytes(answer[8:12], "big")) for answer in answers)
    assert codes == [(1, 0), (1, 0), (1, 104), (2, 0)]


@pytest.mark.parametrize(
    "malformed",
    [
        (FRAME_BYTES_MAX + 1).to_bytes(4, "big") + b"\x02\x01\x00\x00",
        bytes(4),
        (-1).to_bytes(4, "big", signed=True),
        b"\x00\x00\x00\x02\x02\x01",
        b"\x00\x00\x00\x08\x02\x09\x00\x00abcd",
        b"\x00\x00\x00\x05\x0a\xff\xff\xff\xff",
    ],
    ids=["oversized", "empty", "negative", "no header", "unknown opcode", "broken V3"],
)
async def test_malformed_bytes_end_their_connection_and_no_other(world: BookieWorld, malformed: bytes) -> None:
    other = await Client.connect(world)
    bad = await RawPeer.connect(port(world))
    bad.send(malformed)
    assert await bad.closed_by_bookie()
    assert await other.add(adds(0, 1), 1) == [Status.OK]


async def test_requests_before_malformed_bytes_are_answered_before_the_close(world: BookieWorld) -> None:
    peer = await RawPeer.connect(port(world))
    peer.send(adds(0, 10), bytes(4))
    for answer in await peer.receive_all(10):
        assert int.from_bytes(answer[8:12], "big") == 0
    assert await peer.closed_by_bookie()


async def test_an_entry_of_the_largest_frame_is_stored_and_read(world: BookieWorld) -> None:
    client = await Client.connect(world)
    payload = bytes(range(256)) * ((FRAME_BYTES_MAX - 24 - 36) // 256)
    frame = b"".join(client_codec.v2_adds(KEY, [entry(0, payload)]))
    assert await client.add(frame, 1) == [Status.OK]
    status, found = await client.read(0)
    assert status is Status.OK
    assert found == payload


async def test_a_failed_journal_acknowledges_nothing_more_and_still_reads(world: BookieWorld) -> None:
    client = await Client.connect(world)
    assert await client.add(adds(0, 5), 5) == [Status.OK] * 5
    assert world.running is not None
    world.disk.fail_next("submit", "journal", OSError("the device is gone"))
    assert await client.add(adds(5, 5), 5) == [Status.IO_ERROR] * 5
    assert await client.add(adds(10, 1), 1) == [Status.IO_ERROR]
    assert (await client.read(NO_ENTRY, fence_with=KEY))[0] is Status.IO_ERROR
    assert await client.read(4) == (Status.OK, b"payload 4")
    assert world.running.state is BookieState.POISONED
    await asyncio.wait_for(asyncio.shield(world.running.failed), 10)
    running = world.running
    await until(lambda: layout.writable_path(running.bookie_id) not in world.metadata.nodes)
    await world.stop()
    await world.restart()
    client = await Client.connect(world)
    assert await client.read(4) == (Status.OK, b"payload 4")
    assert await client.add(adds(5, 1), 1) == [Status.OK]


@pytest.mark.parametrize("file", [".qlog", "index"])
async def test_a_stop_whose_flush_fails_gives_everything_free_and_the_journal_has_it_all(
    world: BookieWorld, file: str
) -> None:
    client = await Client.connect(world)
    assert await client.add(adds(0, 5), 5) == [Status.OK] * 5
    world.disk.fail_next("commit" if file == "index" else "sync", file, OSError(5, "Input/output error"))
    await world.stop()
    await world.restart()
    client = await Client.connect(world)
    assert await client.read(4) == (Status.OK, b"payload 4")


async def test_reads_of_a_bookie_with_a_failed_journal_end_after_their_time() -> None:
    world = BookieWorld().with_settings(poisoned_reads_s=0.0)
    await world.start()
    client = await Client.connect(world)
    world.disk.fail_next("submit", "journal", OSError("the device is gone"))
    client.peer.send(adds(0, 1))
    async with asyncio.timeout(60):
        assert (await client.peer.reader.read()).endswith((b"", b"\x07"))
    await world.stop()


@pytest.mark.parametrize("lost", ["journal", "ledgers"])
async def test_a_bookie_whose_journal_or_ledgers_were_deleted_refuses_to_start(world: BookieWorld, lost: str) -> None:
    client = await Client.connect(world)
    assert await client.add(adds(0, 5), 5) == [Status.OK] * 5
    await world.crash()
    kept = world.disk
    folder = f"/data/{lost}"
    for name in await kept.list_dir(folder):
        if name not in ("current", "index"):
            await kept.remove(f"{folder}/{name}")
    await kept.sync_dir(folder)
    if lost == "ledgers":
        kept.indexes.clear()
    for _ in range(2):  # the first refusal must not leave anything that hides the loss from the second
        with pytest.raises(StartupError, match=f"the folder {folder} of bookie .* has lost its files"):
            await world.restart()


async def test_a_crash_at_any_step_of_the_first_start_is_not_taken_for_lost_files() -> None:
    for step in range(200):
        world = BookieWorld()
        world.disk.crash_after(step)
        try:
            await world.start()
            await world.stop()
            return
        except (OSError, StartupError):
            if world.running is not None:
                await world.crash()
            else:
                world.disk = world.disk.crash()
                assert world.session is not None
                world.session.cut_for_good()
                world.session.lease_ran_out()
            await world.restart()
            await world.stop()
    raise AssertionError("the start never got through")


async def test_a_port_in_use_is_one_clear_line_and_leaves_nothing_open(world: BookieWorld) -> None:
    other = BookieWorld(settings=replace(SETTINGS, port=port(world)))
    with pytest.raises(StartupError, match=rf"port {port(world)} .* cannot be listened on"):
        await other.start()
    assert not any(name.startswith("/data/journal/journal-") for name in other.disk._names), "told before any replay"
    other.settings = SETTINGS
    await other.restart()  # the folders were given free
    await other.stop()


async def test_the_registration_follows_the_mode_and_goes_with_the_stop(world: BookieWorld) -> None:
    running = world.running
    assert running is not None
    writable, read_only = layout.writable_path(running.bookie_id), layout.read_only_path(running.bookie_id)
    assert writable in world.metadata.nodes
    await running.set_read_only(True)
    assert writable not in world.metadata.nodes
    assert read_only in world.metadata.nodes
    client = await Client.connect(world)
    assert await client.add(adds(0, 1), 1) == [Status.READ_ONLY]
    await running.set_read_only(False)
    assert await client.add(adds(0, 1), 1) == [Status.OK]
    await world.stop()
    assert not {writable, read_only} & world.metadata.nodes.keys()


async def test_a_full_bookie_refuses_normal_adds_after_a_pause_and_never_recovery() -> None:
    service = ServiceSettings(adds_in_flight_bytes_max=1, backpressure_pause_s=0.0)
    world = BookieWorld().with_settings(service=service)
    running = await world.start()
    running.bookie.stats.adds_in_flight_bytes = 10  # as if adds were stuck in the journal
    writer, recoverer = await Client.connect(world), await Client.connect(world)
    assert await writer.add(adds(0, 2), 2) == [Status.TOO_MANY_REQUESTS] * 2
    assert await writer.add(adds(0, 2), 2) == [Status.TOO_MANY_REQUESTS] * 2
    assert (await writer.read(NO_ENTRY, fence_with=KEY))[0] is Status.NO_ENTRY
    assert await recoverer.add(adds(0, 2, recovery=True), 2) == [Status.OK] * 2
    assert running.bookie.stats.adds_rejected == 4
    await world.stop()


async def test_adds_that_wait_for_room_go_on_when_there_is_some() -> None:
    service = ServiceSettings(adds_in_flight_bytes_max=1, backpressure_pause_s=60.0)
    world = BookieWorld().with_settings(service=service)
    running = await world.start()
    client = await Client.connect(world)
    assert await client.add(adds(0, 1), 1) == [Status.OK]
    running.bookie.stats.adds_in_flight_bytes += 10
    client.peer.send(adds(1, 2))
    await until(lambda: running.bookie.stats.adds_paused > 0)
    running.bookie.stats.adds_in_flight_bytes -= 10
    assert await client.add(b"", 2) == [Status.OK] * 2
    await world.stop()


async def test_more_than_the_write_cache_goes_in_and_comes_back(world: BookieWorld) -> None:
    client = await Client.connect(world)
    payload = bytes(1024 * 1024)
    for each in range(40):
        frame = b"".join(client_codec.v2_adds(KEY, [entry(each, payload)]))
        assert await client.add(frame, 1) == [Status.OK]
    assert world.running is not None
    assert world.running.storage.stats.flushes > 0
    for each in (0, 20, 39):
        assert await client.read(each) == (Status.OK, payload)


async def test_adds_that_wait_for_space_continue_when_a_flush_ends_without_another_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overload, "_RETRY_S", 3600.0)
    world = BookieWorld().with_settings(storage=StorageSettings(write_cache_bytes=24 * MIB))
    running = await world.start()
    client = await Client.connect(world)
    payload = bytes(1024 * 1024)
    count = 40
    async with running.storage._flushes.write_lock:  # no flush can end
        for each in range(count):
            client.peer.send(b"".join(client_codec.v2_adds(KEY, [entry(each, payload)])))
        stats = running.bookie.stats
        await until(lambda: stats.adds_paused > 0 and stats.adds_in_flight_bytes == 0)
    for answer in await client.peer.receive_all(count):
        assert int.from_bytes(answer[8:12], "big") == 0
    assert await client.read(count - 1) == (Status.OK, payload)
    await world.stop()


async def test_a_full_disk_refuses_writes_reads_go_on_and_freed_space_brings_the_writes_back() -> None:
    world = BookieWorld().with_settings(
        disks=DiskRules(interval_s=0.01),
        storage=StorageSettings(write_cache_bytes=24 * MIB, flush_interval_s=0.01, disk_full_retry_s=0.01),
    )
    running = await world.start()
    client = await Client.connect(world)
    # Before the entries come: a flush that had already written them would have nothing left to be refused.
    roomy, world.disk.capacity_bytes = world.disk.capacity_bytes, 40 * MIB
    assert await client.add(adds(0, 3), 3) == [Status.OK] * 3
    await until(lambda: running.state is BookieState.READ_ONLY)
    assert await client.add(adds(3, 2), 2) == [Status.READ_ONLY] * 2
    assert await client.read(2) == (Status.OK, b"payload 2")
    assert await client.read(NO_ENTRY, fence_with=KEY) == (Status.OK, b"payload 2")
    world.disk.capacity_bytes = roomy
    await until(lambda: running.state is BookieState.WRITABLE)
    assert await client.add(adds(3, 2, recovery=True), 2) == [Status.OK] * 2
    await world.stop()


async def test_a_stop_answers_what_is_due_before_it_hangs_up(world: BookieWorld) -> None:
    client = await Client.connect(world)
    client.peer.send(adds(0, 200))
    assert world.running is not None
    stats = world.running.bookie.stats
    await until(lambda: stats.add_entries > 0)
    taken = stats.add_entries
    stopping = asyncio.ensure_future(world.stop())
    for answer in await client.peer.receive_all(taken):
        assert int.from_bytes(answer[8:12], "big") == 0
    assert await client.peer.closed_by_bookie()
    await stopping
