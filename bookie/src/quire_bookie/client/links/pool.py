"""The connections of one client: one per bookie and purpose, created at first use. Implements `Links`.

Owns the tasks that connect, the one timer that checks for overdue responses, and the record of bookies that were
recently unreachable or failed too often. Never chooses a replica.
"""

import asyncio
import logging
from collections.abc import Callable, Collection

from quire_bookie.client.links.bookie_link import Purpose
from quire_bookie.client.links.connection import BookieConnection, ConnectionHooks
from quire_bookie.client.links.quarantine import Quarantine
from quire_bookie.client.links.v3_connection import V3Connection
from quire_bookie.client.replica_health import ReplicaHealth
from quire_bookie.client.security import ClientSecurity
from quire_bookie.env.own_links import OwnLinks
from quire_bookie.metadata.service_info import BookieAddress
from quire_bookie.model import BookieId
from quire_bookie.settings.client import ClientSettings

_log = logging.getLogger("quire.client.pool")
_CHECKS_PER_TIMEOUT = 8
_PROBE_INTERVAL_S = 1.0
_V3_PURPOSES = (Purpose.V3, Purpose.DEFERRED_ADD)


class ConnectionPool:
    """Owns the connections of one client. `resolve` returns a bookie's address, or None if it never registered."""

    def __init__(
        self,
        resolve: Callable[[BookieId], BookieAddress | None],
        settings: ClientSettings,
        security: ClientSecurity | None = None,
        own_links: OwnLinks | None = None,
    ) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._connections: dict[tuple[BookieId, Purpose], BookieConnection] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self.health = ReplicaHealth(self._loop.time, lambda: self.suspects, lambda: self.quarantined)
        self._hooks = ConnectionHooks(
            resolve, self._spawn, self._watch, self._reached, security, self.health, own_links
        )
        self._check_s = min(settings.add_timeout_s, settings.read_timeout_s) / _CHECKS_PER_TIMEOUT
        self._checking: asyncio.TimerHandle | None = None
        self._suspects: dict[BookieId, tuple[float, asyncio.TimerHandle]] = {}
        self._quarantine = Quarantine(
            settings.quarantine_errors, settings.quarantine_interval_s, settings.quarantine_s, self._loop.time
        )
        self._listeners: list[Callable[[], None]] = []
        self._closed = False

    def link(self, bookie: BookieId, purpose: Purpose) -> BookieConnection:
        """See Links. All requests fail after the pool is closed."""
        connection = self._connections.get((bookie, purpose))
        if connection is None:
            kind = V3Connection if purpose in _V3_PURPOSES else BookieConnection
            connection = kind(bookie, self._settings, self._hooks)
            if self._closed:
                connection.close()
            self._connections[bookie, purpose] = connection
        return connection

    def v3_link(self, bookie: BookieId, purpose: Purpose = Purpose.V3) -> V3Connection:
        """See Links."""
        connection = self.link(bookie, purpose)
        assert isinstance(connection, V3Connection)
        return connection

    @property
    def suspects(self) -> Collection[BookieId]:
        """See Links."""
        return self._suspects.keys()

    @property
    def quarantined(self) -> Collection[BookieId]:
        """Bookies that failed too often: ensembles avoid them while there are enough others."""
        return self._quarantine.members()

    def note_failure(self, bookie: BookieId) -> None:
        """See Links."""
        if self._quarantine.failed(bookie) and not self._closed:
            _log.warning("bookie %s fails too often: new ensembles avoid it temporarily", bookie)
            self._notify()

    def on_suspects_changed(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change of `suspects`, and when a bookie enters quarantine."""
        self._listeners.append(listener)

    def trust(self, bookie: BookieId) -> None:
        """Remove a bookie that registered again from the suspects."""
        if bookie in self._suspects:
            self._reached(bookie, True)

    def now_s(self) -> float:
        """See Links."""
        return self._loop.time()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """See Links."""
        return self._loop.call_later(delay_s, callback)

    @property
    def connections(self) -> Collection[BookieConnection]:
        """All connections, for their counters."""
        return self._connections.values()

    async def close(self) -> None:
        """Drop all connections; unanswered requests fail."""
        self._closed = True
        self._listeners.clear()
        if self._checking is not None:
            self._checking.cancel()
        for task in self._connecting:
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        for connection in list(self._connections.values()):
            connection.close()
        for _, timer in self._suspects.values():
            timer.cancel()
        self._suspects.clear()

    def _spawn(self, connection: BookieConnection) -> None:
        task = self._loop.create_task(connection.connect(), name=f"connect to {connection.bookie}")
        self._connecting.add(task)
        task.add_done_callback(self._connected)

    def _connected(self, task: asyncio.Task[None]) -> None:
        self._connecting.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s failed", task.get_name(), exc_info=error)

    def _watch(self) -> None:
        if self._checking is None and not self._closed:
            self._checking = self._loop.call_later(self._check_s, self._check)

    def _check(self) -> None:
        self._checking = None
        now_s = self._loop.time()
        busy = False
        for connection in list(self._connections.values()):
            if connection.is_busy:
                connection.check_overdue(now_s)
                busy = True
        if busy:
            self._watch()

    def _reached(self, bookie: BookieId, reached: bool) -> None:
        if self._closed:
            return
        self.health.version += 1
        former = self._suspects.pop(bookie, None)
        if former is not None:
            former[1].cancel()
        if not reached:
            since_s = self._loop.time() if former is None else former[0]
            self._suspects[bookie] = (since_s, self._loop.call_later(_PROBE_INTERVAL_S, self._probe, bookie))
        if reached is not (former is None):
            self._notify()

    def _notify(self) -> None:
        for listener in list(self._listeners):
            listener()

    def _probe(self, bookie: BookieId) -> None:
        """Try to connect again, so that a restarted bookie is used soon even if there is no request for it."""
        since_s, _ = self._suspects[bookie]
        if self._loop.time() - since_s >= self._settings.suspect_s:
            # If it is dead, its registration has expired by now.
            self._reached(bookie, True)
            return
        self._suspects[bookie] = (since_s, self._loop.call_later(_PROBE_INTERVAL_S, self._probe, bookie))
        self.link(bookie, Purpose.READ).probe()
