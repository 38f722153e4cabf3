"""The work that the ids of one ACK may cost."""

import pytest

from quire_bookie.errors import PeerProtocolError
from quire_broker.dispatch.delivery import AckId
from quire_broker.limits import BATCH_MESSAGES_MAX
from quire_broker.managed_ledger.position import Position
from quire_broker.server.consuming import _part_of_batch
from quire_broker.wire.proto import pulsar_pb2 as pb


def test_a_part_of_a_batch_keeps_its_words() -> None:
    item = pb.MessageIdData(ledgerId=1, entryId=2, ack_set=[-1, 3], batch_size=70)
    assert _part_of_batch(item) == AckId(Position(1, 2), (-1, 3), 70)
    largest = pb.MessageIdData(ledgerId=1, entryId=2, ack_set=[0] * (BATCH_MESSAGES_MAX // 64))
    assert len(_part_of_batch(largest).ack_set) == 16_384


@pytest.mark.parametrize(
    ("words", "batch_size", "messages"),
    [(1, 2**31 - 1, 2**31 - 1), (1, BATCH_MESSAGES_MAX + 1, BATCH_MESSAGES_MAX + 1), (16_385, 3, 16_385 * 64)],
)
def test_a_batch_that_no_entry_can_hold_is_refused(words: int, batch_size: int, messages: int) -> None:
    item = pb.MessageIdData(ledgerId=1, entryId=2, ack_set=[7] * words, batch_size=batch_size)
    with pytest.raises(PeerProtocolError, match=f"ACK of a batch of {messages} messages; an entry has at most 1048576"):
        _part_of_batch(item)
