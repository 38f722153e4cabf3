"""Tracks the read latency and recent failures of the bookies, and orders replicas by them.

Owned by the pool and shared by all readers of a client. Observations expire, so that a bookie that was slow or failed
is tried again after a while. Decides only the order in which bookies are read, never whether one is read at all.
"""

from collections.abc import Callable, Collection, Sequence

from quire_bookie.dataclass import dataclass
from quire_bookie.limits import KIB, READ_FAILURE_AVOIDED_S, REPLICA_LATENCY_REMEMBERED_S, REPLICA_SLOW_S
from quire_bookie.model import BookieId

_SLOW_FACTOR = 4
_WEIGHT = 0.125  # of one answer in the mean
_BYTES_PER_SHARE = 256 * KIB


@dataclass(slots=True)
class _Latency:
    mean_s: float
    seen_s: float


class ReplicaHealth:
    """Orders replicas by latency and recent failures. `version` increases when an order may have changed."""

    def __init__(
        self,
        now_s: Callable[[], float],
        suspects: Callable[[], Collection[BookieId]],
        quarantined: Callable[[], Collection[BookieId]],
    ) -> None:
        """`suspects`: unreachable bookies; `quarantined`: bookies that failed adds too often."""
        self.version = 0
        self.speculative_reads = 0
        """Number of reads sent to a further replica because one was slow."""
        self.foreign_answers = 0
        """Number of responses ignored because the bookie holds another ledger under the same id."""
        self._now_s = now_s
        self._suspects = suspects
        self._quarantined = quarantined
        self._latencies: dict[BookieId, _Latency] = {}
        self._failed_s: dict[BookieId, float] = {}

    def answered(self, bookie: BookieId, waited_s: float, now_s: float, size_bytes: int = 0) -> None:
        """Record that the bookie took `waited_s` for a read; the time of a large response is scaled down."""
        if size_bytes > _BYTES_PER_SHARE:
            waited_s = waited_s * _BYTES_PER_SHARE / size_bytes
        latency = self._latencies.get(bookie)
        if latency is None or now_s - latency.seen_s > REPLICA_LATENCY_REMEMBERED_S:
            self._latencies[bookie] = _Latency(waited_s, now_s)
            self.version += 1
            return
        former_s = latency.mean_s
        latency.mean_s = mean_s = former_s + (waited_s - former_s) * _WEIGHT
        latency.seen_s = now_s
        if (mean_s >= REPLICA_SLOW_S) is not (former_s >= REPLICA_SLOW_S):
            self.version += 1

    def overdue(self, bookie: BookieId, waited_s: float) -> None:
        """Record that the bookie has not answered for `waited_s`, so that the read is sent to another one as well."""
        self.speculative_reads += 1
        self.answered(bookie, waited_s, self._now_s())
        self.version += 1

    def failed(self, bookie: BookieId) -> None:
        """Record that the bookie answered a read with an error or with damaged bytes."""
        self._failed_s[bookie] = self._now_s()
        self.version += 1

    def latency_s(self, bookie: BookieId) -> float | None:
        """Return the bookie's recent mean latency; None if it was not read recently."""
        latency = self._latencies.get(bookie)
        if latency is None or self._now_s() - latency.seen_s > REPLICA_LATENCY_REMEMBERED_S:
            return None
        return latency.mean_s

    def order(self, replicas: Sequence[BookieId], preferred: BookieId | None = None) -> list[BookieId]:
        """Sort replicas: reachable, not failed and not much slower than others first; then `preferred`."""
        now_s = self._now_s()
        suspects, quarantined = self._suspects(), self._quarantined()
        latencies = {bookie: self.latency_s(bookie) for bookie in replicas}
        # A bookie of unknown latency may be fast; reading from it measures it.
        best_s = min((REPLICA_SLOW_S if known_s is None else known_s for known_s in latencies.values()), default=0.0)
        slow_s = max(best_s * _SLOW_FACTOR, REPLICA_SLOW_S)
        never_s = now_s - READ_FAILURE_AVOIDED_S

        def rank(bookie: BookieId) -> tuple[bool, bool, bool, bool]:
            known_s = latencies[bookie]
            return (
                bookie in suspects,
                bookie in quarantined or now_s - self._failed_s.get(bookie, never_s) < READ_FAILURE_AVOIDED_S,
                known_s is not None and known_s > slow_s,
                bookie != preferred,
            )

        return sorted(replicas, key=rank)
