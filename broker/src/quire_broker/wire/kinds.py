"""Numbers of the protocol: command types and the small enums. A command's type is its field number in BaseCommand."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

PROTOCOL_VERSION = 21
"""The newest version we support; a connection uses the lower of this and the client's."""


class Moved(NamedTuple):
    """The broker that serves a topic from now on, as close commands name it to clients. Empty: no such address."""

    url: str
    url_tls: str
    listeners: "tuple[tuple[str, Moved], ...]" = ()
    """The addresses for clients of a listener, by its name."""

    def seen_from(self, listener: str | None) -> "Moved | None":
        """Return the addresses for a client of a listener, "" for the default ones; None if they are not known."""
        if listener:
            return dict(self.listeners).get(listener)
        return None if listener is None and self.listeners else self


class Kind(IntEnum):
    """BaseCommand.type."""

    CONNECT = 2
    CONNECTED = 3
    SUBSCRIBE = 4
    PRODUCER = 5
    SEND = 6
    SEND_RECEIPT = 7
    SEND_ERROR = 8
    MESSAGE = 9
    ACK = 10
    FLOW = 11
    UNSUBSCRIBE = 12
    SUCCESS = 13
    ERROR = 14
    CLOSE_PRODUCER = 15
    CLOSE_CONSUMER = 16
    PRODUCER_SUCCESS = 17
    PING = 18
    PONG = 19
    REDELIVER = 20
    PARTITIONED_METADATA = 21
    PARTITIONED_METADATA_RESPONSE = 22
    LOOKUP = 23
    LOOKUP_RESPONSE = 24
    CONSUMER_STATS = 25
    CONSUMER_STATS_RESPONSE = 26
    REACHED_END_OF_TOPIC = 27
    SEEK = 28
    GET_LAST_MESSAGE_ID = 29
    GET_LAST_MESSAGE_ID_RESPONSE = 30
    ACTIVE_CONSUMER_CHANGE = 31
    GET_TOPICS_OF_NAMESPACE = 32
    GET_TOPICS_OF_NAMESPACE_RESPONSE = 33
    GET_SCHEMA = 34
    GET_SCHEMA_RESPONSE = 35
    AUTH_CHALLENGE = 36
    AUTH_RESPONSE = 37
    ACK_RESPONSE = 38
    GET_OR_CREATE_SCHEMA = 39
    GET_OR_CREATE_SCHEMA_RESPONSE = 40
    NEW_TXN = 50
    NEW_TXN_RESPONSE = 51
    ADD_PARTITION_TO_TXN = 52
    ADD_PARTITION_TO_TXN_RESPONSE = 53
    ADD_SUBSCRIPTION_TO_TXN = 54
    ADD_SUBSCRIPTION_TO_TXN_RESPONSE = 55
    END_TXN = 56
    END_TXN_RESPONSE = 57
    END_TXN_ON_PARTITION = 58
    END_TXN_ON_PARTITION_RESPONSE = 59
    END_TXN_ON_SUBSCRIPTION = 60
    END_TXN_ON_SUBSCRIPTION_RESPONSE = 61
    TC_CLIENT_CONNECT_REQUEST = 62
    TC_CLIENT_CONNECT_RESPONSE = 63
    WATCH_TOPIC_LIST = 64
    WATCH_TOPIC_LIST_SUCCESS = 65
    WATCH_TOPIC_UPDATE = 66
    WATCH_TOPIC_LIST_CLOSE = 67
    TOPIC_MIGRATED = 68


class SubscriptionType(IntEnum):
    """CommandSubscribe.subType."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3


TYPE_NAMES: Final[Mapping[SubscriptionType, str]] = {
    SubscriptionType.EXCLUSIVE: "Exclusive",
    SubscriptionType.SHARED: "Shared",
    SubscriptionType.FAILOVER: "Failover",
    SubscriptionType.KEY_SHARED: "Key_Shared",
}
"""The names of the types in policies, settings and stats."""


class AckKind(IntEnum):
    """CommandAck.ack_type."""

    INDIVIDUAL = 0
    CUMULATIVE = 1


class InitialPosition(IntEnum):
    """The position at which a new durable subscription starts."""

    LATEST = 0
    EARLIEST = 1


class AccessMode(IntEnum):
    """CommandProducer.producer_access_mode."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


class LookupType(IntEnum):
    """CommandLookupTopicResponse.response."""

    REDIRECT = 0
    CONNECT = 1
    FAILED = 2


class KeySharedMode(IntEnum):
    """KeySharedMeta.keySharedMode."""

    AUTO_SPLIT = 0
    STICKY = 1


class TopicsMode(IntEnum):
    """CommandGetTopicsOfNamespace.mode."""

    PERSISTENT = 0
    NON_PERSISTENT = 1
    ALL = 2
