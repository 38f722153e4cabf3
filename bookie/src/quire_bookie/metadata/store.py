"""The metadata store port: linearizable nodes with versions, leases and watches.

Semantics follow Pulsar's metadata store on etcd: a node's version is 0 when created and grows by one with each
put; a deleted and re-created node starts at 0 again. Keys are UTF-8 paths that start with `/` and have no trailing
`/`. There are no parent nodes: `/a/b` may exist without `/a`. Ephemeral nodes vanish with the session that made them.

A write raises `BadVersionError` (lost the compare-and-set), `MetadataUnavailableError` (certainly not done) or
`MetadataUnknownError` (may have been done: read back). A value over `METADATA_VALUE_BYTES_MAX`, or a request that the
store refuses for good, is a plain `MetadataError`. A write whose caller was cancelled may have been done.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias

ABSENT = -1
"""As an expected version: the node must not exist."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node as it was at one revision. `owned`: ephemeral and of this very session."""

    key: str
    value: bytes
    version: int
    ephemeral: bool = False
    owned: bool = False


@dataclass(frozen=True, slots=True)
class Check:
    """In a transaction: this node has this version (ABSENT: does not exist)."""

    key: str
    version: int


@dataclass(frozen=True, slots=True)
class Put:
    """In a transaction: write the node."""

    key: str
    value: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """In a transaction: remove the node; nothing happens when it is missing."""

    key: str


Operation: TypeAlias = Put | Delete


class EventKind(Enum):
    """What happened to a node. RESYNC: events were lost, list again what you care about."""

    CREATED = "created"
    MODIFIED = "modified"
    DELETED = "deleted"
    RESYNC = "resync"


@dataclass(frozen=True, slots=True)
class Event:
    """A change of one node under a watched prefix; key is the prefix for RESYNC."""

    kind: EventKind
    key: str


class SessionState(Enum):
    """State of the lease under the ephemeral nodes."""

    CONNECTED = "connected"
    LOST = "lost"  # the lease expired or may have; ephemeral nodes are gone or going
    RENEWED = "renewed"  # a new lease: whoever needs ephemeral nodes must create them again


class Watch(Protocol):
    """An asynchronous stream of events, open from the moment `watch` returned."""

    def __aiter__(self) -> AsyncIterator[Event]:
        """Events in revision order; never an event twice between two RESYNCs."""
        ...

    async def close(self) -> None:
        """End the stream."""
        ...


class MetadataStore(Protocol):
    """See the module's text for the semantics."""

    @property
    def connection_breaks(self) -> int:
        """How often the connection broke. An older copy can be put in place only while no connection stands."""
        ...

    async def get(self, key: str) -> Node | None:
        """The node, linearizable, or None."""
        ...

    async def put(self, key: str, value: bytes, *, expected: int | None = None, ephemeral: bool = False) -> int:
        """Write and return the new version. `expected`: compare-and-set; None: unconditional."""
        ...

    async def put_sequential(self, prefix: str, value: bytes, *, ephemeral: bool = False) -> str:
        """Create `prefix` + n, n being the version of the parent after an empty put on it. Returns the key."""
        ...

    async def delete(self, key: str, *, expected: int | None = None) -> None:
        """Remove. Missing without `expected`: NodeMissingError; with it: BadVersionError."""
        ...

    async def transact(self, checks: Sequence[Check], operations: Sequence[Operation]) -> None:
        """All operations if all checks hold, else BadVersionError and nothing. At most 100 of both together."""
        ...

    async def children(self, key: str) -> list[str]:
        """Names of the direct children (first path component below `key`), unique and sorted."""
        ...

    async def count(self, prefix: str) -> int:
        """How many nodes have a key that starts with `prefix`, without reading them."""
        ...

    def scan(self, prefix: str, *, page_keys: int = 1000, keys_only: bool = False) -> AsyncIterator[list[Node]]:
        """All nodes whose key starts with `prefix`, by key, in pages, all at one revision.

        With `keys_only` the values are left out (empty). When the store can no longer show that revision the scan
        raises MetadataUnavailableError: begin anew, never join the parts.
        """
        ...

    async def watch(self, prefix: str) -> Watch:
        """Changes of nodes whose key starts with `prefix` from now on."""
        ...

    def on_session(self, listener: Callable[[SessionState], None]) -> Callable[[], None]:
        """Be told of changes of the session; returns a function that ends it."""
        ...

    async def close(self) -> None:
        """End the session (ephemeral nodes go) and release everything."""
        ...
