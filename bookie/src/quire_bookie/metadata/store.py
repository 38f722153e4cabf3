"""The metadata store port: linearizable nodes with versions, leases and watches.

Semantics follow Pulsar's metadata store on etcd: a node's version is 0 when created and grows by one with each
put; a deleted and re-created node starts at 0 again. Keys are UTF-8 paths that start with `/` and have no trailing
`/`. There are no parent nodes: `/a/b` may exist without `/a`. An ephemeral node is removed with its session.

A write raises `BadVersionError` (lost the compare-and-set), `MetadataUnavailableError` (certainly not done) or
`MetadataUnknownError` (may have been done: read back). A value over `METADATA_VALUE_BYTES_MAX`, or a request that the
store refuses permanently, is a plain `MetadataError`. A write whose caller was cancelled may have been done.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from enum import Enum
from typing import Generic, Protocol, TypeAlias, TypeVar

from quire_bookie.dataclass import dataclass

T = TypeVar("T")
ABSENT = -1
"""As an expected version: the node must not exist."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node at one revision. `owned`: ephemeral and created by this session."""

    key: str
    value: bytes
    version: int
    ephemeral: bool = False
    owned: bool = False


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """The decoded value of a node at one version, for compare-and-set."""

    value: T
    version: int


@dataclass(frozen=True, slots=True)
class Check:
    """Part of a transaction: the node must have this version (ABSENT: not exist)."""

    key: str
    version: int


@dataclass(frozen=True, slots=True)
class Put:
    """Part of a transaction: write the node."""

    key: str
    value: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """Part of a transaction: remove the node; does nothing if it is missing."""

    key: str


Operation: TypeAlias = Put | Delete


@dataclass(frozen=True, slots=True)
class Get:
    """Part of a read: the node, if it exists."""

    key: str


@dataclass(frozen=True, slots=True)
class Under:
    """Part of a read: the first nodes whose key starts with `prefix`, by key, at most `nodes_max`."""

    prefix: str
    nodes_max: int


Read: TypeAlias = Get | Under


class EventKind(Enum):
    """Kind of change. RESYNC: events were lost, list the nodes again."""

    CREATED = "created"
    MODIFIED = "modified"
    DELETED = "deleted"
    RESYNC = "resync"


@dataclass(frozen=True, slots=True)
class Event:
    """A change of one node under a watched prefix; for RESYNC the key is the prefix."""

    kind: EventKind
    key: str


class SessionState(Enum):
    """State of the lease of the ephemeral nodes."""

    CONNECTED = "connected"
    LOST = "lost"  # the lease expired or may have; ephemeral nodes are removed or about to be
    RENEWED = "renewed"  # a new lease: owners of ephemeral nodes must create them again


class Watch(Protocol):
    """An asynchronous stream of events, which begins when `watch` returns."""

    def __aiter__(self) -> AsyncIterator[Event]:
        """Yield events in revision order; no event is repeated between two RESYNCs."""
        ...

    async def close(self) -> None:
        """End the stream."""
        ...


class MetadataStore(Protocol):
    """Linearizable key-value store; see the module's docstring for the semantics."""

    @property
    def connection_breaks(self) -> int:
        """How often the connection broke. The store can be replaced by an older copy only while it is disconnected."""
        ...

    async def get(self, key: str) -> Node | None:
        """Return the node, linearizable, or None."""
        ...

    async def read(self, reads: Sequence[Read]) -> list[list[Node]]:
        """Return the nodes of each read, linearizable, all at one revision. One request, of at most 100 reads."""
        ...

    async def put(self, key: str, value: bytes, *, expected: int | None = None, ephemeral: bool = False) -> int:
        """Write and return the new version. `expected`: compare-and-set; None: unconditional."""
        ...

    async def put_sequential(self, prefix: str, value: bytes, *, ephemeral: bool = False) -> str:
        """Create the key `prefix` + n; n is the version of the parent after an empty put on it. Returns the key."""
        ...

    async def delete(self, key: str, *, expected: int | None = None) -> None:
        """Remove a node. If it is missing: NodeMissingError without `expected`, BadVersionError with it."""
        ...

    async def transact(
        self, checks: Sequence[Check], operations: Sequence[Operation], reads: Sequence[Read] = ()
    ) -> list[list[Node]]:
        """Execute all operations if all checks hold, else none: BadVersionError. At most 100 of all three together.

        Return the nodes of each read, as they are right after the operations.
        """
        ...

    async def children(self, key: str) -> list[str]:
        """Return the names of the direct children (first path component below `key`), unique and sorted."""
        ...

    async def count(self, prefix: str) -> int:
        """Return the number of nodes whose key starts with `prefix`, without reading them."""
        ...

    def scan(self, prefix: str, *, page_keys: int = 1000, keys_only: bool = False) -> AsyncIterator[list[Node]]:
        """Yield all nodes whose key starts with `prefix`, by key, in pages, all at one revision.

        With `keys_only` the values are empty. If the store no longer has that revision, the scan raises
        MetadataUnavailableError: start again, never join the parts.
        """
        ...

    async def watch(self, prefix: str) -> Watch:
        """Watch changes of nodes whose key starts with `prefix` from now on."""
        ...

    def on_session(self, listener: Callable[[SessionState], None]) -> Callable[[], None]:
        """Call `listener` on changes of the session; returns a function that removes it."""
        ...

    async def close(self) -> None:
        """End the session (its ephemeral nodes are removed) and release everything."""
        ...


@dataclass(slots=True)
class MetadataStats:
    """Counts the operations of a store since it was opened, for metrics. A counter that it does not have stays 0."""

    calls: int = 0
    writes: int = 0
    commits: int = 0
    unknown_writes: int = 0
    failovers: int = 0
    leases_granted: int = 0
    sessions_lost: int = 0
    watches_reopened: int = 0
    certificates_renewed: int = 0
