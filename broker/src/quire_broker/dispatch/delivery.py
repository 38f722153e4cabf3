"""Values and ports between dispatch, a client's session and a managed ledger. No behaviour.

Times are milliseconds since the epoch, sizes bytes. A session implements `ConsumerLink`; `quire_broker.managed_ledger`
implements `EntryCursor` and `EntryLedger`, which describe only the part that dispatch uses.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple, Protocol

from quire_bookie.dataclass import dataclass
from quire_bookie.model import Buffer
from quire_broker.managed_ledger.position import Position, StoredEntry
from quire_broker.wire.kinds import InitialPosition, KeySharedMode, Moved, SubscriptionType


class Delivery(NamedTuple):
    """One entry sent to a consumer. `ack_set`: words of the unacknowledged batch indexes, None for all."""

    position: Position
    data: Buffer
    redelivery_count: int = 0
    ack_set: Sequence[int] | None = None
    consumer_epoch: int | None = None


class AckId(NamedTuple):
    """One id of an ACK. With `ack_set` (set bit: still unacknowledged) it acknowledges a part of a batch."""

    position: Position
    ack_set: tuple[int, ...] = ()
    batch_size: int = 0


@dataclass(frozen=True, slots=True)
class KeyShared:
    """The Key_Shared options of a consumer. Ranges are inclusive slots within 0..65535."""

    mode: KeySharedMode = KeySharedMode.AUTO_SPLIT
    ranges: tuple[tuple[int, int], ...] = ()
    allow_out_of_order: bool = False


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """The fields of a SUBSCRIBE that delivery needs. `epoch` is None if the client sent none."""

    consumer_id: int
    name: str
    subscription_type: SubscriptionType
    priority_level: int = 0
    durable: bool = True
    start: Position | None = None
    initial: InitialPosition = InitialPosition.LATEST
    rollback_s: int = 0
    read_compacted: bool = False
    key_shared: KeyShared | None = None
    epoch: int | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    subscription_properties: Mapping[str, str] = field(default_factory=dict)
    connected_since_ms: int = 0


class ConsumerLink(Protocol):
    """A consumer's connection to its client. No method blocks; calls after the end of the connection have no effect."""

    @property
    def writable(self) -> bool:
        """Whether more may be delivered now: the socket's buffer is below its high-water mark."""
        ...

    @property
    def peer(self) -> str:
        """Address of the client, for logs and statistics."""
        ...

    @property
    def client_version(self) -> str:
        """The version string that the client sent."""
        ...

    def deliver(self, consumer_id: int, deliveries: Sequence[Delivery], messages: int) -> None:
        """Send these entries, in order, in one write. `messages` is their number of messages, for the counters."""
        ...

    def active_changed(self, consumer_id: int, active: bool) -> None:
        """Send ACTIVE_CONSUMER_CHANGE if the client's version supports it."""
        ...

    def reached_end(self, consumer_id: int) -> None:
        """Send REACHED_END_OF_TOPIC."""
        ...

    def close_consumer(self, consumer_id: int, moved: Moved | None = None) -> None:
        """Send CLOSE_CONSUMER and drop the consumer: the session makes no further call for it."""
        ...

    def on_writable(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when `writable` is true again. A callback registered twice is called once."""
        ...

    async def alive(self) -> bool:
        """Return whether the client answers a PING within the session's time limit."""
        ...


class EntryCursor(Protocol):
    """A cursor of a managed ledger."""

    @property
    def name(self) -> str:
        """Name of the subscription."""
        ...

    @property
    def has_more(self) -> bool:
        """Whether `read` would return an entry."""
        ...

    @property
    def keeps_all_acks(self) -> bool:
        """Whether acks of the entries that `read` returns next can all be saved."""
        ...

    async def read(self, entries_max: int, bytes_max: int) -> list[StoredEntry]:
        """Return the next unacknowledged entries; [] at the tail."""
        ...

    def read_cached(self, entries_max: int, bytes_max: int) -> Sequence[StoredEntry]:
        """Return what `read` would if that needs no waiting, else nothing. Other cursors may get the same sequence."""
        ...

    def rewind(self) -> None:
        """Move the read position back behind the mark-delete position."""
        ...

    def acknowledge(self, positions: Sequence[Position]) -> None:
        """Acknowledge whole entries."""
        ...

    def is_acknowledged(self, position: Position) -> bool:
        """Return whether the whole entry is acknowledged."""
        ...

    @property
    def has_ack_sets(self) -> bool:
        """Whether a batch is partly acknowledged."""
        ...

    def ack_set(self, position: Position) -> tuple[int, ...] | None:
        """Return words of the unacknowledged messages of a partly acknowledged batch, else None."""
        ...


class EntryLedger(Protocol):
    """The part of a managed ledger that dispatchers use."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def last_confirmed(self) -> Position:
        """The last readable entry."""
        ...

    async def read(self, start: Position, entries_max: int, bytes_max: int) -> list[StoredEntry]:
        """Return entries from `start` on, at least one if there is one."""
        ...
