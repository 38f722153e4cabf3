"""Tests that V3 adds decoded without protobuf messages equal the messages, and that other frames are left alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.model import EntryId, LedgerId
from quire_bookie.wire import client_codec, server_v3
from quire_bookie.wire.messages import AddRequest, Request, StartTlsRequest, Status
from quire_bookie.wire.proto import bookkeeper_pb2 as pb
from quire_bookie.wire.server_codec import ServerCodec
from quire_bookie.wire.status import V3_CODES
from quire_bookie.wire.v3_adds import encode_answers, take_add

KEY = bytes(range(20))
INT63 = st.one_of(st.integers(0, 300), st.integers(0, (1 << 63) - 1))
INT64 = st.one_of(st.integers(-3, 300), st.integers(-(1 << 63), (1 << 63) - 1))


def entry_bytes(ledger: int, entry: int, lac: int, more: bytes = b"") -> bytes:
    """Return an entry with its complete header."""
    return b"".join(each.to_bytes(8, "big", signed=True) for each in (ledger, entry, lac, 0)) + more


@st.composite
def requests_of_adds(draw: st.DrawFn) -> pb.Request:
    """Draw any add, mostly in the form of the stock client."""
    message = pb.Request(
        header=pb.PacketHeader(
            version=pb.VERSION_THREE, operation=pb.ADD_ENTRY, txnId=draw(st.integers(0, (1 << 64) - 1))
        )
    )
    if draw(st.booleans()):
        message.header.priority = draw(st.sampled_from([0, 100, (1 << 32) - 1]))
    add = message.addRequest
    ids = draw(st.tuples(INT64, INT64))
    add.ledgerId, add.entryId = ids if draw(st.booleans()) else draw(st.tuples(INT64, INT64))
    add.masterKey = draw(st.sampled_from([KEY, KEY, KEY, b"", bytes(21)]))
    body = entry_bytes(*ids, draw(INT64), draw(st.binary(max_size=200)))
    add.body = draw(st.sampled_from([body, body, body, body[:31], body[:16], b""]))
    if draw(st.booleans()):
        add.writeFlags = draw(st.sampled_from([0, 1, 2, 3, -1]))
    if draw(st.booleans()):
        add.flag = pb.AddRequest.RECOVERY_ADD
    if draw(st.sampled_from([False, False, True])):
        message.requestContext.add(key="k", value="v")
    return message


def values(requests: list[Request]) -> list[object]:
    """Return requests in a comparable form: bodies as bytes."""
    found: list[object] = []
    for request in requests:
        if isinstance(request, AddRequest):
            run = request.run
            request.run = None  # type: ignore[assignment]
            found.append((request, run.ledger, run.first, [bytes(b) for b in run.entries], run.lac, run.size_bytes))
        else:
            found.append(request)
    return found


def through_messages(messages: list[pb.Request]) -> list[Request]:
    """Decode the messages by the general path."""
    requests: list[Request] = []
    for message in messages:
        request = server_v3.request_of(message)
        assert not isinstance(request, StartTlsRequest)
        if not server_v3.extend_run(requests[-1] if requests else None, request):
            requests.append(request)
    return requests


@given(st.lists(requests_of_adds(), min_size=1, max_size=4))
def test_any_adds_decode_as_in_the_general_path(messages: list[pb.Request]) -> None:
    data = b"".join(server_v3.frame(message) for message in messages)
    assert values(ServerCodec().feed(data)) == values(through_messages(messages))


@given(st.data(), st.integers(1, 6), INT63, INT63)
def test_runs_grow_as_in_the_general_path(data: st.DataObject, count: int, ledger: int, first: int) -> None:
    messages = []
    entry = min(first, (1 << 63) - 50)
    for transaction in range(count):
        entry += data.draw(st.sampled_from([1, 1, 1, 2]))
        body = entry_bytes(ledger, entry, data.draw(st.integers(-1, 9)))
        frame = client_codec.v3_add(
            transaction,
            LedgerId(ledger),
            EntryId(entry),
            data.draw(st.sampled_from([KEY, KEY, KEY, bytes(20)])),
            body,
            recovery=data.draw(st.sampled_from([False, False, True])),
            deferred_sync=data.draw(st.sampled_from([False, False, True])),
            priority=data.draw(st.sampled_from([0, 0, 100])),
        )
        messages.append(pb.Request.FromString(frame[4:]))
    buffer = b"".join(server_v3.frame(message) for message in messages)
    assert values(ServerCodec().feed(buffer)) == values(through_messages(messages))


def test_the_stock_form_takes_the_fast_path() -> None:
    for options in ({}, {"recovery": True}, {"deferred_sync": True}, {"priority": 100}):
        frame = client_codec.v3_add(300, LedgerId(5), EntryId(200), KEY, entry_bytes(5, 200, -1), **options)
        assert take_add(frame, 4, len(frame), [])


@pytest.mark.parametrize(
    "frame",
    [
        client_codec.v3_read(1, LedgerId(1), EntryId(2)),
        client_codec.v3_add(1, LedgerId(1), EntryId(2), bytes(19), entry_bytes(1, 2, 0)),
        client_codec.v3_add(1, LedgerId(1), EntryId(2), KEY, entry_bytes(1, 2, 0)[:20]),
        client_codec.v3_add(1, LedgerId(-1), EntryId(2), KEY, entry_bytes(-1, 2, 0)),
    ],
    ids=["another operation", "a short key", "a short entry", "a negative id"],
)
def test_other_forms_are_left_to_the_general_path(frame: bytes) -> None:
    requests: list[Request] = []
    assert not take_add(frame, 4, len(frame), requests)
    assert requests == []


@given(st.binary(max_size=60), st.integers(0, 59), st.integers(0, 255))
def test_flipped_and_truncated_bytes_decode_as_in_the_general_path(tail: bytes, at: int, value: int) -> None:
    frame = bytearray(client_codec.v3_add(7, LedgerId(5), EntryId(6), KEY, entry_bytes(5, 6, 5, tail)))
    frame[4 + at % (len(frame) - 4)] = value
    try:
        message = pb.Request.FromString(bytes(frame[4:]))
    except Exception:  # noqa: BLE001 - any error of the library: the general path would close the connection
        assert not take_add(bytes(frame), 4, len(frame), [])
        return
    if not message.IsInitialized():
        assert not take_add(bytes(frame), 4, len(frame), [])
        return
    requests: list[Request] = []
    if take_add(bytes(frame), 4, len(frame), requests):
        assert values(requests) == values(through_messages([message]))


@given(st.lists(st.integers(0, (1 << 64) - 1), min_size=1, max_size=5), INT64, INT64, st.sampled_from(list(Status)))
def test_responses_have_the_bytes_of_the_messages(
    transactions: list[int], ledger: int, first: int, status: Status
) -> None:
    first = min(first, (1 << 63) - 10)
    code = V3_CODES[status]
    expected = b""
    for entry, transaction in enumerate(transactions, first):
        answer = pb.Response(
            header=pb.PacketHeader(version=pb.VERSION_THREE, operation=pb.ADD_ENTRY, txnId=transaction),
            status=code,  # type: ignore[arg-type]
        )
        answer.addResponse.status, answer.addResponse.ledgerId, answer.addResponse.entryId = code, ledger, entry  # type: ignore[assignment]
        expected += server_v3.frame(answer)
    assert encode_answers(transactions, ledger, first, code) == expected
