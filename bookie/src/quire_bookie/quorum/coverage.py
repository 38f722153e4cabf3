"""Whether enough bookies of a segment answered to know its last confirmed entry. Pure.

Every confirmed entry is on Qa bookies of its write set. So when each write quorum has fewer than Qa bookies that said
nothing usable, each confirmed entry was seen by at least one that did. A bookie that answers *no such entry* or
*no such ledger* has answered. (The rule for a missing entry counts differently: see `recovery_plan`.)
"""

from quire_bookie.quorum.write_set import write_sets


class LacCoverage:
    """The answers of one round over all positions of a segment."""

    __slots__ = ("_ack_quorum", "_answered", "_failed", "_size", "_write_sets")

    def __init__(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        self._size = ensemble_size
        self._ack_quorum = ack_quorum
        self._write_sets = write_sets(ensemble_size, write_quorum)
        self._answered: set[int] = set()
        self._failed: set[int] = set()

    def answered(self, position: int) -> None:
        """The position gave a usable answer: an entry that matches its digest, or that it has none."""
        self._answered.add(position)

    def failed(self, position: int) -> None:
        """The position gave no usable answer."""
        self._failed.add(position)

    @property
    def is_covered(self) -> bool:
        """Whether no confirmed entry can hide behind the positions that did not answer."""
        return self._holds_without(set(range(self._size)) - self._answered)

    @property
    def is_hopeless(self) -> bool:
        """Whether too many positions failed for the round ever to be covered."""
        return not self._holds_without(self._failed - self._answered)

    def _holds_without(self, silent: set[int]) -> bool:
        return all(
            sum(position in silent for position in positions) < self._ack_quorum for positions in self._write_sets
        )
