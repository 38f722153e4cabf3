"""Tests the client's end of a connection: how responses are joined, and which bytes end the connection."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.errors import PeerProtocolError
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.wire import v2
from quire_bookie.wire.client_codec import ClientCodec
from quire_bookie.wire.messages import AddResponse, ReadResponse, Response, Status

ADD_HEADER = v2.header_word(v2.ADD)
READ_HEADER = v2.header_word(v2.READ)


def ack(ledger: int, entry: int, code: int = 0) -> bytes:
    """Return a V2 response to an add."""
    return v2.RESPONSE.pack(24, ADD_HEADER, code, ledger, entry)


def expand(responses: list[Response]) -> list[tuple[int, int, Status]]:
    """Return one tuple for each acknowledged entry."""
    found: list[tuple[int, int, Status]] = []
    for response in responses:
        assert isinstance(response, AddResponse)
        found += [(response.ledger, response.first + at, response.status) for at in range(response.count)]
    return found


def test_consecutive_acks_are_one_response() -> None:
    data = b"".join(ack(1, entry) for entry in range(5, 105))
    assert ClientCodec(2).feed(data) == [AddResponse(Status.OK, LedgerId(1), EntryId(5), 100)]


def test_another_ledger_a_gap_or_another_status_begins_a_new_response() -> None:
    data = ack(1, 0) + ack(2, 1) + ack(2, 3) + ack(2, 4, 104) + ack(2, 5, 104)
    assert [response.count for response in ClientCodec(2).feed(data) if isinstance(response, AddResponse)] == [
        1,
        1,
        1,
        2,
    ]


@given(
    st.lists(st.tuples(st.integers(1, 2), st.integers(0, 5), st.sampled_from([0, 101, 104])), max_size=20), st.data()
)
def test_every_ack_is_returned_in_order_for_any_split_of_the_bytes(
    acks: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    stream = b"".join(ack(*one) for one in acks)
    codec = ClientCodec(2)
    responses: list[Response] = []
    position = 0
    while position < len(stream):
        size = data.draw(st.integers(1, len(stream)))
        responses += codec.feed(stream[position : position + size])
        position += size
    names = {0: Status.OK, 101: Status.IO_ERROR, 104: Status.FENCED}
    assert expand(responses) == [(ledger, entry, names[code]) for ledger, entry, code in acks]


@pytest.mark.parametrize("wrong", [0, 1, 50, 98, 99])
def test_a_response_ends_at_an_ack_that_does_not_continue_it(wrong: int) -> None:
    acks = [ack(1, entry) for entry in range(100)]
    for other in (ack(2, wrong), ack(1, wrong, 104), ack(1, wrong + 1)):
        changed = [*acks[:wrong], other, *acks[wrong + 1 :]]
        found = ClientCodec(2).feed(b"".join(changed))
        alone = [response for one in changed for response in ClientCodec(2).feed(one)]
        assert expand(found) == expand(alone)
        assert len(found) == (2 if wrong in (0, 99) else 3)


def test_a_read_response_between_acks_is_not_decoded_as_an_ack() -> None:
    read = v2.RESPONSE.pack(24, READ_HEADER, 2, 1, 1)
    first, between, last = ClientCodec(2).feed(ack(1, 0) + read + ack(1, 1))
    assert isinstance(first, AddResponse)
    assert between == ReadResponse(Status.NO_ENTRY, LedgerId(1), EntryId(1))
    assert isinstance(last, AddResponse)


def test_an_entry_is_a_view_into_the_received_bytes() -> None:
    data = v2.RESPONSE.pack(24 + 5, READ_HEADER, 0, 1, 1) + b"entry"
    (response,) = ClientCodec(2).feed(data)
    assert isinstance(response, ReadResponse)
    assert isinstance(response.data, memoryview)
    assert response.data.obj is data
    assert bytes(response.data) == b"entry"


@pytest.mark.parametrize(
    "data",
    [
        bytes(8),
        (2**30).to_bytes(4, "big") + bytes(4),
        b"\x00\x00\x00\x02\x02\x01",
        v2.LENGTH_AND_HEADER.pack(8, ADD_HEADER) + bytes(4),
        v2.RESPONSE.pack(24, v2.header_word(9), 0, 1, 1),
        v2.RESPONSE.pack(36, v2.header_word(v2.BATCH_READ), 0, 1, 1) + bytes(8) + (99).to_bytes(4, "big"),
    ],
    ids=["empty", "oversized", "no header", "short", "unknown opcode", "entry beyond its batch"],
)
def test_a_response_that_violates_the_protocol_ends_the_connection(data: bytes) -> None:
    with pytest.raises(PeerProtocolError):
        ClientCodec(2).feed(data)


def test_a_v3_response_that_does_not_parse_ends_the_connection() -> None:
    with pytest.raises(PeerProtocolError):
        ClientCodec(3).feed(b"\x00\x00\x00\x03\x0a\xff\xff")
