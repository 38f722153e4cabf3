"""The three forms of sharing the hash space."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_broker.dispatch.slots import HashRing, SplitRanges, StickyRanges, plain_slot, ring_slot
from quire_broker.errors import ConsumerAssignError
from quire_broker.wire.murmur import key_hash


@pytest.mark.parametrize(
    ("key", "hash31", "ring", "plain"),
    [
        (b"key-1", 414258592, 11858, 5536),
        (b"my-key", 1844492593, 10019, 47409),
        (b"hello-world", 995342265, 62221, 47033),
    ],
)
def test_slots_are_those_of_pulsar(key: bytes, hash31: int, ring: int, plain: int) -> None:
    assert (key_hash(key), ring_slot(hash31), plain_slot(hash31)) == (hash31, ring, plain)


def test_the_ring_gives_the_captured_owners() -> None:
    ring: HashRing[str] = HashRing()
    ring.add("c1", "c1")
    ring.add("c2", "c2")
    owners = {key: ring.owner(ring.slot_of(key.encode())) for key in ("k0", "k1", "k2", "k3", "k4")}
    assert owners == {"k0": "c1", "k3": "c1", "k1": "c2", "k2": "c2", "k4": "c2"}


def test_consumers_of_one_name_share_the_ring() -> None:
    ring: HashRing[int] = HashRing()
    for consumer in range(4):
        ring.add(consumer, "same")
    shares = [sum(ring.owner(slot) == consumer for slot in range(1, 65536, 7)) for consumer in range(4)]
    assert min(shares) > sum(shares) / 10


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=30))
def test_after_a_consumer_left_the_ring_depends_only_on_the_present_ones(steps: list[tuple[bool, int]]) -> None:
    ring: HashRing[int] = HashRing()
    present: set[int] = set()
    for joins, consumer in steps:
        if joins and consumer not in present:
            ring.add(consumer, f"name{consumer}")
            present.add(consumer)
        elif not joins and consumer in present:
            ring.remove(consumer)
            present.discard(consumer)
    fresh: HashRing[int] = HashRing()
    for consumer in sorted(present):
        fresh.add(consumer, f"name{consumer}")
    for slot in range(1, 65536, 997):
        assert (ring.owner(slot) is None) == (not present)
        assert not present or ring.owner(slot) in present
    if len(present) == 1:
        assert {ring.owner(slot) for slot in (1, 500, 65535)} == {fresh.owner(1)}


def test_a_new_consumer_takes_the_lower_half_of_the_biggest_range() -> None:
    ranges: SplitRanges[str] = SplitRanges()
    ranges.add("a", "a")
    ranges.add("b", "b")
    assert [ranges.owner(slot) for slot in (1, 32767, 32768, 65535)] == ["b", "b", "a", "a"]
    ranges.add("c", "c")
    assert [ranges.owner(slot) for slot in (16383, 16384, 32768)] == ["c", "b", "a"]
    ranges.remove("c")
    assert ranges.owner(1) == "b"
    ranges.remove("a")
    assert ranges.owner(65535) == "b"
    ranges.remove("b")
    assert ranges.owner(5) is None


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=40))
def test_split_ranges_always_cover_everything(steps: list[tuple[bool, int]]) -> None:
    ranges: SplitRanges[int] = SplitRanges()
    present: set[int] = set()
    for joins, consumer in steps:
        if joins and consumer not in present:
            ranges.add(consumer, "")
            present.add(consumer)
        elif not joins and consumer in present:
            ranges.remove(consumer)
            present.discard(consumer)
        owners = {ranges.owner(slot) for slot in range(1, 65536, 16)}
        assert owners == (present if present else {None})


def test_slots_between_sticky_ranges_have_no_owner_and_conflicts_are_found() -> None:
    ranges: StickyRanges[str] = StickyRanges()
    ranges.add("a", "a", [(0, 10), (100, 200)])
    assert [ranges.owner(slot) for slot in (0, 10, 11, 99, 100, 200, 201)] == ["a", "a", None, None, "a", "a", None]
    assert ranges.conflict([(11, 99)]) is None
    for wanted in ([(10, 12)], [(0, 65535)], [(150, 160)], [(50, 60), (200, 300)]):
        assert ranges.conflict(wanted) == "a"
    ranges.remove("a")
    assert ranges.conflict([(0, 65535)]) is None


@pytest.mark.parametrize("wanted", [[], [(5, 4)], [(-1, 4)], [(0, 65536)], [(0, 10), (10, 20)]])
def test_impossible_ranges_are_refused(wanted: list[tuple[int, int]]) -> None:
    with pytest.raises(ConsumerAssignError):
        StickyRanges[str]().conflict(wanted)
