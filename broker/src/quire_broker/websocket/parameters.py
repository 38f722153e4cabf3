"""Query parameters of WebSocket clients, with Pulsar's names and defaults. As in Pulsar, unknown ones are ignored."""

from collections.abc import Mapping
from typing import TypeVar

from quire_bookie.admin.answers import RefusedError
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import PeerProtocolError
from quire_broker.compression import Codec
from quire_broker.limits import WEBSOCKET_NACK_S, WEBSOCKET_PARTITIONS_MAX, WEBSOCKET_QUEUE_MAX, WEBSOCKET_SEND_S
from quire_broker.websocket.message_ids import MessageId, message_id_of
from quire_broker.wire.kinds import TYPE_NAMES, InitialPosition, SubscriptionType

Query = Mapping[str, str]
_INTEGER_MAX = 2**31 - 1
_TYPES = {name: kind for kind, name in TYPE_NAMES.items()}
_POSITIONS = {"Latest": InitialPosition.LATEST, "Earliest": InitialPosition.EARLIEST}
_DURABLE = {"Durable": True, "NonDurable": False}
_ROUND_ROBIN = {"SinglePartition": False, "CustomPartition": False, "RoundRobinPartition": True}
_MURMUR = {"JavaStringHash": False, "Murmur3_32Hash": True}
_CODECS = {codec.name: codec for codec in Codec}
LATEST = MessageId((1 << 63) - 1, (1 << 63) - 1)
EARLIEST = MessageId(-1, -1)
_NOT_SERVED_OF_PRODUCERS = ("encryptionKeys",)
PRODUCER_NAMES = (
    "producerName",
    "initialSequenceId",
    "sendTimeoutMillis",
    "maxPendingMessages",
    "messageRoutingMode",
    "hashingScheme",
    "compressionType",
)
CONSUMER_NAMES = (
    "consumerName",
    "subscriptionType",
    "subscriptionMode",
    "subscriptionInitialPosition",
    "receiverQueueSize",
    "priorityLevel",
    "ackTimeoutMillis",
    "negativeAckRedeliveryDelay",
    "pullMode",
    "maxRedeliverCount",
    "deadLetterTopic",
)
READER_NAMES = ("readerName", "messageId", "receiverQueueSize")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProducerParameters:
    """Of a producer. `initial_sequence`: the id before its first message."""

    name: str = ""
    initial_sequence: int | None = None
    send_timeout_s: float = WEBSOCKET_SEND_S
    pending_max: int = WEBSOCKET_QUEUE_MAX
    round_robin: bool = False
    murmur: bool = False
    codec: Codec = Codec.NONE


@dataclass(frozen=True, slots=True)
class ConsumerParameters:
    """Of a consumer or, with `start`, of a reader. `unacked_max`: messages that the client may hold.

    `redeliveries_max`: how often a message comes again before it goes to the dead letter topic; 0: always.
    """

    name: str = ""
    subscription_type: SubscriptionType = SubscriptionType.EXCLUSIVE
    durable: bool = True
    initial: InitialPosition = InitialPosition.LATEST
    unacked_max: int = WEBSOCKET_QUEUE_MAX
    priority: int = 0
    ack_timeout_s: float = 0.0
    nack_delay_s: float = WEBSOCKET_NACK_S
    pulls: bool = False
    start: MessageId | None = None
    redeliveries_max: int = 0
    dead_letter_topic: str = ""
    """Empty: named by the topic and the subscription."""


def producer_parameters(query: Query) -> ProducerParameters:
    """Return the parameters of a producer. PeerProtocolError."""
    _require_served(query, _NOT_SERVED_OF_PRODUCERS)
    timeout_ms = _number(query, "sendTimeoutMillis", round(WEBSOCKET_SEND_S * 1000))
    initial = query.get("initialSequenceId")
    return ProducerParameters(
        query.get("producerName", ""),
        None if initial is None else _number(query, "initialSequenceId", 0, least=-1, most=2**63 - 2),
        timeout_ms / 1000 or float("inf"),
        min(_number(query, "maxPendingMessages", WEBSOCKET_QUEUE_MAX, least=1), WEBSOCKET_QUEUE_MAX),
        _choice(query, "messageRoutingMode", _ROUND_ROBIN, "SinglePartition"),
        _choice(query, "hashingScheme", _MURMUR, "JavaStringHash"),
        _choice(query, "compressionType", _CODECS, "NONE"),
    )


def consumer_parameters(query: Query) -> ConsumerParameters:
    """Return the parameters of a consumer. PeerProtocolError."""
    redeliveries_max = _number(query, "maxRedeliverCount", 0, least=1)
    if query.get("deadLetterTopic") and not redeliveries_max:
        raise PeerProtocolError("Invalid query params: deadLetterTopic needs maxRedeliverCount, e.g. 3")
    return ConsumerParameters(
        query.get("consumerName", ""),
        _choice(query, "subscriptionType", _TYPES, "Exclusive"),
        _choice(query, "subscriptionMode", _DURABLE, "Durable"),
        _choice(query, "subscriptionInitialPosition", _POSITIONS, "Latest"),
        _queue_size(query),
        _number(query, "priorityLevel", 0),
        _number(query, "ackTimeoutMillis", 0) / 1000,
        _number(query, "negativeAckRedeliveryDelay", round(WEBSOCKET_NACK_S * 1000)) / 1000,
        query.get("pullMode", "").lower() == "true",
        redeliveries_max=redeliveries_max,
        dead_letter_topic=query.get("deadLetterTopic", ""),
    )


def reader_parameters(query: Query) -> ConsumerParameters:
    """Return the parameters of a reader. PeerProtocolError."""
    text = query.get("messageId", "").strip()
    places = {"": LATEST, "latest": LATEST, "earliest": EARLIEST}
    start = places[text] if text in places else message_id_of(text.replace(" ", "+"))
    return ConsumerParameters(query.get("readerName", ""), durable=False, unacked_max=_queue_size(query), start=start)


def require_few(count: int) -> None:
    """Raise RefusedError if one session may not serve this number of topics and partitions."""
    if count > WEBSOCKET_PARTITIONS_MAX:
        raise RefusedError(
            400,
            f"{count} topics and partitions; a WebSocket session serves {WEBSOCKET_PARTITIONS_MAX}: "
            "name fewer, or single partitions",
        )


def _queue_size(query: Query) -> int:
    return max(1, min(_number(query, "receiverQueueSize", WEBSOCKET_QUEUE_MAX), WEBSOCKET_QUEUE_MAX))


def _number(query: Query, name: str, default: int, *, least: int = 0, most: int = _INTEGER_MAX) -> int:
    text = query.get(name)
    if text is None:
        return default
    try:
        value = int(text) if len(text) < 20 else None
    except ValueError:
        value = None
    if value is None or not least <= value <= most:
        raise PeerProtocolError(f"Invalid query params: {name}={text[:40]!r} is not a number from {least} to {most}")
    return value


def _choice(query: Query, name: str, values: Mapping[str, T], default: str) -> T:
    text = query.get(name, default)
    if text not in values:
        raise PeerProtocolError(f"Invalid query params: {name}={text[:40]!r} is not one of {', '.join(values)}")
    return values[text]


def _require_served(query: Query, names: tuple[str, ...]) -> None:
    for name in names:
        if name in query:
            raise PeerProtocolError(
                f"Invalid query params: {name} is not served over WebSocket: leave it out, or use a Pulsar client"
            )
