"""Values of options that cannot work are refused with their name and their limit."""

from typing import Any

import pytest

from quire_bookie.errors import ConfigError
from quire_broker.errors import ServerError
from quire_client import ClientOptions, ConsumerOptions, NoSuchTopicError, ProducerOptions
from quire_client.errors import BrokerRefusedError, DeniedByBrokerError, NotThereError, error_of


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (ClientOptions, "answer_timeout_s", 0),
        (ClientOptions, "reconnect_s", -1),
        (ClientOptions, "backoff_s", (2.0, 1.0)),
        (ClientOptions, "backoff_s", (0.0, 1.0)),
        (ClientOptions, "frame_bytes_max", 0),
        (ProducerOptions, "batch_messages_max", 0),
        (ProducerOptions, "batch_delay_s", -0.1),
        (ProducerOptions, "pending_bytes_max", 0),
        (ProducerOptions, "send_timeout_s", 0),
        (ConsumerOptions, "queue_messages_max", 0),
        (ConsumerOptions, "acks_max", 0),
        (ConsumerOptions, "redelivery_delay_s", -1),
    ],
)
def test_an_impossible_value_is_refused_with_its_name(kind: Any, name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        kind(**{name: value})


@pytest.mark.parametrize(
    ("code", "message", "kind", "text"),
    [
        (ServerError.TOPIC_NOT_FOUND, "", NoSuchTopicError, "topic t does not exist"),
        (ServerError.TOPIC_NOT_FOUND, "no namespace n", NotThereError, "t: TOPIC_NOT_FOUND: no namespace n"),
        (ServerError.AUTHORIZATION, "no", DeniedByBrokerError, "t: AUTHORIZATION: no"),
        (ServerError.PRODUCER_BUSY, "", BrokerRefusedError, "t: PRODUCER_BUSY"),
        (999, "new", BrokerRefusedError, "t: UNKNOWN: new"),
    ],
)
def test_a_code_of_a_broker_becomes_an_error_with_its_topic(
    code: int, message: str, kind: type[BrokerRefusedError], text: str
) -> None:
    error = error_of(code, message, "t")
    assert type(error) is kind
    assert str(error) == text
