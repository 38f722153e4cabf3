"""The producers of one topic: their admission, and the order of their sends and receipts.

Receipts are sent in the order of the sends, also for refused sends and duplicates. A producer whose entry failed
publishes nothing more: the client must reconnect and send again from the failed message on, otherwise a later send
would overtake it. A send is never acknowledged before the ledger confirmed it.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import field
from typing import NamedTuple, Protocol, TypeAlias

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import QuireError
from quire_bookie.model import new_tuple
from quire_broker.errors import ProducerBusyError, ProducerFencedError, ServerError, ServiceNotReadyError
from quire_broker.managed_ledger.position import Position
from quire_broker.sampling import Rate
from quire_broker.topic.deduplication import Deduplication
from quire_broker.wire.kinds import AccessMode, Moved

NO_POSITION = Position(-1, -1)


class ProducerLink(Protocol):
    """The connection of a producer, as its topic uses it."""

    @property
    def peer(self) -> str:
        """Address of the client."""
        ...

    @property
    def client_version(self) -> str:
        """The version string that the client sent."""
        ...

    def answers_ready(self, producer: "Producer") -> None:
        """Send `producer.answers`, which became non-empty, soon, together with those of other producers."""
        ...

    def publish_done(self, count: int, size_bytes: int) -> None:
        """Free the budget of `count` answered sends of this connection."""
        ...

    def close_producer(self, producer: "Producer", moved: Moved | None = None) -> None:
        """Notify the client that the broker closed its producer, and which broker serves the topic now."""
        ...

    def producer_ready(self, producer: "Producer") -> None:
        """Send the second PRODUCER_SUCCESS to a waiting producer that got the topic."""
        ...

    def producer_refused(self, producer: "Producer", error: QuireError) -> None:
        """Reject a waiting producer: it will not be admitted."""
        ...

    async def alive(self) -> bool:
        """Return whether the client answers a PING."""
        ...


class Receipt(NamedTuple):
    """The answer to a SEND that was stored, with its ids; (-1, -1) for a duplicate."""

    sequence_id: int
    highest_sequence_id: int
    ledger_id: int
    entry_id: int


class Refusal(NamedTuple):
    """The answer to a SEND that failed."""

    sequence_id: int
    code: ServerError
    message: str


_Pending: TypeAlias = tuple[int, int, int, int | None, Receipt | Refusal | None]
"""A send that is not answered yet: sequence id, highest sequence id, bytes, the id that deduplication records (None:
not recorded), and the answer if it is known and only waits for earlier ones. A plain tuple, since each message has one.
"""


@dataclass(slots=True)
class ProducerStats:
    """Counters since the producer was created."""

    messages: int = 0
    entries: int = 0
    size_bytes: int = 0
    chunks: int = 0
    message_rate: Rate = field(default_factory=Rate)
    byte_rate: Rate = field(default_factory=Rate)
    chunk_rate: Rate = field(default_factory=Rate)


@dataclass(slots=True, eq=False)
class Producer:
    """One producer of one connection."""

    producer_id: int
    name: str
    link: ProducerLink
    epoch: int = 0
    mode: AccessMode = AccessMode.SHARED
    generated_name: bool = False
    metadata: dict[str, str] = field(default_factory=dict)
    connected_since_ms: int = 0
    request_id: int = -1
    schema_version: bytes = b""
    encrypted: bool = False
    """Whether its client encrypts the messages."""
    topic_epoch: int | None = None
    ready: bool = True
    closed: bool = False
    deduplication: Deduplication | None = None
    on_failure: Callable[[QuireError], None] = lambda error: None
    stats: ProducerStats = field(default_factory=ProducerStats)
    answers: list[Receipt | Refusal] = field(default_factory=list)
    _pending: deque[_Pending] = field(default_factory=deque)
    _on_answered: Callable[[], None] | None = None

    @property
    def leaving(self) -> bool:
        """Whether it accepts nothing more and ends when everything is answered."""
        return self._on_answered is not None

    def leave(self, on_answered: Callable[[], None]) -> None:
        """Accept nothing more. Call back when all accepted sends are answered, at once if they already are."""
        if self._pending:
            self._on_answered = on_answered
        else:
            on_answered()

    @property
    def pending(self) -> int:
        """Number of sends that are not answered yet."""
        return len(self._pending)

    def pushed(self, sequence_id: int, highest_sequence_id: int, size_bytes: int, recorded: int | None) -> None:
        """Note that a send goes to the ledger. Call it before the append, whose `done` is `stored`."""
        self._pending.append((sequence_id, highest_sequence_id, size_bytes, recorded, None))

    def answered(self, size_bytes: int, answer: Receipt | Refusal) -> None:
        """Note the answer to a send that does not go to the ledger. It is sent after the answers to earlier sends."""
        if self._pending:
            self._pending.append((answer.sequence_id, 0, size_bytes, None, answer))
            return
        self._answer(answer)
        self.link.publish_done(1, size_bytes)

    def stored(self, position: Position | None, error: QuireError | None) -> None:
        """Note that the oldest pending send is durable or failed.

        Called once per entry, in the order of the appends.
        """
        sequence_id, highest_sequence_id, size_bytes, recorded, _ = self._pending.popleft()
        if position is None:
            self.on_failure(error or ServiceNotReadyError("the entry was not stored"))
        else:
            if self.deduplication is not None:
                self.deduplication.stored(self.name, recorded, position)
            self._answer(new_tuple(Receipt, (sequence_id, highest_sequence_id, *position)))
        count = 1
        while self._pending and (answer := self._pending[0][4]) is not None:
            size_bytes += self._pending.popleft()[2]
            count += 1
            self._answer(answer)
        self.link.publish_done(count, size_bytes)
        if self._on_answered is not None and not self._pending:
            self._on_answered()

    def _answer(self, answer: Receipt | Refusal) -> None:
        if self.closed:
            return
        if not self.answers:
            self.link.answers_ready(self)
        self.answers.append(answer)


EpochWriter = Callable[[int], Awaitable[None]]


class Producers:
    """Admits producers by name and access mode. After each await the state is checked again."""

    def __init__(self, topic_epoch: int | None, write_epoch: EpochWriter) -> None:
        self._by_name: dict[str, Producer] = {}
        self._exclusive: Producer | None = None
        self._waiting: deque[Producer] = deque()
        self._topic_epoch = topic_epoch
        self._write_epoch = write_epoch

    def __len__(self) -> int:
        return len(self._by_name)

    def has(self, name: str) -> bool:
        """Return whether a producer of that name may publish or waits."""
        return name in self._by_name or any(waiter.name == name for waiter in self._waiting)

    @property
    def busy(self) -> bool:
        """Whether there is a producer, also one that is being admitted or waits."""
        return bool(self._by_name or self._waiting or self._exclusive is not None)

    @property
    def connected(self) -> list[Producer]:
        """Producers that may publish."""
        return list(self._by_name.values())

    @property
    def everyone(self) -> list[Producer]:
        """Producers that wait for exclusive access, in their order, then producers that may publish."""
        return [*self._waiting, *self._by_name.values()]

    @property
    def waiting(self) -> int:
        """Number of producers that wait for exclusive access."""
        return len(self._waiting)

    @property
    def topic_epoch(self) -> int | None:
        """Epoch of the newest exclusive producer that ever existed."""
        return self._topic_epoch

    async def add(self, producer: Producer, presented_epoch: int | None) -> None:
        """Admit a producer; its `ready` is true if it may publish already.

        ProducerBusyError: the name is in use, or the topic is held; ProducerFencedError: another producer owns it.
        """
        await self._displace(producer)
        match producer.mode:
            case AccessMode.SHARED:
                if self._exclusive is not None or self._waiting:
                    raise ProducerBusyError("Topic has an existing exclusive producer")
                self._by_name[producer.name] = producer
            case AccessMode.EXCLUSIVE:
                if self._by_name or self._exclusive or self._waiting:
                    raise ProducerFencedError("Topic has existing producers; exclusive access is not possible")
                await self._hold(producer, presented_epoch)
            case AccessMode.EXCLUSIVE_WITH_FENCING:
                self._fence_all()
                await self._hold(producer, presented_epoch)
            case AccessMode.WAIT_FOR_EXCLUSIVE:
                if self._by_name or self._exclusive or self._waiting:
                    producer.ready = False
                    self._waiting.append(producer)
                else:
                    await self._hold(producer, presented_epoch)

    async def _displace(self, producer: Producer) -> None:
        """Evict the present holder of the name if it is an older epoch of this producer or its connection is dead."""
        existing = self._by_name.get(producer.name)
        if existing is None:
            return
        successor = (
            existing.link is producer.link
            and existing.producer_id == producer.producer_id
            and producer.epoch > existing.epoch
        )
        if not successor:
            if existing.link is producer.link or await existing.link.alive():
                raise ProducerBusyError(f"Producer with name '{producer.name}' is already connected to topic")
            if self._by_name.get(producer.name) is not existing:
                await self._displace(producer)
                return
        existing.closed = True
        self._by_name.pop(producer.name, None)
        if self._exclusive is existing:
            self._exclusive = None

    async def _hold(self, producer: Producer, presented: int | None) -> None:
        current = self._topic_epoch
        if presented is not None and current is not None and presented < current:
            raise ProducerFencedError(f"Topic epoch {presented} was overtaken by {current}")
        self._exclusive = producer  # before the await, so that no other producer is admitted meanwhile
        if presented is None or current is None or presented > current:
            epoch = 0 if current is None else current + 1
            if presented is not None:
                epoch = max(epoch, presented)
            written = False
            try:
                await self._write_epoch(epoch)
                written = True
            finally:
                if not written and self._exclusive is producer:
                    self._exclusive = None
            self._topic_epoch = epoch
        if self._exclusive is not producer:
            raise ProducerFencedError("Another exclusive producer took the topic over")
        producer.topic_epoch = self._topic_epoch
        producer.ready = True
        self._by_name[producer.name] = producer

    def _fence_all(self) -> None:
        for existing in list(self._by_name.values()):
            existing.closed = True
            existing.link.close_producer(existing)
        for waiter in self._waiting:
            waiter.closed = True
            waiter.link.producer_refused(waiter, ProducerFencedError("Another exclusive producer took the topic over"))
        self._by_name.clear()
        self._waiting.clear()
        self._exclusive = None

    def remove(self, producer: Producer) -> bool:
        """Remove a producer that left. Return whether a waiting one can be promoted now."""
        producer.closed = True
        if self._by_name.get(producer.name) is producer:
            del self._by_name[producer.name]
        if producer in self._waiting:
            self._waiting.remove(producer)
        if self._exclusive is producer:
            self._exclusive = None
        return bool(self._waiting) and not self._by_name and self._exclusive is None

    async def promote(self) -> None:
        """Give the topic to the producer that has waited longest."""
        while self._waiting and not self._by_name and self._exclusive is None:
            waiter = self._waiting.popleft()
            try:
                await self._hold(waiter, None)
            except QuireError as error:
                waiter.closed = True
                waiter.link.producer_refused(waiter, error)
                continue
            waiter.link.producer_ready(waiter)

    def disconnect_all(self, moved: Moved | None = None) -> None:
        """Close every producer from the broker's side: the clients go to the new broker, or look the topic up again."""
        for producer in self.everyone:
            producer.closed = True
            producer.link.close_producer(producer, moved)
        self._by_name.clear()
        self._waiting.clear()
        self._exclusive = None
