"""Tests the ack trackers against a brute-force model."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire_bookie.model import EntryId
from quire_bookie.quorum.ack_tracker import AckTracker, PrefixAckTracker, StripedAckTracker, ack_tracker
from quire_bookie.quorum.write_set import write_set


class _Model:
    """The definition: a set of positions per entry."""

    def __init__(self, quorums: tuple[int, int, int], first: int) -> None:
        self.size, self.write_quorum, self.ack_quorum = quorums
        self.first = first
        self.acks: list[set[int]] = []
        self.failed: set[int] = set()
        self.answers_from = [first] * self.size
        self.floor = first - 1

    def acked(self, first: int, count: int, position: int) -> None:
        if position in self.failed:
            return
        for entry in range(max(first, self.first), min(first + count, self.first + len(self.acks))):
            if position in write_set(EntryId(entry), self.size, self.write_quorum):
                self.acks[entry - self.first].add(position)

    def replace(self, position: int) -> None:
        self.failed.discard(position)
        confirmed = self.confirmed
        self.answers_from[position] = confirmed + 1
        for entry in range(confirmed + 1, self.first + len(self.acks)):
            self.acks[entry - self.first].discard(position)

    @property
    def confirmed(self) -> int:
        entry = self.floor
        while entry - self.first + 1 < len(self.acks) and len(self.acks[entry - self.first + 1]) >= self.ack_quorum:
            entry += 1
        self.floor = entry
        return entry

    @property
    def settled(self) -> int:
        entry = self.first - 1
        while entry < self.confirmed:
            wanted = set(write_set(EntryId(entry + 1), self.size, self.write_quorum)) - self.failed
            wanted = {position for position in wanted if self.answers_from[position] <= entry + 1}
            if not wanted <= self.acks[entry + 1 - self.first]:
                break
            entry += 1
        return entry


@st.composite
def _quorums(draw: st.DrawFn) -> tuple[int, int, int]:
    ensemble_size = draw(st.integers(1, 5))
    write_quorum = draw(st.integers(1, ensemble_size))
    return ensemble_size, write_quorum, draw(st.integers(1, write_quorum))


@settings(max_examples=400, deadline=None)
@given(_quorums(), st.integers(0, 7), st.data())
def test_random_acknowledgements_confirm_exactly_the_entries_of_the_definition(
    quorums: tuple[int, int, int], first: int, data: st.DataObject
) -> None:
    tracker, model = ack_tracker(*quorums, EntryId(first)), _Model(quorums, first)
    positions = st.integers(0, quorums[0] - 1)
    for _ in range(data.draw(st.integers(1, 40))):
        step = data.draw(st.sampled_from(["push", "ack", "ack", "ack", "ack", "fail"]))
        if step == "push":
            count = data.draw(st.integers(1, 6))
            tracker.push(count)
            model.acks.extend(set() for _ in range(count))
        elif step == "ack":
            start, count = data.draw(st.integers(0, first + 25)), data.draw(st.integers(1, 8))
            position = data.draw(positions)
            model.acked(start, count, position)
            assert tracker.acked(EntryId(start), count, position) == model.confirmed
        elif data.draw(st.integers(0, 4)) == 0:
            position = data.draw(positions)
            tracker.fail(position)
            model.failed.add(position)
        assert tracker.confirmed == model.confirmed
        for entry in range(first, tracker.confirmed + 1):
            assert len(model.acks[entry - first]) >= quorums[2]


@settings(max_examples=200, deadline=None)
@given(_quorums(), st.data())
def test_an_entry_is_settled_when_every_living_replica_has_it(
    quorums: tuple[int, int, int], data: st.DataObject
) -> None:
    tracker, model = ack_tracker(*quorums, EntryId(0)), _Model(quorums, 0)
    tracker.push(12)
    model.acks.extend(set() for _ in range(12))
    for _ in range(data.draw(st.integers(1, 40))):
        start, count = data.draw(st.integers(0, 11)), data.draw(st.integers(1, 12))
        position = data.draw(st.integers(0, quorums[0] - 1))
        if data.draw(st.integers(0, 15)) == 0:
            tracker.fail(position)
            model.failed.add(position)
        model.acked(start, count, position)
        tracker.acked(EntryId(start), count, position)
        assert tracker.settled == model.settled


@given(_quorums(), st.data())
def test_the_first_unanswered_entry_of_a_position_is_found(quorums: tuple[int, int, int], data: st.DataObject) -> None:
    tracker, model = ack_tracker(*quorums, EntryId(0)), _Model(quorums, 0)
    tracker.push(10)
    model.acks.extend(set() for _ in range(10))
    for _ in range(data.draw(st.integers(0, 20))):
        start, position = data.draw(st.integers(0, 9)), data.draw(st.integers(0, quorums[0] - 1))
        model.acked(start, 2, position)
        tracker.acked(EntryId(start), 2, position)
    for position in range(quorums[0]):
        held = [e for e in range(10) if position in write_set(EntryId(e), *quorums[:2])]
        open_entries = [entry for entry in held if position not in model.acks[entry]]
        assert tracker.first_unanswered(position) == (open_entries[0] if open_entries else 10)


@settings(max_examples=200, deadline=None)
@given(_quorums(), st.data())
def test_a_replaced_position_counts_only_what_its_new_bookie_acknowledges(
    quorums: tuple[int, int, int], data: st.DataObject
) -> None:
    tracker, model = ack_tracker(*quorums, EntryId(0)), _Model(quorums, 0)
    tracker.push(10)
    model.acks.extend(set() for _ in range(10))
    for _ in range(data.draw(st.integers(1, 30))):
        position = data.draw(st.integers(0, quorums[0] - 1))
        step = data.draw(st.integers(0, 9))
        if step == 0:
            model.replace(position)
            tracker.replace(position)
        elif step == 1:
            model.failed.add(position)
            tracker.fail(position)
        else:
            start, count = data.draw(st.integers(0, 9)), data.draw(st.integers(1, 5))
            model.acked(start, count, position)
            tracker.acked(EntryId(start), count, position)
        assert tracker.confirmed == model.confirmed
        # It may lag behind until the next acknowledgement, but never releases bytes that are still needed.
        assert tracker.settled <= model.settled
        if step > 1 and position not in model.failed and not model.failed:
            assert tracker.first_unanswered(position) > tracker.settled


def _three_two(write_quorum: int) -> AckTracker:
    return ack_tracker(3, write_quorum, 2, EntryId(0))


def test_equal_quorums_use_the_tracker_of_ranges() -> None:
    assert isinstance(_three_two(3), PrefixAckTracker)
    assert isinstance(_three_two(2), StripedAckTracker)


@pytest.mark.parametrize("write_quorum", [2, 3])
def test_a_duplicate_acknowledgement_changes_nothing(write_quorum: int) -> None:
    tracker = _three_two(write_quorum)
    tracker.push(1)
    assert tracker.acked(EntryId(0), 1, 0) == -1
    assert tracker.acked(EntryId(0), 1, 0) == -1
    assert tracker.acked(EntryId(0), 1, 1) == 0


def test_an_acknowledgement_from_outside_the_write_set_does_not_count() -> None:
    tracker = _three_two(2)
    tracker.push(1)
    tracker.acked(EntryId(0), 1, 0)
    assert tracker.acked(EntryId(0), 1, 2) == -1


@pytest.mark.parametrize("write_quorum", [2, 3])
def test_acknowledgements_of_entries_never_sent_are_ignored(write_quorum: int) -> None:
    tracker = _three_two(write_quorum)
    for position in range(3):
        assert tracker.acked(EntryId(0), 5, position) == -1
    tracker.push(1)
    assert tracker.confirmed == -1


@pytest.mark.parametrize("write_quorum", [2, 3])
def test_a_later_entry_waits_for_the_one_before(write_quorum: int) -> None:
    tracker = _three_two(write_quorum)
    tracker.push(2)
    tracker.acked(EntryId(1), 1, 1)
    assert tracker.acked(EntryId(1), 1, 2) == -1
    tracker.acked(EntryId(0), 1, 0)
    assert tracker.acked(EntryId(0), 1, 1) == 1


@pytest.mark.parametrize("write_quorum", [2, 3])
def test_late_acknowledgements_of_a_failed_position_are_ignored(write_quorum: int) -> None:
    tracker = _three_two(write_quorum)
    tracker.push(1)
    tracker.acked(EntryId(0), 1, 0)
    tracker.fail(1)
    assert tracker.acked(EntryId(0), 1, 1) == -1


def test_acknowledgements_of_different_replicas_beyond_gaps_add_up() -> None:
    tracker = ack_tracker(3, 3, 1, EntryId(0))
    tracker.push(4)
    tracker.acked(EntryId(1), 1, 0)
    tracker.acked(EntryId(3), 1, 0)
    tracker.acked(EntryId(2), 1, 1)
    assert tracker.confirmed == -1
    assert tracker.acked(EntryId(0), 1, 2) == 3
