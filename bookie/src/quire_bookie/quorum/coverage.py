"""Decides whether enough bookies of a segment responded to know its last confirmed entry. Pure.

Every confirmed entry is on Qa bookies of its write set. If each write set has fewer than Qa bookies without a usable
response, at least one bookie with a usable response has seen each confirmed entry. *No such entry* and *no such ledger*
are usable responses. (The rule for a missing entry counts differently: see `recovery_plan`.)
"""

from quire_bookie.quorum.write_set import write_sets


class LacCoverage:
    """Tracks the responses of one round over all positions of a segment."""

    __slots__ = ("_ack_quorum", "_answered", "_failed", "_size", "_write_sets")

    def __init__(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        self._size = ensemble_size
        self._ack_quorum = ack_quorum
        self._write_sets = write_sets(ensemble_size, write_quorum)
        self._answered: set[int] = set()
        self._failed: set[int] = set()

    def answered(self, position: int) -> None:
        """Record a usable response: an entry that matches its digest, or that the position has none."""
        assert 0 <= position < self._size
        self._answered.add(position)

    def failed(self, position: int) -> None:
        """Record that the position gave no usable response."""
        assert 0 <= position < self._size
        self._failed.add(position)

    @property
    def is_covered(self) -> bool:
        """Whether every confirmed entry was seen by a position that responded."""
        return self._holds_without(set(range(self._size)) - self._answered)

    @property
    def is_hopeless(self) -> bool:
        """Whether too many positions failed for the round to be covered at all."""
        return not self._holds_without(self._failed - self._answered)

    def _holds_without(self, silent: set[int]) -> bool:
        return all(
            sum(position in silent for position in positions) < self._ack_quorum for positions in self._write_sets
        )
