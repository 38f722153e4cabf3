"""A linearizable metadata store in memory, with leases that outlive a dead process and results that stay unknown.

`SimMetadata` is the server that all nodes share; `SimMetadataStore` is one node's session and implements the
`MetadataStore` port. Faults: unreachable (nothing done), lost answers (done or not, the caller cannot tell), requests
that time out and are done seconds later, slow answers, watches that lose events and say so by RESYNC, listings that
come back empty, and an older snapshot that takes the place of everything.
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
    Node,
    Operation,
    Put,
    SessionState,
)


@dataclass(slots=True)
class _Stored:
    value: bytes
    version: int
    session: int | None


Snapshot = dict[str, _Stored]
"""Every node but those of leases, with its version; the counters of ledger ids are versions."""


@dataclass(slots=True)
class SimMetadata:
    """The server's state and its faults."""

    chance: random.Random
    delay_s: tuple[float, float] = (0.0005, 0.004)
    session_timeout_s: float = 10.0
    unknown_chance: float = 0.0
    late_chance: float = 0.0
    """Of a write: its caller hears of a timeout at once, and it is done later, if its condition then holds."""
    late_s: tuple[float, float] = (0.05, 3.0)
    listings_empty: bool = False
    """Scans find nothing: what a store says that was restored from an old backup, or is another one."""
    put_away: "dict[str, _Stored]" = field(default_factory=dict)
    """Nodes that vanished and come back: the store went back in time, and will go forth again."""
    away: bool = False
    on_write: "list[Callable[[str], None]]" = field(default_factory=list)
    """Told the key of each write as it takes effect."""
    nodes: dict[str, _Stored] = field(default_factory=dict)
    history: list[tuple[str, str]] = field(default_factory=list)
    watches: "list[SimWatch]" = field(default_factory=list)
    sessions: int = 0
    expired: set[int] = field(default_factory=set)
    era: int = 0
    """How often an older snapshot was put back that sessions notice."""
    breaks: int = 0
    """How often every connection broke."""

    def snapshot(self) -> Snapshot:
        """Return a copy of what the store holds now."""
        return {key: node for key, node in self.nodes.items() if node.session is None}

    def put_back(self, snapshot: Snapshot, *, noticed: bool = True) -> None:
        """Replace everything by an earlier `snapshot`: nodes, versions and counters go back. Connections broke.

        No lease is left, watches get a RESYNC, and a session notices with the next answer that it gets. Not `noticed`:
        the snapshot has the leases as well, and the revision has come past the one that sessions saw last.
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
        """The lease ran out: its ephemeral nodes go, and nobody writes with it any more."""
        self.expired.add(session)
        for key in sorted(key for key, node in self.nodes.items() if node.session == session):
            self.remove(key)

    def write(self, key: str, value: bytes, session: int | None) -> int:
        """Put without a check; returns the new version. MetadataUnavailableError when the lease has run out."""
        if session in self.expired:
            raise MetadataUnavailableError("the simulated lease has run out")
        old = self.nodes.get(key)
        version = 0 if old is None else old.version + 1
        self.nodes[key] = _Stored(value, version, session)
        self._notify(EventKind.CREATED if old is None else EventKind.MODIFIED, key)
        for told in self.on_write:
            told(key)
        return version

    def remove(self, key: str) -> None:
        """Delete without a check."""
        if self.nodes.pop(key, None) is not None:
            self._notify(EventKind.DELETED, key)

    def vanish(self, keys: Sequence[str]) -> None:
        """These nodes are not there any more, in no listing and for no reader, until `come_back`."""
        for key in keys:
            if key in self.nodes:
                self.put_away[key] = self.nodes[key]
                self.remove(key)

    def come_back(self) -> None:
        """Everything that vanished is there again, as it was."""
        returning, self.put_away = self.put_away, {}
        for key, node in returning.items():
            if key not in self.nodes:
                self.nodes[key] = node
                self._notify(EventKind.CREATED, key)

    def version(self, key: str) -> int:
        """Version or ABSENT."""
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
        """An event happened; it is seen a little later."""
        self._queue.put_nowait(event)

    def lose_events(self) -> None:
        """Compaction took events away before they were read."""
        while not self._queue.empty():
            self._queue.get_nowait()
        self._queue.put_nowait(Event(EventKind.RESYNC, self.prefix))

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Events until closed."""
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
        """The server can be reached again by this session, if its process lives."""
        if self.cut:
            self.read_since_cut.clear()
        self.cut = self._dead

    def cut_for_good(self) -> None:
        """The process died: the lease expires by itself after its time."""
        self.cut = self._dead = True
        for watch in self._watches:
            if watch in self._server.watches:
                self._server.watches.remove(watch)

    def expire(self) -> None:
        """Lose the lease while the process lives on, then get a new one."""
        self.lose_session()
        self.renew_session()

    def lose_session(self, noticed_s: float = 0.0) -> None:
        """The lease runs out while the process lives on and does not reach the server, until `renew_session`.

        The process notices it so much later: others may have its nodes by then.
        """
        self.cut = True
        self._server.expire(self._session)
        if noticed_s:
            asyncio.get_running_loop().call_later(noticed_s, self._tell, SessionState.LOST)
        else:
            self._tell(SessionState.LOST)

    def renew_session(self) -> None:
        """The server is reached again, and grants a new lease. Nothing for a process that died."""
        self.reach()
        if self._dead:
            return
        self._server.sessions += 1
        self._session = self._server.sessions
        self._tell(SessionState.RENEWED)

    def lease_ran_out(self) -> None:
        """Called by the world once a dead process's lease is over."""
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
            self._tell(SessionState.LOST)
            self.renew_session()
        if write and self._server.unknown_chance and self._server.chance.random() < self._server.unknown_chance:
            raise MetadataUnknownError("the simulated answer was lost")

    def _lose_request(self, write: Callable[[], object]) -> None:
        """Raise for a request that never came, or comes when nobody waits for its answer any more."""
        server = self._server
        if server.late_chance and server.chance.random() < server.late_chance:
            asyncio.get_running_loop().call_later(
                server.chance.uniform(*server.late_s), _try, write, context=contextvars.Context()
            )
            raise MetadataUnknownError("the simulated store did not answer in time")
        if self._server.unknown_chance and self._server.chance.random() < self._server.unknown_chance / 2:
            raise MetadataUnknownError("the simulated request was lost")

    # ---- the port
    async def get(self, key: str) -> Node | None:
        """Linearizable read."""
        await self._travel()
        found = self._view(key)
        await self._answer(write=False)
        self.read_since_cut.add(key)
        return found

    async def put(self, key: str, value: bytes, *, expected: int | None = None, ephemeral: bool = False) -> int:
        """Compare-and-set or unconditional write."""
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
        """Number from the parent's version."""
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
        """Conditional or not."""

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

    async def transact(self, checks: Sequence[Check], operations: Sequence[Operation]) -> None:
        """All or nothing."""
        session = self._session

        def write() -> None:
            for check in checks:
                if self._server.version(check.key) != check.version:
                    raise BadVersionError(f"{check.key}: version {self._server.version(check.key)}")
            for operation in operations:
                match operation:
                    case Put(key, value, ephemeral):
                        self._server.write(key, value, session if ephemeral else None)
                    case Delete(key):
                        self._server.remove(key)

        await self._travel()
        self._lose_request(write)
        write()
        await self._answer(write=True)

    async def children(self, key: str) -> list[str]:
        """First path components below."""
        await self._travel()
        base = key.rstrip("/") + "/"
        names = {name[len(base) :].split("/")[0] for name in self._server.nodes if name.startswith(base)}
        await self._answer(write=False)
        return sorted(names)

    async def count(self, prefix: str) -> int:
        """Of what a listing would show."""
        await self._travel()
        found = 0 if self._server.listings_empty else sum(key.startswith(prefix) for key in self._server.nodes)
        await self._answer(write=False)
        return found

    async def scan(self, prefix: str, *, page_keys: int = 1000, keys_only: bool = False) -> AsyncIterator[list[Node]]:
        """Pages of one snapshot."""
        await self._travel()
        nodes = [] if self._server.listings_empty else sorted(self._server.nodes)
        found = [node for key in nodes if key.startswith(prefix) and (node := self._view(key))]
        if keys_only:
            found = [replace(node, value=b"") for node in found]
        for start in range(0, len(found), page_keys):
            await self._answer(write=False)
            yield found[start : start + page_keys]

    async def watch(self, prefix: str) -> SimWatch:
        """Changes from now on."""
        await self._travel()
        watch = SimWatch(self._server, prefix)
        self._watches.append(watch)
        return watch

    @property
    def connection_breaks(self) -> int:
        """Of all connections: no scenario needs more."""
        return self._server.breaks

    def on_session(self, listener: Callable[[SessionState], None]) -> Callable[[], None]:
        """Changes of the lease; the returned function ends it, and does nothing when called again."""
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
        """All watches of this session miss what they were not told yet."""
        for watch in self._watches:
            if watch in self._server.watches:
                watch.lose_events()

    def _view(self, key: str) -> Node | None:
        stored = self._server.nodes.get(key)
        if stored is None:
            return None
        return Node(key, stored.value, stored.version, stored.session is not None, stored.session == self._session)


def _try(write: Callable[[], object]) -> None:
    """A request that comes late: nobody hears what became of it."""
    with contextlib.suppress(BadVersionError, NodeMissingError, MetadataUnavailableError):
        write()
