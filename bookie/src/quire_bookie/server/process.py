"""The life cycle of one bookie: folders, identity, journal, storage, replay, listening, registration.

Never answers a request itself. A start serves no request before replay has restored every acknowledged entry, and it
registers last, so clients that find the bookie can reach it. A stop takes the reverse order. A start may be cancelled
at any moment: it releases its resources, and the next start sees the same folders as after a crash at that moment.

A journal that cannot write any more ends the bookie: its registration is removed at once, adds and fences get EIO,
reads continue for at most `poisoned_reads_s`. The owner of the process awaits `failed` and decides when to stop.
"""

import asyncio
import logging
import os
from collections.abc import Coroutine
from dataclasses import field
from enum import Enum
from functools import partial
from typing import Any

from quire_bookie.dataclass import dataclass
from quire_bookie.env.chance import Chance
from quire_bookie.env.clock import WallClock
from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.env.disk import Disk
from quire_bookie.env.index_store import IndexStore
from quire_bookie.env.own_links import OwnLinks
from quire_bookie.env.reserved_disk import ReservedDisk
from quire_bookie.env.sockets import notice_dead_peers
from quire_bookie.env.tracing import SpanSink, Tracing
from quire_bookie.errors import StartupError
from quire_bookie.metadata.initialise import initialise
from quire_bookie.metadata.service_info import MACHINE, BookieAddress, BookieServiceInfo, bookie_endpoint, http_endpoint
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.model import BookieId
from quire_bookie.server.requests.bookie import Bookie
from quire_bookie.server.requests.connections import Connection, OpenConnections
from quire_bookie.server.requests.traced_adds import TracedAdds
from quire_bookie.server.security.guard import Guard
from quire_bookie.server.security.opening import open_guard
from quire_bookie.server.settings import BookieSettings
from quire_bookie.server.start.address_claim import hand_over, predecessors, wait_until_free
from quire_bookie.server.start.disk_fit import fit_to_disk, make_first_reserves, open_reserves
from quire_bookie.server.start.opening import BookieData, OpenIndex, open_data
from quire_bookie.server.start.reclaiming import compaction_of, garbage_collection_of
from quire_bookie.server.start.registration import BookieRegistration, RegistrationSettings
from quire_bookie.server.start.start_steps import StartSteps
from quire_bookie.server.start.storage_folders import StorageFolders
from quire_bookie.server.start.storage_identity import ClaimOptions, StorageIdentity, claim_storage
from quire_bookie.server.upkeep.damage_marks import DamageMarks
from quire_bookie.server.upkeep.disk_monitor import DiskMonitor
from quire_bookie.server.upkeep.full_disk import FullDisk
from quire_bookie.server.upkeep.metadata_doubt import MetadataDoubt
from quire_bookie.server.upkeep.own_rack import publish_late_rack, publish_rack
from quire_bookie.server.upkeep.read_only import ReadOnlyMode, ReadOnlyReason
from quire_bookie.server.upkeep.scrubbing import Scrubbing
from quire_bookie.storage.rebuilding import index_place
from quire_bookie.storage.rebuilding.index_place import IndexPlace

_log = logging.getLogger("quire.server")


class BookieState(Enum):
    """Which requests a bookie accepts."""

    WRITABLE = "writable"
    READ_ONLY = "read-only"
    POISONED = "poisoned"
    STOPPED = "stopped"


@dataclass(slots=True)
class _Parts:
    """Holds the resources opened so far; they are closed in reverse order when a later step fails."""

    data: BookieData
    disk: Disk
    clock: WallClock
    memory: ConnectionMemory
    own_links: OwnLinks | None = None
    tracing: Tracing | None = None
    server: asyncio.Server | None = None
    open_connections: OpenConnections = field(default_factory=OpenConnections)
    guard: Guard = field(default_factory=Guard)


class RunningBookie:
    """Owns the parts and background tasks of a serving bookie. Created by `start_bookie`."""

    def __init__(
        self,
        settings: BookieSettings,
        parts: _Parts,
        bookie: Bookie,
        metadata: MetadataStore,
        port: int,
        start_steps: StartSteps,
    ) -> None:
        assert parts.data.journals is not None and parts.data.storage is not None
        self.settings = settings
        self.bookie_id: BookieId = parts.data.identity.bookie
        self.port = port
        self.start_steps = start_steps
        self.bookie = bookie
        self.journal = parts.data.journals
        self.storage = parts.data.storage
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        """Done, with the reason, when the bookie cannot continue: stop it and start it again, or end the process."""
        self.guard = parts.guard
        self.memory = parts.memory
        endpoints = [bookie_endpoint(settings.advertise, port, tls=parts.guard.offers_tls)]
        if settings.http_port > 0:
            endpoints.append(http_endpoint(settings.advertise, settings.http_port, tls=settings.http_tls))
        properties = {MACHINE: settings.machine} if settings.machine else {}
        info = BookieServiceInfo(tuple(endpoints), properties)
        self.registration = BookieRegistration(metadata, self.bookie_id, info)
        self.garbage_collection = garbage_collection_of(
            self.storage,
            metadata,
            parts.data.identity,
            parts.disk,
            parts.clock,
            lambda: self.disk_monitor,
            settings,
        )
        self.metadata_doubt = MetadataDoubt(self.storage, metadata, parts.data.identity.instance_id)
        self.garbage_collection.doubts.add(self.metadata_doubt.check)
        self.compaction = compaction_of(self.storage, bookie.stats, lambda: self.disk_monitor, parts.clock, settings)
        marks = DamageMarks(metadata, parts.clock, self.bookie_id)
        self.scrubbing = Scrubbing(self.storage, metadata, parts.disk, parts.clock, settings.scrubbing, marks)
        self.storage.on_damage = self.scrubbing.damage.read_failed
        self._parts = parts
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._stopped = asyncio.Event()
        self.disk_monitor: DiskMonitor | None = None
        self.read_only_mode = ReadOnlyMode(parts.disk, settings.ledger_paths, parts.clock, self._apply_read_only)

    @property
    def state(self) -> BookieState:
        """Which requests the bookie accepts now."""
        if self._stopping:
            return BookieState.STOPPED
        if self.bookie.poisoned:
            return BookieState.POISONED
        return BookieState.READ_ONLY if self.bookie.read_only else BookieState.WRITABLE

    async def stop(self) -> None:
        """Unregister, answer pending requests, flush, move the mark, release. A second call waits for the first.

        Never fails because of the disk: entries that cannot be flushed stay in the journal.
        """
        if self._stopping:
            await self._stopped.wait()
            return
        self._stopping = True
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.registration.stop()
        await self._drain()
        await self.bookie.close()
        if self.failed.done():
            # Entries in the cache were never acknowledged or are in the journal: the next start replays them.
            self.storage.failure = self.storage.failure or self.failed.result()
        try:
            await _close(self._parts)
        finally:
            self._stopped.set()
        _log.info("bookie %s stopped", self.bookie_id)

    async def set_read_only(self, read_only: bool) -> None:
        """Refuse or accept normal adds, also after a restart. OSError, DiskFullError: the mode was not saved."""
        await self.read_only_mode.set(ReadOnlyReason.OPERATOR, read_only)

    async def _apply_read_only(self) -> None:
        """Apply the read-only mode, also to the registration."""
        self.bookie.read_only = self.read_only_mode.on
        self._note_disks()
        await self.registration.set_read_only(self.read_only_mode.on)

    def _space_is_short(self) -> None:
        """Refuse normal adds: space is left for fences, recovery and deletion only. The disk monitor ends this mode."""
        self.bookie.read_only = True
        if self.disk_monitor is not None:
            self.disk_monitor.disk_full()

    def _note_disks(self) -> None:
        if self.disk_monitor is not None:
            self.read_only_mode.disk_accepts_high_priority = self.disk_monitor.accepts_high_priority
        self.bookie.accepts_high_priority = self.read_only_mode.accepts_high_priority

    def _fail(self, error: BaseException) -> None:
        """Poison the bookie: its journal or storage can no longer be trusted."""
        if self.failed.done():
            return
        self.bookie.poison(error)
        self.failed.set_result(error)
        _log.critical("bookie %s refuses all writes from now on: %s", self.bookie_id, error)
        if not self._stopping:
            self._spawn(self._wind_down(), "wind down")

    async def _wind_down(self) -> None:
        await self.registration.stop()
        await asyncio.sleep(self.settings.poisoned_reads_s)
        assert self._parts.server is not None
        self._parts.server.close()
        for connection in list(self._parts.open_connections):
            connection.abort()

    async def _drain(self) -> None:
        server = self._parts.server
        assert server is not None
        server.close()
        connections = self._parts.open_connections
        for connection in list(connections):
            connection.close_when_answered()
        try:
            async with asyncio.timeout(self.settings.drain_timeout_s):
                await connections.wait_until_none()
        except TimeoutError:
            _log.warning("%d connections did not read their responses in time", len(connections))
        for connection in list(connections):
            connection.abort()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"bookie {self.bookie_id} {name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Fail the bookie on an unforeseen error: a background task never ends by itself."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _background(self, monitor: DiskMonitor) -> tuple[tuple[str, Coroutine[Any, Any, None]], ...]:
        """Return name and work of each task that runs for as long as the bookie serves."""
        return (
            ("disk monitor", monitor.run()),
            ("metadata check", self.metadata_doubt.run()),
            ("garbage collection", self.garbage_collection.run()),
            ("compaction", self.compaction.run()),
            ("scrub", self.scrubbing.run()),
            ("damage report", self.scrubbing.damage.run()),
        )

    async def _begin(self, before: list[BookieId]) -> None:
        """Determine the read-only mode, accept requests, register, and start the background tasks.

        `before`: earlier bookies of this host, whose clients must first see that the address has another bookie now.
        """
        settings = self.settings
        mode, reserves = self.read_only_mode, self._parts.data.reserves
        relief = FullDisk(
            reserves,
            self.journal,
            self.storage,
            settings.storage.reserved_bytes // 4,
            is_full=lambda: monitor.read_only,
            collect=self.garbage_collection.force,
        )
        monitor = DiskMonitor(
            self._parts.disk,
            self.storage.directories,
            settings.disk_rules,
            partial(mode.set, ReadOnlyReason.DISK),
            journal_folders=settings.journal_paths,
            journal_needs_bytes=settings.journal.file_bytes + settings.journal.reserved_bytes,
            storage_full=lambda: self.storage.disk_full,
            reserves=reserves,
            write_cache_bytes=settings.storage.write_cache_bytes,
            relieve=relief.relieve,
            on_failure=self._fail,
            on_look=self._note_disks,
        )
        self.disk_monitor = monitor
        self.journal.on_poison = self._fail
        self.journal.on_full = lambda _: self._space_is_short()
        for reserve in reserves.all:
            reserve.on_release = self._space_is_short
        self.storage.on_failure = self._fail
        if self.journal.full is not None:
            monitor.disk_full()
        if self.storage.failure is not None or self.journal.poisoned:
            cause = self.storage.failure or "its journal cannot be written"
            raise StartupError(f"bookie {self.bookie_id} failed while starting: {cause}")
        await mode.load(forced=settings.force_read_only)
        if await monitor.first_look():
            mode.note_at_start(ReadOnlyReason.DISK)
        self.bookie.read_only = mode.on
        self._note_disks()
        assert self._parts.server is not None
        if before:
            await self.registration.start(read_only=True)
            await hand_over(self.bookie_id, before)
        # A new bookie counts as used from here on: after a start that ended earlier, the next one repeats the handover.
        await self._parts.data.identity.settle(self._parts.disk)
        await self._parts.server.start_serving()
        with self.start_steps.step("registration"):
            if before:
                await self.registration.set_read_only(mode.on)
            else:
                await self.registration.start(read_only=mode.on)
        self.journal.keep_ahead()
        for name, work in self._background(monitor):
            self._spawn(work, name)


async def start_bookie(
    settings: BookieSettings,
    *,
    metadata: MetadataStore,
    disk: Disk,
    clock: WallClock,
    chance: Chance,
    open_index: OpenIndex | None = None,
    steps: StartSteps | None = None,
    memory: ConnectionMemory | None = None,
    own_links: OwnLinks | None = None,
    spans: SpanSink | None = None,
) -> RunningBookie:
    """Start a bookie that serves every entry it ever acknowledged. The caller keeps `metadata` open until `stop`.

    StartupError (one line for the administrator): folders or port cannot be used, or belong to another bookie or
    process. DamagedError: journal or index are provably damaged. ConfigError. MetadataUnavailableError. Nothing stays
    open after an error or a cancellation, at whatever moment. `steps` receives the durations of the start. `memory`:
    the budget of connections, if shared within the process. `own_links`: those of a client in this process.
    `spans`: takes the spans of traces; None: nothing is traced.
    """
    settings.service.check()
    if settings.fit_disk:
        settings = await fit_to_disk(settings, disk)
    disk = ReservedDisk(disk)
    steps = steps or StartSteps()
    guard = await open_guard(settings.security, disk, clock)
    try:
        with steps.step("identity"):
            identity = await _identify(settings, metadata, disk, chance)
    except BaseException:
        await guard.close()
        raise
    memory = memory or ConnectionMemory(settings.service.memory)
    tracing = None if spans is None else Tracing(settings.service.traces, spans, "quire.bookie", clock, chance)
    parts = _Parts(BookieData(identity), disk, clock, memory, own_links, tracing, guard=guard)
    running: RunningBookie | None = None
    try:
        parts.data.reserves = disk.reserves = await open_reserves(settings, disk)
        if identity.unused:
            await make_first_reserves(disk.reserves, settings, disk)
        answering: asyncio.Future[Bookie] = asyncio.get_running_loop().create_future()
        port = await _listen(settings, parts, answering)
        before = await _take_address(settings, metadata, identity, port, steps)
        open_index = open_index or partial(_open_index, settings, parts)
        await open_data(
            settings,
            parts.data,
            metadata=metadata,
            disk=disk,
            clock=clock,
            chance=chance,
            open_index=open_index,
            steps=steps,
        )
        running = _make_bookie(settings, parts, metadata, steps)
        answering.set_result(running.bookie)
        rack = (settings.rack, metadata, disk, chance, running.bookie_id, settings.advertise)
        with steps.step("rack"):
            late = await publish_rack(*rack)
        await running._begin(before)
        if late:
            running._spawn(publish_late_rack(*rack), "late rack")
    except BaseException:
        # A bookie that waits for its registration already serves clients that know its address: answer their requests.
        await (_close(parts) if running is None else running.stop())
        raise
    _log.info("bookie %s listens on %s:%d", running.bookie_id, settings.listen, running.port)
    return running


async def _identify(settings: BookieSettings, metadata: MetadataStore, disk: Disk, chance: Chance) -> StorageIdentity:
    return await claim_storage(
        disk,
        metadata,
        StorageFolders(settings.journal_paths, settings.ledger_paths, settings.index_dir),
        instance_id=await initialise(metadata, chance),
        host_name=settings.advertise,
        chance=chance,
        options=ClaimOptions(
            settings.allow_storage_expansion,
            settings.accept_lost_volumes,
            settings.bookie_id,
            must_be_id=settings.bookie_id_is_set,
        ),
    )


async def _open_index(settings: BookieSettings, parts: _Parts, path: str) -> IndexStore:
    place = IndexPlace(path, settings.ledger_paths, settings.index_cache_bytes)
    if parts.data.must_rebuild_index(settings):
        return await index_place.open_as_it_is(place)  # it is emptied, then rebuilt from the remaining entry logs
    return await index_place.open_index(parts.disk, place, rebuild_on_damage=settings.rebuild_index_on_damage)


async def _take_address(
    settings: BookieSettings, metadata: MetadataStore, identity: StorageIdentity, port: int, steps: StartSteps
) -> list[BookieId]:
    """Wait until no other bookie is registered with this address; return its earlier bookies. StartupError."""
    with steps.step("address"):
        address = BookieAddress(settings.advertise, port)
        await wait_until_free(metadata, identity.bookie, address, RegistrationSettings().takeover_timeout_s)
        return await predecessors(metadata, identity.bookie, address) if identity.unused else []


async def _listen(settings: BookieSettings, parts: _Parts, answering: "asyncio.Future[Bookie]") -> int:
    """Bind and return the port, so that a wrong one fails early; no client is accepted before `start_serving`."""
    connections, guard, service = parts.open_connections, parts.guard, settings.service
    try:
        parts.server = await asyncio.get_running_loop().create_server(
            lambda: Connection(answering.result(), connections, service, guard, parts.memory, parts.own_links),
            settings.listen,
            settings.port,
            start_serving=False,
        )
        for listening in parts.server.sockets:
            notice_dead_peers(listening)
        return int(parts.server.sockets[0].getsockname()[1])
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise StartupError(
            f"port {settings.port} on {settings.listen} cannot be listened on: {reason}; "
            "stop the other process or choose another --port (of a standalone: --bookie-port)"
        ) from error


def _make_bookie(settings: BookieSettings, parts: _Parts, metadata: MetadataStore, steps: StartSteps) -> RunningBookie:
    data, server = parts.data, parts.server
    assert data.journals is not None and data.storage is not None and server is not None
    running: RunningBookie | None = None

    def disk_space() -> tuple[int, int]:
        monitor = None if running is None else running.disk_monitor
        return (0, 0) if monitor is None else (monitor.total_bytes, monitor.free_bytes)

    def disk_full() -> None:
        if running is not None and running.disk_monitor is not None:
            running.disk_monitor.disk_full()

    bookie = Bookie(
        data.journals,
        data.storage,
        settings.service,
        disk_space=disk_space,
        on_disk_full=disk_full,
        clock=parts.clock,
        memory=parts.memory,
        traced=None if parts.tracing is None else TracedAdds(parts.tracing, str(data.identity.bookie)),
    )
    data.storage.on_deleted = bookie.ledger_deleted
    data.storage.on_space = bookie.space_freed
    port = server.sockets[0].getsockname()[1]
    running = RunningBookie(settings, parts, bookie, metadata, port, steps)
    return running


async def _close(parts: _Parts) -> None:
    """Release everything, the last opened first."""
    if parts.server is not None:
        parts.server.close()
    for connection in list(parts.open_connections):
        connection.abort()
    await parts.guard.close()
    await parts.data.close()
