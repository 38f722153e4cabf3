"""Tests the number of copies of the worst entry."""

from quire_bookie.model import BookieId, EntryId
from quire_bookie.recovery.copies import fewest_copies
from quire_bookie.recovery.fragment_check import Health, ReplicaReport
from quire_bookie.recovery.fragments import Fragment
from quire_bookie.wire.availability import EntryRange

A, B, C = (BookieId(name) for name in "abc")
ALL = Fragment(EntryId(0), EntryId(99), (A, B, C), 3)
STRIPED = Fragment(EntryId(0), EntryId(99), (A, B, C), 2)


def lacks(
    fragment: Fragment, position: int, *ranges: tuple[int, int], health: Health = Health.LACKING
) -> ReplicaReport:
    found: tuple[EntryRange, ...] = tuple((EntryId(first), EntryId(last)) for first, last in ranges)
    return ReplicaReport(fragment, position, health, found)


def test_gaps_at_different_places_do_not_add_up() -> None:
    whole = [ReplicaReport(ALL, position, Health.WHOLE) for position in range(3)]
    assert fewest_copies([]) is None
    assert fewest_copies(whole) == 3
    assert fewest_copies([lacks(ALL, 0, (5, 9)), lacks(ALL, 1, (10, 20)), whole[2]]) == 2
    assert fewest_copies([lacks(ALL, 0, (5, 9)), lacks(ALL, 1, (9, 20)), whole[2]]) == 1
    assert fewest_copies([lacks(ALL, 0, (0, 1), (99, 99)), lacks(ALL, 1, (99, 99)), lacks(ALL, 2, (99, 99))]) == 0


def test_only_entries_that_a_position_must_hold_count() -> None:
    gone = lacks(STRIPED, 0, (0, 99), health=Health.GONE)
    assert fewest_copies([gone]) == 1
    assert fewest_copies([gone, lacks(STRIPED, 1, (1, 1))]) == 1, "entry 1 is on the second and the third"
    assert fewest_copies([gone, lacks(STRIPED, 1, (3, 3))]) == 0, "entry 3 is on the first and the second"


def test_an_unknown_replica_does_not_count_as_missing() -> None:
    unknown = [ReplicaReport(ALL, position, Health.UNKNOWN) for position in range(3)]
    assert fewest_copies(unknown) == 3
    assert fewest_copies([*unknown[:2], lacks(ALL, 2, (0, 99), health=Health.LIMBO)]) == 2
