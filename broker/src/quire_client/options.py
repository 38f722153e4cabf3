"""Settings of clients, producers and consumers, with their defaults. Refuses values that cannot work."""

from collections.abc import Mapping
from dataclasses import field

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ConfigError
from quire_broker.compression import Codec
from quire_broker.schemas.stored import Schema
from quire_broker.wire.kinds import InitialPosition, SubscriptionType
from quire_client.message import MessageId

MIB = 1024 * 1024
BATCH_MESSAGES_MAX = 1000
BATCH_BYTES_MAX = 128 * 1024
"""Bounds of a batch, as of Pulsar's own clients."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Time limits and bounds of one client."""

    answer_timeout_s: float = 30.0
    """For each answer of a broker, and for a connection to it."""
    reconnect_s: float = 60.0
    """How long a producer or consumer that lost its broker tries to continue; then it fails. 0: it fails at once."""
    backoff_s: tuple[float, float] = (0.1, 5.0)
    """The shortest and the longest pause between two attempts."""
    keep_alive_s: float = 30.0
    """A connection that is silent for so long is asked for a sign of life, and closed after the same time again."""
    frame_bytes_max: int = 16 * MIB
    """Of a broker's frame; a longer one ends the connection."""
    write_bytes_max: int = 32 * MIB
    """Bytes that wait for one socket. Producers wait while they exceed it."""

    def __post_init__(self) -> None:
        low_s, high_s = self.backoff_s
        if not 0 < low_s <= high_s:
            raise ConfigError(f"backoff_s {self.backoff_s}: the first must be above 0 and at most the second")
        for name in ("answer_timeout_s", "keep_alive_s", "frame_bytes_max", "write_bytes_max"):
            _require(name, getattr(self, name), 0, above=True)
        _require("reconnect_s", self.reconnect_s, 0)


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """How a producer sends."""

    name: str = ""
    """Of the producer; needed for deduplication. Empty: the broker chooses one."""
    batch_messages_max: int = BATCH_MESSAGES_MAX
    """Messages of one entry; 1: no batches."""
    batch_bytes_max: int = BATCH_BYTES_MAX
    batch_delay_s: float = 0.0
    """How long a message waits for others. 0: those of one turn of the event loop become a batch."""
    one_key_per_batch: bool = False
    """Whether the messages of a batch have the same key, as Key_Shared subscriptions need it."""
    compression: Codec = Codec.NONE
    pending_messages_max: int = 10_000
    pending_bytes_max: int = 16 * MIB
    """Messages and bytes without a receipt, of each partition; further ones wait."""
    send_timeout_s: float = 30.0
    """Without a receipt in this time a message fails, with all after it. They may be stored, or not."""
    schema: Schema | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    """Of the producer, as the topic's stats show them."""

    def __post_init__(self) -> None:
        for name in ("batch_messages_max", "batch_bytes_max", "pending_messages_max", "pending_bytes_max"):
            _require(name, getattr(self, name), 1)
        _require("batch_delay_s", self.batch_delay_s, 0)
        _require("send_timeout_s", self.send_timeout_s, 0, above=True)


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """How a consumer or reader receives."""

    kind: SubscriptionType = SubscriptionType.EXCLUSIVE
    initial: InitialPosition = InitialPosition.LATEST
    """Where a new subscription begins."""
    name: str = ""
    """Of the consumer, as the topic's stats show it."""
    queue_messages_max: int = 1000
    """Messages that the client holds of each partition before they are received. A batch may exceed it once."""
    queue_bytes_max: int = 64 * MIB
    """Their bytes: of messages as large as the largest of late, fewer are asked for."""
    redelivery_delay_s: float = 1.0
    """How long a refused message waits for its redelivery."""
    acks_max: int = 10_000
    """Entries whose acknowledgement the broker has not confirmed; above it no more messages are asked for."""
    chunked_bytes_max: int = 64 * MIB
    """Bytes of incomplete chunked messages, of each partition; a message that exceeds it ends the consumer."""
    schema: Schema | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    read_compacted: bool = False
    creates_topic: bool = True
    """Whether the broker may create a missing topic."""

    def __post_init__(self) -> None:
        for name in ("queue_messages_max", "queue_bytes_max", "acks_max", "chunked_bytes_max"):
            _require(name, getattr(self, name), 1)
        _require("redelivery_delay_s", self.redelivery_delay_s, 0)


EARLIEST = MessageId(-1, -1)
"""Before the first message of a topic."""
LATEST = MessageId((1 << 63) - 1, (1 << 63) - 1)
"""After the last one."""


def _require(name: str, value: float, low: float, *, above: bool = False) -> None:
    if value < low or (above and value == low):
        raise ConfigError(f"{name} {value}: it must be {'above' if above else 'at least'} {low}")
