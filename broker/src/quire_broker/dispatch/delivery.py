"""What passes between dispatch, a client's session and a managed ledger: values and ports only, no behaviour.

Times are milliseconds since the epoch, sizes bytes. A session implements `ConsumerLink`; `quire_broker.managed_ledger`
offers what `EntryCursor` and `EntryLedger` describe (only the part that dispatch uses).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from quire_bookie.model import Buffer
from quire_broker.managed_ledger.position import Position, StoredEntry
from quire_broker.wire.kinds import InitialPosition, KeySharedMode, SubscriptionType


@dataclass(slots=True)
class Delivery:
    """One entry on its way to a consumer. `ack_set`: words of the still unacknowledged indexes, None for all."""

    position: Position
    data: Buffer
    redelivery_count: int = 0
    ack_set: Sequence[int] | None = None
    consumer_epoch: int | None = None


class AckId(NamedTuple):
    """One id of an ACK. With `ack_set` (set bit: still unacknowledged) it speaks of a part of a batch."""

    position: Position
    ack_set: tuple[int, ...] = ()
    batch_size: int = 0


@dataclass(frozen=True, slots=True)
class KeyShared:
    """What a Key_Shared consumer asks for. Ranges are inclusive slots within 0..65535."""

    mode: KeySharedMode = KeySharedMode.AUTO_SPLIT
    ranges: tuple[tuple[int, int], ...] = ()
    allow_out_of_order: bool = False


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """A SUBSCRIBE, as far as delivery is concerned. `epoch` is None when the client gave none."""

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


class ConsumerLink(Protocol):
    """A consumer's way to its client. Nothing blocks; what is called after the connection ended does nothing."""

    @property
    def writable(self) -> bool:
        """Whether more may be delivered now: the socket's buffer is below its mark."""
        ...

    @property
    def peer(self) -> str:
        """Address of the client, for people."""
        ...

    @property
    def client_version(self) -> str:
        """What the client calls itself."""
        ...

    def deliver(self, consumer_id: int, deliveries: Sequence[Delivery], messages: int) -> None:
        """Send these entries, in order, in one write. `messages` are in them, for the counters."""
        ...

    def active_changed(self, consumer_id: int, active: bool) -> None:
        """ACTIVE_CONSUMER_CHANGE, if the client's version knows it."""
        ...

    def reached_end(self, consumer_id: int) -> None:
        """REACHED_END_OF_TOPIC."""
        ...

    def close_consumer(self, consumer_id: int) -> None:
        """CLOSE_CONSUMER, and forget the consumer: no call for it may follow from this session."""
        ...

    def on_writable(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when `writable` is true again. Registering the same one twice counts once."""
        ...

    async def alive(self) -> bool:
        """Whether the client answers a PING within the session's patience."""
        ...


class EntryCursor(Protocol):
    """A cursor of a managed ledger."""

    @property
    def name(self) -> str:
        """Name of the subscription."""
        ...

    @property
    def has_more(self) -> bool:
        """Whether `read` would find something."""
        ...

    async def read(self, entries_max: int, bytes_max: int) -> list[StoredEntry]:
        """The next entries that are not acknowledged; [] at the tail."""
        ...

    def rewind(self) -> None:
        """Read again from behind the mark-delete position."""
        ...

    def acknowledge(self, positions: Sequence[Position]) -> None:
        """Whole entries are done."""
        ...

    def ack_set(self, position: Position) -> tuple[int, ...] | None:
        """Words of what is left of a batch that is partly acknowledged, else None."""
        ...


class EntryLedger(Protocol):
    """A managed ledger, as far as dispatchers need it."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def last_confirmed(self) -> Position:
        """The last readable entry."""
        ...

    async def read(self, start: Position, entries_max: int, bytes_max: int) -> list[StoredEntry]:
        """Entries from `start` on, at least one if there is one."""
        ...
