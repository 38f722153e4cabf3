"""Snapshots of cursors: both forms of ranges, and the parts omitted from a state that is too large."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.errors import MetadataFormatError
from quire_broker.managed_ledger.cursors.ack_ranges import AckRange
from quire_broker.managed_ledger.cursors.bucket_format import BucketRecord
from quire_broker.managed_ledger.cursors.cursor_fix import aligned
from quire_broker.managed_ledger.cursors.cursor_state import (
    NO_CURSOR_LEDGER,
    CursorNode,
    CursorState,
    StateBounds,
    decode_node,
    decode_position,
    encode_node,
    encode_position,
    fits_node,
)
from quire_broker.managed_ledger.nodes.ledger_list import LedgerList, LedgerRecord
from quire_broker.managed_ledger.nodes.proto import managed_ledger_pb2 as pb
from quire_broker.managed_ledger.position import Position
from quire_broker.settings.managed_ledger import ManagedLedgerSettings

_WIDE = StateBounds(10**6, 10**6, 10**7)
_RANGES = st.lists(st.tuples(st.integers(3, 5), st.integers(0, 3000), st.integers(0, 70)), max_size=60)


def _state(ranges: list[tuple[int, int, int]]) -> CursorState:
    state = CursorState(Position(3, -1), properties={"p": -7}, batches={Position(5, 9): 0b101})
    for ledger, first, extra in ranges:
        state.ranges.add(ledger, first, first + extra)
    return state


def _same(left: CursorState, right: CursorState) -> bool:
    return (
        left.mark_delete == right.mark_delete
        and list(left.ranges) == list(right.ranges)
        and left.batches == right.batches
        and left.properties == right.properties
    )


@given(_RANGES, st.booleans())
def test_a_snapshot_reads_back_the_same_in_either_form(ranges: list[tuple[int, int, int]], bitmap: bool) -> None:
    state = _state(ranges)
    data = encode_position(state, StateBounds(10**6, 10**6, 10**7, bitmap=bitmap))
    assert _same(decode_position(data), state)


def test_many_ranges_are_written_as_a_bitmap_and_few_are_not() -> None:
    few, many = _state([(3, 2, 0)]), _state([(3, 2 * at, 0) for at in range(1000)])
    assert pb.PositionInfo.FromString(encode_position(few, _WIDE)).individualDeletedMessages
    message = pb.PositionInfo.FromString(encode_position(many, _WIDE))
    assert not message.individualDeletedMessages
    assert message.individualDeletedMessageRanges[0].key == 3
    # bit i of word w is entry 64*w + i: every even entry
    assert message.individualDeletedMessageRanges[0].values[0] == 0x5555555555555555
    assert len(encode_position(many, _WIDE)) < 500
    assert len(encode_position(many, StateBounds(10**6, 10**6, 10**7, bitmap=False))) > 10_000


def test_the_first_form_is_used_when_both_are_present() -> None:
    message = pb.PositionInfo(ledgerId=3, entryId=0)
    known = message.individualDeletedMessages.add()
    known.lowerEndpoint.ledgerId = known.upperEndpoint.ledgerId = 3
    known.lowerEndpoint.entryId, known.upperEndpoint.entryId = 4, 6
    message.individualDeletedMessageRanges.add(key=3, values=[-1])
    assert list(decode_position(message.SerializeToString()).ranges) == [AckRange(3, 5, 6)]


def test_ranges_are_open_below_and_closed_above() -> None:
    message = pb.PositionInfo.FromString(encode_position(_state([(3, 0, 2)]), _WIDE))
    known = message.individualDeletedMessages[0]
    assert (known.lowerEndpoint.entryId, known.upperEndpoint.entryId) == (-1, 2)


def test_a_range_over_ledgers_covers_the_whole_ledgers_between() -> None:
    message = pb.PositionInfo(ledgerId=3, entryId=0)
    known = message.individualDeletedMessages.add()
    known.lowerEndpoint.ledgerId, known.lowerEndpoint.entryId = 3, 4
    known.upperEndpoint.ledgerId, known.upperEndpoint.entryId = 9, 1
    ledgers = LedgerList([LedgerRecord(3, 10, 1, 1), LedgerRecord(5, 2, 1, 1), LedgerRecord(9, 7, 1, 1)])
    state = decode_position(message.SerializeToString(), ledgers)
    assert list(state.ranges) == [AckRange(3, 5, 9), AckRange(5, 0, 1), AckRange(9, 0, 1)]


def test_beyond_the_bound_the_highest_ranges_are_omitted_and_the_mark_stays() -> None:
    state = _state([(3, 10 * at, 0) for at in range(100)])
    for bitmap in (False, True):
        back = decode_position(encode_position(state, StateBounds(40, 10, 10**6, bitmap=bitmap)))
        assert [known.first for known in back.ranges] == [10 * at for at in range(40)]
        assert back.mark_delete == state.mark_delete


@given(st.integers(100, 3000))
def test_a_snapshot_fits_its_bytes_by_omitting_the_highest_ranges(bytes_max: int) -> None:
    state = _state([(3, 100 * at, 0) for at in range(300)])
    data = encode_position(state, StateBounds(10**6, 10**6, bytes_max))
    assert len(data) <= bytes_max
    kept = list(decode_position(data).ranges)
    assert kept == list(state.ranges)[: len(kept)]


def test_a_million_single_entries_are_stored_at_default_bounds() -> None:
    settings = ManagedLedgerSettings()
    bounds = StateBounds(settings.unacked_ranges_max, settings.batch_acks_max, settings.cursor_state_bytes_max)
    state = CursorState(Position(3, -1))
    state.ranges.add_bits(4, b"\x55" * 125_000)
    state.ranges.add_bits(5, b"\x55" * 125_000)
    data = encode_position(state, bounds)
    assert len(data) < 350_000
    message = pb.PositionInfo.FromString(data)
    assert [(each.key, len(each.values)) for each in message.individualDeletedMessageRanges] == [
        (4, 15_625),
        (5, 15_625),
    ]
    back = decode_position(data)
    assert back.ranges.entries == len(back.ranges) == 1_000_000
    assert encode_position(back, bounds) == data


@given(
    st.lists(st.tuples(st.integers(3, 5), st.integers(0, 40_000), st.integers(0, 70)), min_size=40, max_size=60),
    st.data(),
)
def test_a_state_that_changed_is_stored_as_a_new_one_would_be(
    ranges: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    state = _state([*ranges, *((4, 3 * at, 0) for at in range(400))])
    encode_position(state, _WIDE)
    for ledger, first, extra in data.draw(_RANGES):
        state.ranges.add(ledger, first, first + extra)
    state.ranges.drop_through(3, data.draw(st.integers(0, 3000)))
    assert encode_position(state, _WIDE) == encode_position(replace(state, ranges=state.ranges.copy()), _WIDE)
    fresh = CursorState(state.mark_delete, batches=state.batches, properties=state.properties)
    for each in state.ranges:
        fresh.ranges.add(*each)
    assert encode_position(fresh, _WIDE) == encode_position(state, _WIDE)
    assert _same(decode_position(encode_position(state, _WIDE)), state)


@given(_RANGES, st.integers(0, 80), st.integers(200, 3000))
def test_bounds_keep_a_beginning_of_the_ranges_in_bitmaps(
    ranges: list[tuple[int, int, int]], ranges_max: int, bytes_max: int
) -> None:
    state = _state([*ranges, *((4, 2 * at, 0) for at in range(64))])
    counted = decode_position(encode_position(state, StateBounds(ranges_max, 10, 10**6)))
    assert list(counted.ranges) == list(state.ranges)[:ranges_max]
    data = encode_position(state, StateBounds(10**6, 10, bytes_max))
    assert len(data) <= bytes_max
    kept = [
        (each.ledger_id, entry) for each in decode_position(data).ranges for entry in range(each.first, each.last + 1)
    ]
    whole = [(each.ledger_id, entry) for each in state.ranges for entry in range(each.first, each.last + 1)]
    assert kept == whole[: len(kept)]
    if len(encode_position(state, _WIDE)) <= bytes_max - 48:  # room for the heads of three bitmaps
        assert kept == whole


def test_of_many_ranges_far_apart_more_are_listed_than_bitmaps_would_hold() -> None:
    state = CursorState(Position(7, -1))
    for at in range(10_100):
        state.ranges.add(7, 20_000 * at + 1, 20_000 * at + 1)
    back = decode_position(encode_position(state, StateBounds(10**6, 10, 10**6)))
    assert list(back.ranges) == list(state.ranges)[:10_000]
    wide = decode_position(encode_position(state, StateBounds(10**6, 10, 10**7)))
    assert list(wide.ranges) == list(state.ranges)


def test_parts_of_batches_do_not_take_the_room_of_whole_entries() -> None:
    state = _state([(4, 2 * at, 0) for at in range(1000)])
    state.batches = {Position(5, at): 1 << 500 for at in range(40)}
    back = decode_position(encode_position(state, StateBounds(10**6, 10**6, 1500)))
    assert list(back.ranges) == list(state.ranges)
    assert back.batches and list(back.batches) == sorted(state.batches)[: len(back.batches)]


def test_bitmaps_of_many_ledgers_use_all_bytes() -> None:
    state = CursorState(Position(3, -1))
    for ledger in range(1000, 3000):
        state.ranges.add(ledger, 3, 3)
    data = encode_position(state, StateBounds(10**6, 10, 9000))
    assert 8950 <= len(data) <= 9000


def test_listed_ranges_that_reach_too_far_are_refused() -> None:
    message = pb.PositionInfo(ledgerId=3, entryId=0)
    known = message.individualDeletedMessages.add()
    known.lowerEndpoint.ledgerId = known.upperEndpoint.ledgerId = 3
    known.lowerEndpoint.entryId, known.upperEndpoint.entryId = 4, 2**60
    with pytest.raises(MetadataFormatError, match="its ranges reach to entry"):
        decode_position(message.SerializeToString())
    ledgers = LedgerList([LedgerRecord(3, 10, 1, 1)])
    assert list(decode_position(message.SerializeToString(), ledgers).ranges) == [AckRange(3, 5, 9)]


def test_a_node_holds_the_state_only_without_a_cursor_ledger() -> None:
    state = _state([(3, 2, 0), (3, 5, 1)])
    inside = decode_node(encode_node(CursorNode(NO_CURSOR_LEDGER, state, {"k": "v"}, 12), _WIDE))
    assert _same(inside.state, state)
    assert inside.cursor_properties == {"k": "v"}
    assert inside.last_active_ms == 12
    beside = decode_node(encode_node(CursorNode(77, state), _WIDE))
    assert beside.ledger_id == 77
    assert beside.state.mark_delete == state.mark_delete
    assert not beside.state.ranges


@pytest.mark.parametrize("ledger", [NO_CURSOR_LEDGER, 77])
def test_a_node_names_buckets_beside_the_properties_of_clients(ledger: int) -> None:
    buckets = (BucketRecord(12, Position(3, 4095)), BucketRecord(2**62, Position(2**61, 0)))
    node = CursorNode(ledger, _state([]), {"k": "v"}, 12, buckets)
    found = decode_node(encode_node(node, _WIDE))
    assert (found.ledger_id, found.cursor_properties, found.buckets) == (ledger, {"k": "v"}, buckets)
    message = pb.ManagedCursorInfo()
    message.ParseFromString(encode_node(node, _WIDE))
    assert [one.name for one in message.cursorProperties] == ["k", "#pulsar.internal.quire.delayed-buckets"]
    message.cursorProperties[1].value = "12:3"
    with pytest.raises(MetadataFormatError, match="not a list of buckets of delayed entries: '12:3'"):
        decode_node(message.SerializeToString())


def test_a_state_that_a_node_would_cut_does_not_fit_it() -> None:
    state = _state([(3, 10 * at, 0) for at in range(41)])
    assert not fits_node(state, StateBounds(40, 10, 10**6))
    assert fits_node(state, StateBounds(41, 10, 10**6))
    assert not fits_node(state, StateBounds(41, 10, 200))


_LEDGERS = LedgerList([LedgerRecord(5, 10, 1, 1), LedgerRecord(8, 4, 1, 1), LedgerRecord(9)], 0)


def _aligned(mark: Position, *ranges: tuple[int, int, int]) -> CursorState:
    state = CursorState(mark)
    for known in ranges:
        state.ranges.add(*known)
    return aligned(state, _LEDGERS)


def test_a_mark_in_a_deleted_ledger_moves_before_the_first_remaining_entry() -> None:
    assert _aligned(Position(2, 7)).mark_delete == Position(5, -1)
    assert _aligned(Position(6, -1)).mark_delete == Position(8, -1)
    assert _aligned(Position(5, 3)).mark_delete == Position(5, 3)


def test_a_mark_beyond_the_end_moves_back_to_the_last_entry() -> None:
    assert _aligned(Position(9, 4)).mark_delete == Position(8, 3)
    assert _aligned(Position(70, -1)).mark_delete == Position(8, 3)


def test_ranges_are_cut_to_existing_entries_and_join_an_adjoining_mark() -> None:
    state = _aligned(Position(5, 7), (5, 8, 20), (8, 0, 0), (8, 2, 90), (40, 0, 5))
    assert state.mark_delete == Position(8, 0)
    assert list(state.ranges) == [AckRange(8, 2, 3)]
