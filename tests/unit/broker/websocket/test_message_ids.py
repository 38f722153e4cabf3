"""Ids of messages as texts, and texts that are none."""

import base64

import pytest

from quire_bookie.errors import PeerProtocolError
from quire_broker.limits import BATCH_MESSAGES_MAX
from quire_broker.websocket.message_ids import MessageId, message_id_of
from quire_broker.wire.proto.pulsar_pb2 import MessageIdData


@pytest.mark.parametrize(
    ("message_id", "text"),
    [
        (MessageId(7, 1), "CAcQAQ=="),
        (MessageId(7, 1, 2), "CAcQARgC"),
        (MessageId(7, 1, -1, 3, 5), "CAcQASADMAU="),
        (MessageId(-1, -1), "CP///////////wEQ////////////AQ=="),
    ],
)
def test_an_id_has_the_form_that_java_clients_read(message_id: MessageId, text: str) -> None:
    assert message_id.text() == text
    assert message_id_of(text) == message_id


def encoded(message_id: MessageIdData) -> str:
    return base64.b64encode(message_id.SerializePartialToString()).decode()


@pytest.mark.parametrize(
    "text",
    [
        None,
        7,
        "",
        "CAcQAQ",
        "!!!!",
        "x" * 2000,
        "/w==",
        encoded(MessageIdData(ledgerId=1)),
        encoded(MessageIdData(ledgerId=1, entryId=1, batch_index=3, batch_size=3)),
        encoded(MessageIdData(ledgerId=1, entryId=1, batch_index=0, batch_size=BATCH_MESSAGES_MAX + 1)),
        "é",
    ],
)
def test_a_text_that_is_no_id_is_refused(text: object) -> None:
    with pytest.raises(PeerProtocolError, match="messageId"):
        message_id_of(text)


def test_the_id_of_a_chunked_message_names_its_first_and_its_last_chunk() -> None:
    found = MessageId(7, 9, 2, first=(7, 5))
    assert message_id_of(found.text()) == found
    assert found.shown() == "7:5:2;7:9:2"
