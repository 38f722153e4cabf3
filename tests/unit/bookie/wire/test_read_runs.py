"""Tests that consecutive plain reads are decoded to runs that are equivalent to the single reads."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.model import EntryId, LedgerId
from quire_bookie.wire import client_codec, v2
from quire_bookie.wire.messages import BatchReadRequest, ReadRequest, ReadRun, Request, V2Origin
from quire_bookie.wire.server_codec import ServerCodec

ORIGIN = V2Origin(v2.answer_header(v2.VERSION, v2.READ))


def read(ledger: int, entry: int, *, high_priority: bool = False) -> bytes:
    """Return a V2 read."""
    return client_codec.v2_read(LedgerId(ledger), EntryId(entry), high_priority=high_priority)


def one_by_one(requests: list[Request]) -> list[Request]:
    """Replace runs by their single reads."""
    return [one for each in requests for one in (each.requests() if isinstance(each, ReadRun) else [each])]


def test_reads_of_one_ledger_become_a_run_but_a_single_read_does_not() -> None:
    data = read(7, 1) + read(7, 2) + read(7, 2) + read(8, 3) + read(7, 4)
    run, other, last = ServerCodec(batches=True).feed(data)
    assert run == ReadRun(ORIGIN, LedgerId(7), array("q", [1, 2, 2]))
    assert other == ReadRequest(ORIGIN, LedgerId(8), EntryId(3))
    assert last == ReadRequest(ORIGIN, LedgerId(7), EntryId(4))


def test_other_requests_keep_their_order_between_runs() -> None:
    batch = client_codec.v2_batch_read(LedgerId(7), EntryId(0), 1, 2, 3)
    fence = client_codec.v2_read(LedgerId(7), EntryId(5), fence_with=bytes(20))
    urgent = read(7, 6, high_priority=True)
    found = ServerCodec(batches=True).feed(read(7, 1) * 2 + batch + read(7, 2) * 2 + fence + urgent + read(7, 3) * 2)
    assert [type(one) for one in found] == [ReadRun, BatchReadRequest, ReadRun, ReadRequest, ReadRequest, ReadRun]


def test_a_part_of_a_run_has_its_ids_and_its_time() -> None:
    (run,) = ServerCodec(batches=True).feed(b"".join(read(7, entry) for entry in range(5)))
    assert isinstance(run, ReadRun)
    run.arrived_s = 9.5
    part = run.part(1, 3)
    assert (list(part.entries), part.arrived_s, part.ledger) == ([1, 2], 9.5, 7)
    assert part.request(1) == ReadRequest(ORIGIN, LedgerId(7), EntryId(2)) and part.request(1).arrived_s == 9.5


@pytest.mark.parametrize("more", [1, 24, 100])
def test_longer_frames_of_reads_are_decoded_as_single_reads(more: int) -> None:
    frame = read(7, 1)
    longer = (20 + more).to_bytes(4, "big") + frame[4:] + bytes(more)
    found = ServerCodec(batches=True).feed(longer * 3)
    assert found == [ReadRequest(ORIGIN, LedgerId(7), EntryId(1))] * 3


@given(
    st.lists(st.tuples(st.integers(-1, 2), st.integers(-1, 5), st.booleans()), max_size=20),
    st.lists(st.integers(1, 60), max_size=20),
)
def test_runs_have_the_same_reads_in_the_same_order_for_any_split_of_the_bytes(
    wanted: list[tuple[int, int, bool]], pieces: list[int]
) -> None:
    data = b"".join(read(ledger, entry, high_priority=urgent) for ledger, entry, urgent in wanted)
    alone = ServerCodec().feed(data)
    together, apart = ServerCodec(batches=True), []
    for size in pieces:
        apart += together.feed(data[:size])
        data = data[size:]
    apart += together.feed(data)
    assert one_by_one(apart) == alone
