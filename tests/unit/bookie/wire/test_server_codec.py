"""Tests the bookie's end of a connection: how adds become runs, and which bytes end a connection."""

import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire_bookie.model import DigestType, EntryId, LedgerId
from quire_bookie.wire import client_codec, server_codec
from quire_bookie.wire.client_codec import ClientCodec
from quire_bookie.wire.digest import Digest
from quire_bookie.wire.messages import (
    AddRequest,
    AddResponse,
    BatchReadRequest,
    BatchReadResponse,
    ReadRequest,
    RefusedRequest,
    Request,
    Status,
    V2Origin,
)
from quire_bookie.wire.server_codec import ServerCodec

KEY = bytes(range(20))
DIGEST = Digest(DigestType.CRC32C, b"")


def entry_bytes(ledger: int, entry: int, payload: bytes = b"p", lac: int | None = None) -> bytes:
    """Return a complete entry."""
    confirmed = EntryId(entry - 1 if lac is None else lac)
    return DIGEST.encode_entry(LedgerId(ledger), EntryId(entry), confirmed, 9, (payload,)) + payload


def add(ledger: int, entry: int, payload: bytes = b"p", *, key: bytes = KEY, recovery: bool = False) -> bytes:
    """A V2 add."""
    return b"".join(client_codec.v2_adds(key, [(entry_bytes(ledger, entry, payload),)], recovery=recovery))


def v3_add(transaction: int, ledger: int, entry: int, **options: bool) -> bytes:
    """A V3 add."""
    return client_codec.v3_add(
        transaction, LedgerId(ledger), EntryId(entry), KEY, entry_bytes(ledger, entry), **options
    )


def runs(requests: Sequence[Request]) -> list[tuple[int, int, int]]:
    """Return (ledger, first, count) of each add request."""
    found: list[tuple[int, int, int]] = []
    for request in requests:
        assert isinstance(request, AddRequest)
        found.append((request.run.ledger, request.run.first, len(request.run.entries)))
    return found


def test_consecutive_adds_of_one_buffer_are_one_run() -> None:
    data = b"".join(add(5, entry, b"x" * entry) for entry in range(10, 40))
    (request,) = ServerCodec().feed(data)
    assert isinstance(request, AddRequest)
    run = request.run
    assert (run.ledger, run.first, len(run.entries), run.lac) == (5, 10, 30, 38)
    assert run.size_bytes == sum(map(len, run.entries))
    assert bytes(run.entries[3]) == entry_bytes(5, 13, b"x" * 13)
    assert request.master_key == KEY
    assert not request.recovery


def test_large_entries_are_views_into_their_buffer() -> None:
    data = b"".join(add(5, entry, bytes(20_000)) for entry in range(3))
    (request,) = ServerCodec().feed(data)
    assert isinstance(request, AddRequest)
    assert all(isinstance(entry, memoryview) and entry.obj is data for entry in request.run.entries)


def test_interleaved_ledgers_make_one_run_each() -> None:
    data = b"".join(add(ledger, entry) for entry in range(4) for ledger in (1, 2))
    assert runs(ServerCodec().feed(data)) == [(1, 0, 4), (2, 0, 4)]


def test_a_gap_a_repetition_another_key_and_other_flags_begin_a_new_run() -> None:
    data = add(1, 0) + add(1, 2) + add(1, 2) + add(1, 3, key=bytes(20)) + add(1, 4, recovery=True)
    assert runs(ServerCodec().feed(data)) == [(1, 0, 1), (1, 2, 1), (1, 2, 1), (1, 3, 1), (1, 4, 1)]


def test_a_run_never_continues_after_another_request() -> None:
    data = add(1, 0) + client_codec.v2_read(LedgerId(1), EntryId(0)) + add(1, 1)
    first, read, second = ServerCodec().feed(data)
    assert runs([first, second]) == [(1, 0, 1), (1, 1, 1)]
    assert isinstance(read, ReadRequest)


def test_v3_adds_become_runs_too_and_keep_their_transactions() -> None:
    data = b"".join(v3_add(100 + entry, 1, entry) for entry in range(5)) + v3_add(7, 1, 5, recovery=True)
    first, second = ServerCodec().feed(data)
    assert runs([first, second]) == [(1, 0, 5), (1, 5, 1)]
    assert isinstance(first, AddRequest)
    assert first.transactions == [100, 101, 102, 103, 104]
    answers = ClientCodec(3).feed(server_codec.encode_adds(first, Status.OK))
    assert answers == [AddResponse(Status.OK, LedgerId(1), EntryId(e), 1, 100 + e) for e in range(5)]


def test_the_response_to_a_run_has_one_frame_per_entry_and_the_client_joins_them() -> None:
    (request,) = ServerCodec().feed(b"".join(add(1, entry) for entry in range(3, 9)))
    assert isinstance(request, AddRequest)
    answers = server_codec.encode_adds(request, Status.FENCED)
    assert len(answers) == 6 * 28
    assert ClientCodec(2).feed(answers) == [AddResponse(Status.FENCED, LedgerId(1), EntryId(3), 6)]


adds = st.tuples(
    st.sampled_from([1, 2, -3]),
    st.integers(0, 6),
    st.binary(max_size=40),
    st.sampled_from([KEY, bytes(20)]),
    st.booleans(),
)


@settings(max_examples=60)
@given(st.lists(adds, max_size=12), st.lists(st.integers(1, 120), max_size=12))
def test_adds_are_decoded_for_any_split_of_the_bytes(
    wanted: list[tuple[int, int, bytes, bytes, bool]], sizes: list[int]
) -> None:
    data = b"".join(add(ledger, entry, payload, key=key, recovery=r) for ledger, entry, payload, key, r in wanted)
    codec = ServerCodec()
    requests: list[Request] = []
    position = 0
    for size in [*sizes, len(data)]:
        requests += codec.feed(data[position : position + size])
        position += size
    assert codec.failure is None
    found = []
    for request in requests:
        assert isinstance(request, AddRequest)
        assert request.run.size_bytes == sum(map(len, request.run.entries))
        for offset, body in enumerate(request.run.entries):
            found.append((request.run.ledger, request.run.first + offset, bytes(body), request.master_key))
    asked = [(ledger, entry, entry_bytes(ledger, entry, payload), key) for ledger, entry, payload, key, _ in wanted]
    # Only adds of different ledgers, keys or flags may overtake each other.
    for ledger in (1, 2, -3):
        for key in (KEY, bytes(20)):
            mine = [one for one in found if one[0] == ledger and one[3] == key]
            assert sorted(mine) == sorted(one for one in asked if one[0] == ledger and one[3] == key)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_raise(data: bytes) -> None:
    codec = ServerCodec()
    codec.feed(data)
    codec.feed(data)


@pytest.mark.parametrize("length", [0, -1, 1001, 2**31 - 1])
def test_an_invalid_length_ends_the_connection_before_its_bytes_arrive(length: int) -> None:
    codec = ServerCodec(frame_bytes_max=1000)
    assert codec.feed(length.to_bytes(4, "big", signed=True)) == []
    assert codec.failure is not None
    assert codec.feed(add(1, 0)) == []


def test_requests_before_a_failure_are_still_returned() -> None:
    codec = ServerCodec()
    assert runs(codec.feed(add(1, 0) + add(1, 1) + bytes(8))) == [(1, 0, 2)]
    assert codec.failure is not None


def test_a_v3_request_on_a_v2_connection_is_a_failure() -> None:
    codec = ServerCodec()
    assert len(codec.feed(v3_add(1, 1, 0) + add(1, 1))) == 2
    assert codec.failure is None
    codec.feed(v3_add(300, 1, 2))
    assert codec.failure is not None


def test_a_version_above_two_is_refused_with_that_version_in_the_response() -> None:
    frame = bytearray(add(1, 0))
    frame[4] = 3
    (request,) = ServerCodec().feed(bytes(frame))
    assert isinstance(request, RefusedRequest)
    assert request.answer[4:12].hex() == "0301000000000067"


def test_a_batch_read_and_its_response_decode_to_the_same_values() -> None:
    frame = client_codec.v2_batch_read(LedgerId(1), EntryId(2), 77, 5, 4096, fence_with=KEY)
    (request,) = ServerCodec().feed(frame)
    assert request == BatchReadRequest(V2Origin(0x02070000), LedgerId(1), EntryId(2), 77, 5, 4096, True, False, KEY)
    assert isinstance(request, BatchReadRequest)
    entries = [entry_bytes(1, 2, b"abc"), entry_bytes(1, 3, b"")]
    (answer,) = ClientCodec(2).feed(b"".join(server_codec.encode_batch(request, Status.OK, entries)))
    assert isinstance(answer, BatchReadResponse)
    assert (answer.status, answer.request_id, [bytes(e) for e in answer.entries]) == (Status.OK, 77, entries)


def test_the_limit_of_a_batch_includes_the_head_of_the_frame() -> None:
    request = BatchReadRequest(V2Origin(0), LedgerId(1), EntryId(0), 1, 0, 1000)
    assert server_codec.entry_bytes_within(request, 5000) == 964
    assert server_codec.entry_bytes_within(request, 500) == 464


def test_a_frame_that_arrives_byte_by_byte_uses_little_more_memory_than_its_bytes() -> None:
    """With two objects for each byte, a frame of the largest size used a gigabyte."""
    frame = add(1, 0, bytes(50_000))
    codec = ServerCodec()
    codec.feed(add(1, 0) + frame[:10])
    tracemalloc.start()
    try:
        for at in range(10, len(frame) - 1):
            assert codec.feed(frame[at : at + 1]) == []
        held_bytes, _peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 4 * len(frame)
    (request,) = codec.feed(frame[-1:])
    assert isinstance(request, AddRequest)
    assert bytes(request.run.entries[0]) == frame[28:]
