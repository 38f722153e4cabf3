"""Query parameters: Pulsar's defaults, their bounds, and values that are refused."""

from typing import Any

import pytest

from quire_bookie.errors import PeerProtocolError
from quire_broker.compression import Codec
from quire_broker.websocket.message_ids import MessageId
from quire_broker.websocket.parameters import (
    EARLIEST,
    LATEST,
    consumer_parameters,
    producer_parameters,
    reader_parameters,
)
from quire_broker.wire.kinds import InitialPosition, SubscriptionType


def test_the_defaults_are_those_of_pulsar() -> None:
    consumer = consumer_parameters({"unknown": "x"})
    assert (consumer.subscription_type, consumer.durable) == (SubscriptionType.EXCLUSIVE, True)
    assert (consumer.initial, consumer.unacked_max, consumer.pulls) == (InitialPosition.LATEST, 1000, False)
    assert (consumer.ack_timeout_s, consumer.nack_delay_s, consumer.start) == (0, 60, None)
    producer = producer_parameters({})
    assert (producer.name, producer.initial_sequence, producer.send_timeout_s) == ("", None, 30)
    assert reader_parameters({}).start == LATEST


def test_values_arrive_in_the_units_of_the_session() -> None:
    consumer = consumer_parameters(
        {
            "consumerName": "c",
            "subscriptionType": "Key_Shared",
            "subscriptionMode": "NonDurable",
            "subscriptionInitialPosition": "Earliest",
            "receiverQueueSize": "5000",
            "priorityLevel": "3",
            "ackTimeoutMillis": "1500",
            "negativeAckRedeliveryDelay": "250",
            "pullMode": "true",
        }
    )
    assert (consumer.name, consumer.subscription_type, consumer.durable) == ("c", SubscriptionType.KEY_SHARED, False)
    assert (consumer.initial, consumer.unacked_max, consumer.priority) == (InitialPosition.EARLIEST, 1000, 3)
    assert (consumer.ack_timeout_s, consumer.nack_delay_s, consumer.pulls) == (1.5, 0.25, True)
    assert consumer_parameters({"receiverQueueSize": "0"}).unacked_max == 1
    producer = producer_parameters(
        {
            "producerName": "p",
            "initialSequenceId": "41",
            "sendTimeoutMillis": "0",
            "maxPendingMessages": "7",
            "messageRoutingMode": "RoundRobinPartition",
            "hashingScheme": "Murmur3_32Hash",
            "compressionType": "ZSTD",
        }
    )
    assert (producer.name, producer.initial_sequence, producer.send_timeout_s) == ("p", 41, float("inf"))
    assert (producer.pending_max, producer.round_robin, producer.murmur, producer.codec) == (7, True, True, Codec.ZSTD)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", EARLIEST),
        ("latest", LATEST),
        ("CAcQAQ==", MessageId(7, 1)),
        ("CP///////////wEQ////////////AQ==", EARLIEST),
    ],
)
def test_a_reader_begins_at_a_message(text: str, start: MessageId) -> None:
    assert reader_parameters({"messageId": text}).start == start


@pytest.mark.parametrize(
    ("parse", "query"),
    [
        (consumer_parameters, {"subscriptionType": "shared"}),
        (consumer_parameters, {"subscriptionMode": ""}),
        (consumer_parameters, {"priorityLevel": "1e3"}),
        (consumer_parameters, {"receiverQueueSize": "9" * 5000}),
        (consumer_parameters, {"ackTimeoutMillis": str(2**31)}),
        (consumer_parameters, {"deadLetterTopic": "t"}),
        (consumer_parameters, {"maxRedeliverCount": "0"}),
        (producer_parameters, {"hashingScheme": "MD5"}),
        (producer_parameters, {"maxPendingMessages": "0"}),
        (producer_parameters, {"initialSequenceId": "-2"}),
        (producer_parameters, {"encryptionKeys": "k"}),
        (reader_parameters, {"messageId": "7:1"}),
    ],
)
def test_other_values_are_refused_with_the_name(parse: Any, query: dict[str, str]) -> None:
    with pytest.raises(PeerProtocolError, match=next(iter(query))):
        parse(query)
