"""The life of one bookie: folders, identity, journal, storage, replay, registration, listening; and back in order.

Never answers a request itself. Starting: nothing is listened on before replay has brought back everything that was
acknowledged, and the registration comes last, so whoever finds the bookie can reach it. Stopping goes the other way.

A journal that cannot write any more ends the bookie: its registration goes at once, adds and fences get EIO, reads go
on for `poisoned_reads_s` at most. The owner of the process learns it from `failed` and decides when to stop.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from quire_bookie.env.chance import Chance
from quire_bookie.env.clock import WallClock
from quire_bookie.env.disk import Disk
from quire_bookie.env.index_store import IndexStore
from quire_bookie.errors import DiskFullError, StartupError
from quire_bookie.journal import JournalPositions, Journals
from quire_bookie.metadata.initialise import initialise
from quire_bookie.metadata.service_info import BookieServiceInfo, bookie_endpoint, http_endpoint
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.model import BookieId
from quire_bookie.server.bookie import Bookie
from quire_bookie.server.connections import Connection, OpenConnections
from quire_bookie.server.disk_monitor import DiskMonitor
from quire_bookie.server.garbage_collection import GarbageCollection
from quire_bookie.server.registration import BookieRegistration
from quire_bookie.server.replaying import JournalMarks, ReplayTarget
from quire_bookie.server.security.guard import Guard
from quire_bookie.server.security.opening import open_guard
from quire_bookie.server.settings import BookieSettings
from quire_bookie.server.storage_identity import StorageFolders, StorageIdentity, claim_storage
from quire_bookie.storage.index_rocksdb import RocksIndexStore
from quire_bookie.storage.ledger_storage import LedgerStorage

_log = logging.getLogger("quire.server")

OpenIndex = Callable[[str], Awaitable[IndexStore]]
"""Opens the index store in a folder."""


class BookieState(Enum):
    """What a bookie takes."""

    WRITABLE = "writable"
    READ_ONLY = "read-only"
    POISONED = "poisoned"
    STOPPED = "stopped"


@dataclass(slots=True)
class _Parts:
    """What was opened so far, to be closed in the other direction when a later step fails."""

    identity: StorageIdentity
    index: IndexStore | None = None
    journal: Journals | None = None
    storage: LedgerStorage[JournalPositions] | None = None
    server: asyncio.Server | None = None
    open_connections: OpenConnections = field(default_factory=OpenConnections)
    guard: Guard = field(default_factory=Guard)


class RunningBookie:
    """A bookie that serves. Made by `start_bookie`."""

    def __init__(
        self, settings: BookieSettings, parts: _Parts, bookie: Bookie, metadata: MetadataStore, port: int
    ) -> None:
        assert parts.journal is not None and parts.storage is not None
        self.settings = settings
        self.bookie_id: BookieId = parts.identity.bookie
        self.port = port
        self.bookie = bookie
        self.journal = parts.journal
        self.storage = parts.storage
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        """Done, with the reason, when the bookie cannot go on: stop it and start it anew, or end the process."""
        self.guard = parts.guard
        endpoints = [bookie_endpoint(settings.advertise, port, tls=parts.guard.offers_tls)]
        if settings.http_port > 0:
            endpoints.append(http_endpoint(settings.advertise, settings.http_port))
        self.registration = BookieRegistration(metadata, self.bookie_id, BookieServiceInfo(tuple(endpoints)))
        self.garbage_collection = GarbageCollection(
            parts.storage, metadata, parts.identity.instance_id, settings.garbage_collection
        )
        self._parts = parts
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._stopped = asyncio.Event()
        self.disk_monitor: DiskMonitor | None = None

    @property
    def state(self) -> BookieState:
        """What it takes at the moment."""
        if self._stopping:
            return BookieState.STOPPED
        if self.bookie.poisoned:
            return BookieState.POISONED
        return BookieState.READ_ONLY if self.bookie.read_only else BookieState.WRITABLE

    async def stop(self) -> None:
        """Unregister, answer what is due, flush, move the mark, release. A second call waits for the first.

        Never fails because of the disk: what cannot be flushed stays in the journal.
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
            # What is in the cache was never acknowledged or is in the journal: the next start replays it.
            self.storage.failure = self.storage.failure or self.failed.result()
        try:
            await _close(self._parts)
        finally:
            self._stopped.set()
        _log.info("bookie %s stopped", self.bookie_id)

    async def set_read_only(self, read_only: bool) -> None:
        """Take no normal adds, or take them again, and say so in the metadata."""
        self.bookie.read_only = read_only
        await self.registration.set_read_only(read_only)

    def _fail(self, error: BaseException) -> None:
        """Journal or storage cannot be trusted any more."""
        if self.failed.done():
            return
        self.bookie.poison(error)
        self.failed.set_result(error)
        _log.critical("bookie %s takes no writes any more: %s", self.bookie_id, error)
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
            _log.warning("%d connections did not take their answers in time", len(connections))
        for connection in list(connections):
            connection.abort()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"bookie {self.bookie_id} {name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """A background task never ends by itself: an unforeseen error ends the bookie, loudly."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    async def _begin(self, disk: Disk) -> None:
        """Everything that runs beside the requests."""
        settings = self.settings
        monitor = DiskMonitor(
            disk,
            (*settings.journal_paths, *settings.ledger_paths),
            self.set_read_only,
            threshold=settings.disk_usage_threshold,
            low_watermark=settings.disk_usage_low_watermark,
            interval_s=settings.disk_check_interval_s,
            out_of_space=lambda: self.storage.disk_full,
        )
        self.disk_monitor = monitor
        self.journal.on_poison = self._fail
        self.journal.on_full = lambda _: monitor.disk_full()
        self.storage.on_failure = self._fail
        if self.journal.full is not None:
            monitor.disk_full()
        if self.storage.failure is not None or self.journal.poisoned:
            cause = self.storage.failure or "its journal cannot be written"
            raise StartupError(f"bookie {self.bookie_id} failed while starting: {cause}")
        self.bookie.read_only = await monitor.first_look()
        await self.registration.start(read_only=self.bookie.read_only)
        self._spawn(monitor.run(), "disk monitor")
        self._spawn(self.garbage_collection.run(), "garbage collection")


async def start_bookie(
    settings: BookieSettings,
    *,
    metadata: MetadataStore,
    disk: Disk,
    clock: WallClock,
    chance: Chance,
    open_index: OpenIndex | None = None,
) -> RunningBookie:
    """A bookie that serves, with everything that it ever acknowledged. The caller keeps `metadata` open until `stop`.

    StartupError (one line for a person): folders or port cannot be used, or belong to somebody else. DamagedError:
    journal or index are provably damaged. ConfigError. MetadataUnavailableError. Nothing stays open after an error.
    """
    settings.service.check()
    guard = await open_guard(settings.security, disk, clock)
    instance_id = await initialise(metadata, chance)
    folders = StorageFolders(settings.journal_paths, settings.ledger_paths)
    identity = await claim_storage(
        disk, metadata, folders, instance_id=instance_id, host_name=settings.advertise, chance=chance
    )
    parts = _Parts(identity, guard=guard)
    try:
        open_index = open_index or partial(RocksIndexStore.open, cache_bytes=settings.index_cache_bytes)
        await _open_data(settings, parts, disk, chance, open_index)
        running = await _serve(settings, parts, metadata)
        await running._begin(disk)
    except BaseException:
        await _close(parts)
        raise
    _log.info("bookie %s listens on %s:%d", running.bookie_id, settings.listen, running.port)
    return running


async def _open_data(
    settings: BookieSettings, parts: _Parts, disk: Disk, chance: Chance, open_index: OpenIndex
) -> None:
    """Journal, storage, and replay of the one into the other."""
    parts.journal = await Journals.open(disk, settings.journal_paths, settings.journal, chance=chance)
    parts.index = await open_index(settings.index_path)
    parts.storage = await LedgerStorage.open(
        disk=disk,
        index=parts.index,
        directories=settings.ledger_paths,
        settings=settings.storage,
        marks=JournalMarks(parts.journal),
        chance=chance,
    )
    _refuse_lost_half(settings, parts.identity, parts.journal, parts.storage)
    target = ReplayTarget(parts.storage)
    summary = await parts.journal.replay(target.deliver, target.again)
    if summary.records:
        _log.info(
            "replayed %d entries in %d journal groups%s%s",
            target.entries,
            summary.groups,
            "" if summary.clean else " after an unclean end",
            f"; {target.orphans} entries of deleted ledgers" if target.orphans else "",
        )
        try:
            await parts.storage.flush()
        except DiskFullError as error:
            _log.warning("what was replayed stays in memory and in the journal: %s", error)


def _refuse_lost_half(
    settings: BookieSettings, identity: StorageIdentity, journals: Journals, storage: LedgerStorage[JournalPositions]
) -> None:
    """An emptied folder beside one with data lost entries that were acknowledged: they must not become *no such entry*.

    A first start makes the journal's mark, then the storage, then the journal's first file: a crash in between leaves
    neither of the two states that are refused.
    """
    lost = None
    if not storage.is_new and any(journal.is_new for journal in journals.journals):
        lost = settings.journal_paths[0]
    elif storage.is_new and any(mark.generation > 0 for mark in journals.mark):
        lost = settings.ledger_paths[0]
    if lost is not None:
        raise StartupError(
            f"the folder {lost} of bookie {identity.bookie} has lost its files; put them back, or empty all folders "
            "to start a new bookie"
        )


async def _serve(settings: BookieSettings, parts: _Parts, metadata: MetadataStore) -> RunningBookie:
    assert parts.journal is not None and parts.storage is not None
    running: RunningBookie | None = None

    def disk_space() -> tuple[int, int]:
        monitor = None if running is None else running.disk_monitor
        return (0, 0) if monitor is None else (monitor.total_bytes, monitor.free_bytes)

    def disk_full() -> None:
        if running is not None and running.disk_monitor is not None:
            running.disk_monitor.disk_full()

    bookie = Bookie(parts.journal, parts.storage, settings.service, disk_space=disk_space, on_disk_full=disk_full)
    loop = asyncio.get_running_loop()
    try:
        parts.server = await loop.create_server(
            lambda: Connection(bookie, parts.open_connections, settings.service, parts.guard),
            settings.listen,
            settings.port,
        )
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise StartupError(
            f"port {settings.port} on {settings.listen} cannot be listened on: {reason}; "
            "stop the other process or choose another port"
        ) from error
    port = parts.server.sockets[0].getsockname()[1]
    running = RunningBookie(settings, parts, bookie, metadata, port)
    return running


async def _close(parts: _Parts) -> None:
    """Release everything, the last opened first. A flush that fails is logged: the journal has it all."""
    if parts.server is not None:
        parts.server.close()
    for connection in list(parts.open_connections):
        connection.abort()
    await parts.guard.close()
    async with contextlib.AsyncExitStack() as closing:  # what fails to close keeps nothing else open
        closing.callback(parts.identity.release)
        if parts.index is not None:
            closing.push_async_callback(parts.index.close)
        if parts.journal is not None:
            closing.push_async_callback(parts.journal.close)
        if parts.storage is not None:
            closing.push_async_callback(parts.storage.close)
