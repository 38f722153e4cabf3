"""Messages of entries: which of a batch are delivered, and their ids as bytes."""

import pytest

from quire_bookie.errors import PeerProtocolError
from quire_broker.wire.entry import seal
from quire_broker.wire.payload import batch_of, singles_of
from quire_broker.wire.proto import pulsar_pb2 as pb
from quire_client.message import MessageId, arrival_of, messages_of


def test_only_the_last_unacknowledged_message_of_a_batch_ends_its_entry() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=4)
    entry = seal(metadata, batch_of([b"0", b"1", b"2", b"3"], key=None, properties={}))
    for ack_set, expected in (([], "0123"), ([0b0110], "12"), ([0b1000], "3"), ([-1], "0123")):
        arrival = arrival_of((7, 8), entry)
        found = messages_of(arrival, ack_set)
        assert "".join(one.payload.decode() for one in found) == expected
        assert [one.ends_entry for one in found] == [False] * (len(expected) - 1) + [True]
        assert arrival.unacked == (ack_set[0] & 0b1111 if ack_set else 0b1111)


def batch(*singles: tuple[bytes, pb.SingleMessageMetadata]) -> bytes:
    parts = []
    for payload, single in singles:
        single.payload_size = len(payload)
        encoded = single.SerializeToString()
        parts += [len(encoded).to_bytes(4, "big"), encoded, payload]
    return b"".join(parts)


def test_messages_with_a_sequence_id_alone_are_not_parsed_before_they_are_read() -> None:
    sizes = (5, 5, 300, 300, 5)
    singles = [pb.SingleMessageMetadata(payload_size=0, sequence_id=200 + number) for number in range(5)]
    payload = batch(*((b"x" * size, single) for size, single in zip(sizes, singles, strict=True)))
    assert [type(single) for single, _, _ in singles_of(payload, 5)] == [
        pb.SingleMessageMetadata,
        bytes,
        pb.SingleMessageMetadata,
        bytes,
        pb.SingleMessageMetadata,
    ]
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=200, publish_time=1, num_messages_in_batch=5)
    found = messages_of(arrival_of((1, 1), seal(metadata, payload)))
    assert [len(each.payload) for each in found] == list(sizes)
    assert [each.sequence_id for each in found] == [200, 201, 202, 203, 204]
    assert [each.key for each in found] == [None] * 5


def test_a_message_that_compaction_removed_is_not_delivered_whatever_its_neighbours_are() -> None:
    plain = [(b"same", pb.SingleMessageMetadata(payload_size=0, sequence_id=number)) for number in range(3)]
    removed = (b"same", pb.SingleMessageMetadata(payload_size=0, sequence_id=5, compacted_out=True))
    payload = batch(plain[0], plain[1], removed, plain[2], removed)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=5)
    arrival = arrival_of((1, 1), seal(metadata, payload))
    assert [each.batch_index for each in messages_of(arrival)] == [0, 1, 3]
    assert arrival.unacked == 0b1011


@pytest.mark.parametrize("cut", [1, 3, 8, 11, 20])
def test_a_batch_that_is_cut_off_is_an_error_of_the_peer(cut: int) -> None:
    payload = batch(*((b"same", pb.SingleMessageMetadata(payload_size=0, sequence_id=number)) for number in range(3)))
    with pytest.raises(PeerProtocolError):
        singles_of(payload[:-cut], 3)


@pytest.mark.parametrize("given", [MessageId(3, 4), MessageId(3, 4, 5, 6), MessageId(-1, -1)])
def test_an_id_survives_its_bytes(given: MessageId) -> None:
    assert MessageId.from_bytes(given.to_bytes()) == given


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x08\x01"])
def test_other_bytes_are_no_id(data: bytes) -> None:
    with pytest.raises(PeerProtocolError, match="not the id of a message"):
        MessageId.from_bytes(data)
