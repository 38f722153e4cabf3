"""A linearizable metadata store in memory, with leases that outlive a dead process and results that stay unknown.

`SimMetadata` is the server that all nodes share; `SimMetadataStore` is one node's session and implements the
`MetadataStore` port. Faults: unreachable (not executed), lost responses (executed or not, unknown to the caller),
requests that time out and are executed seconds later, slow responses, watches that lose events and report RESYNC, empty
listings, and an older snapshot that replaces the whole state.
"""

import asyncio
import contextlib
import contextvars
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace

from quire_bookie.errors import (
    BadVersionError,
    MetadataUnavailableError,
    MetadataUnknownError,
    NodeMissingError,
)
from quire_bookie.metadata.store import (
    ABSENT,
    Check,
    Delete,
    Event,
    EventKind,
    Get,
    Node,
    Operation,
    Put,
    Read,
    SessionState,
)


@dataclass(slots=True)
class _Stored:
    value: bytes
    version: int
    session: int | None


Snapshot = dict[str, _Stored]
"""All nodes except ephemeral ones, with their versions; the counters of ledger ids are versions."""


@dataclass(slots=True)
class SimMetadata:
    """Owns the server's state and its faults."""

    chance: random.Random
    delay_s: tuple[float, float] = (0.0005, 0.004)
    session_timeout_s: float = 10.0
    unknown_chance: float = 0.0
    late_chance: float = 0.0
    """Probability that a write fails with a timeout at once and is executed later, if its condition then holds."""
    late_s: tuple[float, float] = (0.05, 3.0)
    listings_empty: bool = False
    """Whether scans find nothing, as in a store restored from an old backup, or in another store."""
    put_away: "dict[str, _Stored]" = field(default_factory=dict)
    """Vanished nodes, until they come back: the store went back in time, and will return to the present."""
    away: bool = False
    on_write: "list[Callable[[str], None]]" = field(default_factory=list)
    """Called with the key of each write when it takes effect."""
    nodes: dict[str, _Stored] = field(default_factory=dict)
    history: list[tuple[str, str]] = field(default_factory=list)
    watches: "list[SimWatch]" = field(default_factory=list)
    sessions: int = 0
    expired: set[int] = field(default_factory=set)
    era: int = 0
    """Number of restores of older snapshots that sessions notice."""
    breaks: int = 0
    """Number of times that all connections broke."""

    def snapshot(self) -> Snapshot:
        """Return a copy of the current nodes."""
        return {key: node for key, node in self.nodes.items() if node.session is None}

    def put_back(self, snapshot: Snapshot, *, noticed: bool = True) -> None:
        """Replace everything by an earlier `snapshot`: nodes, versions and counters go back, and connections break.

        All leases end, watches get a RESYNC, and a session notices with its next response. If not `noticed`, the
        snapshot has the leases too, and its revision is above the last one that sessions saw.
        """
        self.breaks += 1
        if not noticed:
            self.nodes = snapshot | {key: node for key, node in self.nodes.items() if node.session is not None}
            return
        self.nodes = dict(snapshot)
        self.expired.update(range(1, self.sessions + 1))
        self.era += 1
        for watch in list(self.watches):
            watch.lose_events()

    def expire(self, session: int) -> None:
        """Expire a lease: remove its ephemeral nodes and refuse its writes."""
        self.expired.add(session)
        for key in sorted(key for key, node in self.nodes.items() if node.session == session):
            self.remove(key)

    def write(self, key: str, value: bytes, session: int | None) -> int:
        """Write without a check and return the new version. MetadataUnavailableError if the lease has expired."""
        if session in self.expired:
            raise MetadataUnavailableError("the simulated lease has expired")
        old = self.nodes.get(key)
        version = 0 if old is None else old.version + 1
        self.nodes[key] = _Stored(value, version, session)
        self._notify(EventKind.CREATED if old is None else EventKind.MODIFIED, key)
        for listener in self.on_write:
            listener(key)
        return version

    def remove(self, key: str) -> None:
        """Delete without a check."""
        if self.nodes.pop(key, None) is not None:
            self._notify(EventKind.DELETED, key)

    def vanish(self, keys: Sequence[str]) -> None:
        """Hide these nodes from listings and readers until `come_back`."""
        for key in keys:
            if key in self.nodes:
                self.put_away[key] = self.nodes[key]
                self.remove(key)

    def come_back(self) -> None:
        """Restore all vanished nodes unchanged."""
        returning, self.put_away = self.put_away, {}
        for key, node in returning.items():
            if key not in self.nodes:
                self.nodes[key] = node
                self._notify(EventKind.CREATED, key)

    def version(self, key: str) -> int:
        """Return the version of a node, or ABSENT."""
        node = self.nodes.get(key)
        return ABSENT if node is None else node.version

    def _notify(self, kind: EventKind, key: str) -> None:
        self.history.append((kind.value, key))
        for watch in list(self.watches):
            if key.startswith(watch.prefix):
                watch.offer(Event(kind, key))


class SimWatch:
    """Implements `Watch`: events in order, each after a delay."""

    def __init__(self, server: SimMetadata, prefix: str) -> None:
        self._server = server
        self.prefix = prefix
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()
        server.watches.append(self)

    def offer(self, event: Event) -> None:
        """Queue an event; it is delivered a little later."""
        self._queue.put_nowait(event)

    def lose_events(self) -> None:
        """Drop undelivered events, as compaction does."""
        while not self._queue.empty():
            self._queue.get_nowait()
        self._queue.put_nowait(Event(EventKind.RESYNC, self.prefix))

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Yield events until closed."""
        while (event := await self._queue.get()) is not None:
            await asyncio.sleep(self._server.chance.uniform(*self._server.delay_s))
            yield event

    async def close(self) -> None:
        """End the stream."""
        if self in self._server.watches:
            self._server.watches.remove(self)
        self._queue.put_nowait(None)


class SimMetadataStore:
    """One session. `cut` makes the server unreachable for this session alone."""

    def __init__(self, server: SimMetadata) -> None:
        self._server = server
        server.sessions += 1
        self._session = server.sessions
        self._era = server.era
        self._listeners: list[Callable[[SessionState], None]] = []
        self._watches: list[SimWatch] = []
        self.cut = False
        self.read_since_cut: set[str] = set()
        """Keys that this session has read since it was last cut."""
        self._dead = False

    # ---- faults
    def reach(self) -> None:
        """Make the server reachable again for this session, if its process lives."""
        if self.cut:
            self.read_since_cut.clear()
        self.cut = self._dead

    def cut_for_good(self) -> None:
        """Cut a dead process; its lease expires after its TTL."""
        self.cut = self._dead = True
        for watch in self._watches:
            if watch in self._server.watches:
                self._server.watches.remove(watch)

    def expire(self) -> None:
        """Lose the lease while the process lives on, then get a new one."""
        self.lose_session()
        self.renew_session()

    def lose_session(self, noticed_s: float = 0.0) -> None:
        """Expire the lease while the process lives and does not reach the server, until `renew_session`.

        The process notices after `noticed_s`: other processes may have its nodes by then.
        """
        self.cut = True
        self._server.expire(self._session)
        if noticed_s:
            asyncio.get_running_loop().call_later(noticed_s, self._notice_loss, self._session)
        else:
            self._tell(SessionState.LOST)

    def _notice_loss(self, session: int) -> None:
        """Report a lease that expired, unless it was replaced meanwhile."""
        if session == self._session:
            self._tell(SessionState.LOST)

    def renew_session(self) -> None:
        """Make the server reachable again and grant a lease in place of one that expired. Not for a dead process.

        Does nothing if another fault ended first: the lease that it granted is valid, and its nodes would stay forever.
        """
        if self._session not in self._server.expired:
            return
        self.reach()
        if self._dead:
            return
        self._server.sessions += 1
        self._session = self._server.sessions
        self._tell(SessionState.RENEWED)

    def lease_ran_out(self) -> None:
        """Expire the lease of a dead process; called by the world."""
        self._server.expire(self._session)

    def _tell(self, state: SessionState) -> None:
        for listener in list(self._listeners):
            listener(state)

    async def _travel(self) -> None:
        await asyncio.sleep(self._server.chance.uniform(*self._server.delay_s))
        if self.cut or self._server.away:
            raise MetadataUnavailableError("the simulated metadata store cannot be reached")

    async def _answer(self, *, write: bool) -> None:
        await asyncio.sleep(self._server.chance.uniform(*self._server.delay_s))
        if self._era != self._server.era and not self._dead:
            self._era = self._server.era
            self.expire()
        if write and self._server.unknown_chance and self._server.chance.random() < self._server.unknown_chance:
            raise MetadataUnknownError("the simulated response was lost")

    def _lose_request(self, write: Callable[[], object]) -> None:
        """Raise for a request that never arrives, or arrives after its caller timed out."""
        server = self._server
        if server.late_chance and server.chance.random() < server.late_chance:
            asyncio.get_running_loop().call_later(
                server.chance.uniform(*server.late_s), _try, write, context=contextvars.Context()
            )
            raise MetadataUnknownError("the simulated store did not respond in time")
        if self._server.unknown_chance and self._server.chance.random() < self._server.unknown_chance / 2:
            raise MetadataUnknownError("the simulated request was lost")

    # ---- the port
    async def get(self, key: str) -> Node | None:
        """Read a node, linearizably."""
        await self._travel()
        found = self._view(key)
        await self._answer(write=False)
        self.read_since_cut.add(key)
        return found

    async def read(self, reads: Sequence[Read]) -> list[list[Node]]:
        """Read several nodes at one moment, linearizably."""
        await self._travel()
        found = self._see(reads)
        await self._answer(write=False)
        self.read_since_cut.update(read.key for read in reads if isinstance(read, Get))
        return found

    async def put(self, key: str, value: bytes, *, expected: int | None = None, ephemeral: bool = False) -> int:
        """Write a node, unconditionally or by compare-and-set."""
        session = self._session if ephemeral else None

        def write() -> int:
            if expected is not None and self._server.version(key) != expected:
                raise BadVersionError(f"{key}: version {self._server.version(key)}, expected {expected}")
            return self._server.write(key, value, session)

        await self._travel()
        self._lose_request(write)
        try:
            version = write()
        except BadVersionError:
            await self._answer(write=False)
            raise
        await self._answer(write=True)
        return version

    async def put_sequential(self, prefix: str, value: bytes, *, ephemeral: bool = False) -> str:
        """Create a node with a number from the parent's version."""
        session = self._session if ephemeral else None

        def write() -> str:
            number = self._server.write(prefix.rpartition("/")[0], b"", None)
            self._server.write(f"{prefix}{number}", value, session)
            return f"{prefix}{number}"

        await self._travel()
        self._lose_request(write)
        key = write()
        await self._answer(write=True)
        return key

    async def delete(self, key: str, *, expected: int | None = None) -> None:
        """Delete a node, unconditionally or by compare-and-set."""

        def write() -> None:
            version = self._server.version(key)
            if expected is not None and version != expected:
                raise BadVersionError(f"{key}: version {version}, expected {expected}")
            if version == ABSENT:
                raise NodeMissingError(key)
            self._server.remove(key)

        await self._travel()
        self._lose_request(write)
        write()
        await self._answer(write=True)

    async def transact(
        self, checks: Sequence[Check], operations: Sequence[Operation], reads: Sequence[Read] = ()
    ) -> list[list[Node]]:
        """Execute the operations atomically if all checks hold."""
        session = self._session

        def write() -> list[list[Node]]:
            for check in checks:
                if self._server.version(check.key) != check.version:
                    raise BadVersionError(f"{check.key}: version {self._server.version(check.key)}")
            for operation in operations:
                match operation:
                    case Put(key, value, ephemeral):
                        self._server.write(key, value, session if ephemeral else None)
                    case Delete(key):
                        self._server.remove(key)
            return self._see(reads)

        await self._travel()
        self._lose_request(write)
        found = write()
        await self._answer(write=True)
        return found

    async def children(self, key: str) -> list[str]:
        """List the first path components below a key."""
        await self._travel()
        base = key.rstrip("/") + "/"
        names = {name[len(base) :].split("/")[0] for name in self._server.nodes if name.startswith(base)}
        await self._answer(write=False)
        return sorted(names)

    async def count(self, prefix: str) -> int:
        """Count the nodes that a listing would show."""
        await self._travel()
        found = 0 if self._server.listings_empty else sum(key.startswith(prefix) for key in self._server.nodes)
        await self._answer(write=False)
        return found

    async def scan(self, prefix: str, *, page_keys: int = 1000, keys_only: bool = False) -> AsyncIterator[list[Node]]:
        """Yield pages of one snapshot."""
        await self._travel()
        nodes = [] if self._server.listings_empty else sorted(self._server.nodes)
        found = [node for key in nodes if key.startswith(prefix) and (node := self._view(key))]
        if keys_only:
            found = [replace(node, value=b"") for node in found]
        for start in range(0, len(found), page_keys):
            await self._answer(write=False)
            yield found[start : start + page_keys]

    async def watch(self, prefix: str) -> SimWatch:
        """Watch changes from now on."""
        await self._travel()
        watch = SimWatch(self._server, prefix)
        self._watches.append(watch)
        return watch

    @property
    def connection_breaks(self) -> int:
        """Number of times that all connections broke; single breaks are not simulated."""
        return self._server.breaks

    def on_session(self, listener: Callable[[SessionState], None]) -> Callable[[], None]:
        """Call `listener` at changes of the lease. The returned function ends that; further calls do nothing."""
        self._listeners.append(listener)

        def remove() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return remove

    async def close(self) -> None:
        """End the session at once."""
        for watch in self._watches:
            await watch.close()
        self._server.expire(self._session)
        self.cut = True

    def lose_events(self) -> None:
        """Drop the undelivered events of all watches of this session."""
        for watch in self._watches:
            if watch in self._server.watches:
                watch.lose_events()

    def _see(self, reads: Sequence[Read]) -> list[list[Node]]:
        """Return the present nodes of each read."""
        found = []
        for read in reads:
            if isinstance(read, Get):
                keys = [read.key]
            else:
                keys = sorted(key for key in self._server.nodes if key.startswith(read.prefix))[: read.nodes_max]
            found.append([node for key in keys if (node := self._view(key)) is not None])
        return found

    def _view(self, key: str) -> Node | None:
        stored = self._server.nodes.get(key)
        if stored is None:
            return None
        return Node(key, stored.value, stored.version, stored.session is not None, stored.session == self._session)


def _try(write: Callable[[], object]) -> None:
    """Execute a late request and ignore its errors: no caller waits for its result."""
    with contextlib.suppress(BadVersionError, NodeMissingError, MetadataUnavailableError):
        write()
