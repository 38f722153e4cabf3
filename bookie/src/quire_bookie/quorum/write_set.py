"""Computes which positions of an ensemble hold which entries. Arithmetic only; knows no bookies and has no state.

Entry e is written to the positions (e + w) mod E for w = 0 .. Qw-1 (round robin, BookKeeper's
`RoundRobinDistributionSchedule`).
"""

from quire_bookie.model import EntryId


def write_set(entry: EntryId, ensemble_size: int, write_quorum: int) -> tuple[int, ...]:
    """Return the positions that hold `entry`, in the order in which they are read."""
    return tuple((entry + step) % ensemble_size for step in range(write_quorum))


def holds(position: int, entry: EntryId, ensemble_size: int, write_quorum: int) -> bool:
    """Return whether `position` is in the write set of `entry`."""
    return (position - entry) % ensemble_size < write_quorum


def write_sets(ensemble_size: int, write_quorum: int) -> tuple[tuple[int, ...], ...]:
    """Return the write sets of all entries: that of entry e is the element e mod E."""
    found = tuple(write_set(EntryId(start), ensemble_size, write_quorum) for start in range(ensemble_size))
    assert all(len(set(positions)) == write_quorum for positions in found), "each copy has a position of its own"
    return found


def can_reach(failed: set[int], ensemble_size: int, write_quorum: int, ack_quorum: int) -> bool:
    """Return whether every write set still has `ack_quorum` positions outside `failed`."""
    return all(
        sum(position not in failed for position in positions) >= ack_quorum
        for positions in write_sets(ensemble_size, write_quorum)
    )
