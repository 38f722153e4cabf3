"""A client of Pulsar's protocol for asyncio: produces, consumes and reads. See docs/python-client.md."""

from quire_bookie.cli.client_access import ClientAccess, client_access
from quire_broker.compression import Codec
from quire_broker.schemas.stored import Schema, SchemaType
from quire_broker.wire.kinds import InitialPosition, SubscriptionType
from quire_client.batch import Extra
from quire_client.client import Client
from quire_client.consumer import Consumer, Reader
from quire_client.errors import (
    BrokerRefusedError,
    ClosedError,
    ConnectionLostError,
    DeniedByBrokerError,
    NoBrokerError,
    NoSuchTopicError,
    NotThereError,
    UnconfirmedError,
)
from quire_client.message import Message, MessageId
from quire_client.options import EARLIEST, LATEST, ClientOptions, ConsumerOptions, ProducerOptions
from quire_client.producer import Producer

__all__ = [
    "EARLIEST",
    "LATEST",
    "BrokerRefusedError",
    "Client",
    "ClientAccess",
    "ClientOptions",
    "ClosedError",
    "Codec",
    "ConnectionLostError",
    "Consumer",
    "ConsumerOptions",
    "DeniedByBrokerError",
    "Extra",
    "InitialPosition",
    "Message",
    "MessageId",
    "NoBrokerError",
    "NoSuchTopicError",
    "NotThereError",
    "Producer",
    "ProducerOptions",
    "Reader",
    "Schema",
    "SchemaType",
    "SubscriptionType",
    "UnconfirmedError",
    "client_access",
]
