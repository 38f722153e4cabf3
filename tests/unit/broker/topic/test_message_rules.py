"""Messages that the policies of a topic refuse: at the limit of the size, one byte above it, and without encryption."""

from typing import Any

import pytest

from quire_broker.errors import ServerError
from quire_broker.topic.message_rules import MessageRules, message_rules_of
from quire_broker.wire.entry import seal
from quire_broker.wire.frames import Send
from quire_broker.wire.proto.pulsar_pb2 import MessageMetadata


def _send(payload: bytes = b"x", *, chunk: bool = False, key: str = "") -> Send:
    metadata = MessageMetadata(producer_name="p", sequence_id=7, publish_time=1)
    if key:
        metadata.encryption_keys.add(key=key, value=b"k")
    return Send(7, 9, 1, chunk, False, memoryview(seal(metadata, payload)))


def test_a_message_of_the_size_is_taken_and_one_byte_more_is_refused() -> None:
    send = _send(b"x" * 50)
    rules = MessageRules(bytes_max=len(send.entry))
    assert rules.active
    assert rules.refusal_of(send) is None
    refusal = rules.refusal_of(_send(b"x" * 51))
    assert refusal is not None
    assert (refusal.sequence_id, refusal.code) == (9, ServerError.NOT_ALLOWED)
    assert f"{len(send.entry) + 1} bytes, the policy maxMessageSize is {len(send.entry)}" in refusal.message
    assert rules.refusal_of(_send(b"x" * 51, chunk=True)) is None


def test_a_message_without_encryption_is_refused() -> None:
    rules = MessageRules(encrypted=True)
    assert rules.refusal_of(_send(key="one")) is None
    refusal = rules.refusal_of(_send())
    assert refusal is not None and "must be encrypted" in refusal.message


@pytest.mark.parametrize(
    ("policies", "rules"),
    [
        ({}, MessageRules()),
        ({"max_message_size": 5}, MessageRules(5)),
        ({"max_message_size": 0, "encryption_required": False}, MessageRules()),
        ({"max_message_size": True, "encryption_required": "yes"}, MessageRules()),
        ({"encryption_required": True}, MessageRules(encrypted=True)),
    ],
)
def test_rules_come_from_the_policies(policies: dict[str, Any], rules: MessageRules) -> None:
    assert message_rules_of(policies) == rules
    assert rules.active is (rules != MessageRules())
