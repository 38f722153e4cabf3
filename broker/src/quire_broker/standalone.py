"""Runs a whole cluster in one process: metadata, bookies, broker. The broker's only module that may start bookies.

    <data>/metadata/      the embedded metadata store (absent with an external one)
    <data>/bookie-<k>/    journal and ledgers of bookie k, from 0
    <data>/ledger-password   of the ledgers that the broker creates; the command line generates and reads it
    <data>/standalone.json   {"bookies": n}: fewer are refused, because all of them hold data

Start: metadata -> bookies -> ledger client -> broker; stop in reverse order. A bookie whose journal fails is stopped
and restarted on its data: it replays the journal, which is required after such a failure.
"""

import asyncio
import json
import logging
from dataclasses import field, replace
from typing import TYPE_CHECKING

from quire_bookie import limits as bookie_limits
from quire_bookie.client import LedgerClient
from quire_bookie.dataclass import dataclass
from quire_bookie.env.background import Background
from quire_bookie.env.chance import Chance
from quire_bookie.env.clock import WallClock
from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.env.disk import Disk
from quire_bookie.env.own_links import OwnLinks
from quire_bookie.env.span_export import SpanExport
from quire_bookie.errors import BookieUnavailableError, QuireError, StartupError, StorageError
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.model import BookieId, LedgerId
from quire_bookie.recovery import RunningAutoRecovery, start_auto_recovery
from quire_bookie.recovery.access import ClusterAccess
from quire_bookie.server import BookieSettings, RunningBookie, start_bookie
from quire_bookie.server.upkeep.read_only import ReadOnlyReason
from quire_bookie.settings.client import ClientSettings
from quire_bookie.settings.recovery import RecoverySettings
from quire_bookie.settings.security import ConnectionLimitSettings, SecuritySettings
from quire_broker.broker_process import start_broker
from quire_broker.server.broker import BrokerSettings, RunningBroker
from quire_broker.settings.managed_ledger import ManagedLedgerSettings

if TYPE_CHECKING:
    from quire_bookie.admin.routes import Route
    from quire_bookie.exposition.rendering import Collector

RESTART_PAUSE_S = 1.0
log = logging.getLogger("quire.standalone")


@dataclass(frozen=True, slots=True)
class StandaloneSettings:
    """Settings of all parts. `bookie` is a template; each bookie gets its own data folder and port. Port 0: free."""

    data: str
    bookies: int = 1
    bookie_port: int = 3181
    bookie: BookieSettings = field(default_factory=lambda: BookieSettings(data_dir=""))
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    client: ClientSettings = field(default_factory=ClientSettings)
    bookie_connections_max: int = bookie_limits.CONNECTIONS_MAX
    """Limit of each bookie."""
    recovery: RecoverySettings | None = field(default_factory=RecoverySettings)
    """None: no auditing and no replication."""


def quorums(bookies: int) -> tuple[int, int, int]:
    """Return ensemble, write quorum and ack quorum for this number of bookies: 1/1/1, 2/2/2, else 3/3/2."""
    return (bookies, bookies, bookies) if bookies < 3 else (3, 3, 2)


def with_quorums(settings: ManagedLedgerSettings, bookies: int) -> ManagedLedgerSettings:
    """Return the settings with the quorums that suit this number of bookies."""
    ensemble, write, ack = quorums(bookies)
    return replace(settings, ensemble_size=ensemble, write_quorum=write, ack_quorum=ack)


class RunningStandalone:
    """A running standalone, created by `run_standalone`."""

    def __init__(
        self,
        settings: StandaloneSettings,
        metadata: MetadataStore,
        disk: Disk,
        clock: WallClock,
        chance: Chance,
        spans: SpanExport | None = None,
    ) -> None:
        self._spans = spans
        self.settings = settings
        self.metadata = metadata
        self.bookies: list[RunningBookie] = []
        self.client: LedgerClient | None = None
        self.restarts = 0
        self.memory = ConnectionMemory(settings.broker.memory)
        """Memory of the connections of all parts together, except those between them."""
        self._own_links = OwnLinks()
        self.recovery: RunningAutoRecovery | None = None
        self._broker: RunningBroker | None = None
        self._disk, self._clock, self._chance = disk, clock, chance
        self._background = Background()
        self._access: ClusterAccess | None = None
        self._access_lock = asyncio.Lock()
        self._stopping = False

    @property
    def broker(self) -> RunningBroker:
        """The broker; available once `run_standalone` has returned."""
        if self._broker is None:
            raise StartupError("the broker has not been started")
        return self._broker

    async def start(self) -> None:
        """Start the parts in order."""
        await self._check_count()
        for index in range(self.settings.bookies):
            self.bookies.append(await self._start_bookie(index))
            self._background.start(self._keep(index), f"bookie {index}")
        self.client = await LedgerClient.open(
            self.metadata,
            self.settings.client,
            clock=self._clock,
            chance=self._chance,
            own_links=self._own_links,
        )
        if self.settings.recovery is not None:
            self._background.start(self._recover(self.settings.recovery), "auto-recovery")
        self._broker = await start_broker(
            self.settings.broker,
            metadata=self.metadata,
            ledger_client=self.client,
            clock=self._clock,
            chance=self._chance,
            more_routes=self._cluster_routes,
            more_collectors=self._collectors,
            memory=self.memory,
            spans=self._spans,
        )

    def _cluster_routes(self) -> "list[Route]":
        """Return the bookies' paths about the cluster: with embedded metadata no other process can answer them."""
        # Imported here: loading its library takes a third of the time to the first message.
        from quire_broker.admin.cluster_paths import cluster_routes

        return cluster_routes(self.metadata, self._clock, self._open_access)

    def _collectors(self) -> "list[Collector]":
        """Return the metrics of the bookies, which share the memory of connections with the broker."""
        from quire_bookie.admin.bookie_collector import BookieCollector
        from quire_bookie.exposition.spans import SpanCollector

        of_bookies = BookieCollector(lambda: self.bookies, own_memory=False)
        return [of_bookies] if self._spans is None else [of_bookies, SpanCollector(self._spans)]

    async def _open_access(self) -> ClusterAccess:
        async with self._access_lock:
            if self._access is None:
                self._access = await ClusterAccess.open(
                    self.metadata,
                    self.settings.recovery or RecoverySettings(),
                    self.settings.client,
                    clock=self._clock,
                    chance=self._chance,
                    own_links=self._own_links,
                )
            return self._access

    async def _recover(self, settings: RecoverySettings) -> None:
        """Keep auto-recovery running: the failure of one of its parts must not stop the standalone."""
        while True:
            try:
                self.recovery = await start_auto_recovery(
                    settings,
                    metadata=self.metadata,
                    clock=self._clock,
                    chance=self._chance,
                    name="standalone",
                    client_settings=self.settings.client,
                    end_limbo=self._end_limbo,
                    set_read_only=self._set_read_only,
                    own_links=self._own_links,
                )
            except QuireError as failure:
                log.error("auto-recovery cannot be started: %s", failure)
            else:
                await asyncio.wait([self.recovery.failed])
                log.error("auto-recovery failed and is restarted: %s", self.recovery.failed.result())
                await self.recovery.stop()
            await asyncio.sleep(RESTART_PAUSE_S)

    async def _end_limbo(self, bookie: BookieId, ledger: LedgerId) -> None:
        """End the limbo directly: the bookies of this process have no HTTP port of their own."""
        for running in self.bookies:
            if running.bookie_id == bookie:
                await running.storage.end_limbo(ledger)
                return
        raise BookieUnavailableError(f"bookie {bookie} is not in this process")

    async def _set_read_only(self, bookie: BookieId, on: bool) -> None:
        """Like `_end_limbo`; a drain reaches bookies of other processes over HTTP. LedgerError."""
        for running in self.bookies:
            if running.bookie_id == bookie:
                try:
                    await running.read_only_mode.set(ReadOnlyReason.OPERATOR, on)
                except (OSError, StorageError) as error:
                    raise BookieUnavailableError(f"bookie {bookie} could not store read-only={on}: {error}") from error
                return
        if self.recovery is None:
            raise BookieUnavailableError(f"bookie {bookie} is not in this process")
        await self.recovery.access.http.set_read_only(bookie, on)

    async def _check_count(self) -> None:
        """Store the number of bookies. Fewer would leave data without its bookie."""
        path = f"{self.settings.data}/standalone.json"
        wanted = self.settings.bookies
        await self._disk.make_dirs(self.settings.data)
        if await self._disk.exists(path):
            try:
                kept = int(json.loads(await self._disk.read_file(path))["bookies"])
            except (ValueError, KeyError, TypeError) as error:
                raise StartupError(f"{path} is damaged: it should contain the number of bookies") from error
            if wanted < kept:
                raise StartupError(
                    f"{self.settings.data} was created with {kept} bookies and all of them hold data; "
                    f"start with --bookies {kept} or more, not {wanted}"
                )
            if wanted == kept:
                return
        await self._disk.replace_file(path, json.dumps({"bookies": wanted}).encode())

    async def _start_bookie(self, index: int) -> RunningBookie:
        port = self.settings.bookie_port + index if self.settings.bookie_port else 0
        settings = replace(self.settings.bookie, data_dir=f"{self.settings.data}/bookie-{index}", port=port,
            shares_disk_with=self.settings.bookies,
            security=SecuritySettings(limits=ConnectionLimitSettings(self.settings.bookie_connections_max)),
        )  # fmt: skip
        return await start_bookie(
            settings,
            metadata=self.metadata,
            disk=self._disk,
            clock=self._clock,
            chance=self._chance,
            memory=self.memory,
            own_links=self._own_links,
            spans=self._spans,
        )

    async def _keep(self, index: int) -> None:
        """Restart the bookie each time it fails."""
        while True:
            failed = self.bookies[index].failed
            await asyncio.wait([failed])  # awaiting it directly would cancel it with us
            log.error("bookie %d failed and is restarted: %s", index, failed.result())
            await self.bookies[index].stop()
            while True:
                try:
                    self.bookies[index] = await self._start_bookie(index)
                    break
                except (QuireError, OSError) as failure:
                    log.error("bookie %d cannot be started: %s", index, failure)
                    await asyncio.sleep(RESTART_PAUSE_S)
            self.restarts += 1

    async def stop(self) -> None:
        """Stop everything in order. The caller closes the metadata store."""
        if self._stopping:
            return
        self._stopping = True
        if self._broker is not None:
            await self._broker.stop()
        if self._access is not None:
            await self._access.close()
        if self.client is not None:
            await self.client.close()
        await self._background.close()
        if self.recovery is not None:
            await self.recovery.stop()
        for bookie in self.bookies:
            await bookie.stop()


async def run_standalone(
    settings: StandaloneSettings,
    *,
    metadata: MetadataStore,
    disk: Disk,
    clock: WallClock,
    chance: Chance,
    spans: SpanExport | None = None,
) -> RunningStandalone:
    """Start everything and return when it serves. StartupError, ConfigError, DamagedError: nothing stays running."""
    running = RunningStandalone(settings, metadata, disk, clock, chance, spans)
    started = False
    try:
        await running.start()
        started = True
    finally:
        if not started:
            await running.stop()
    return running
