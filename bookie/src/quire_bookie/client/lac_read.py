"""The last confirmed entry of a ledger that is not closed, from the bookies of its last segment.

Every bookie is asked for the last entry it holds; that entry's header carries the LAC the writer knew. The answer is
usable as soon as it is covered (see `quorum.coverage`). With a fence key the same reads fence the ledger, and a covered
answer means that no writer can reach its ack quorum any more.
"""

import asyncio
from dataclasses import dataclass

from quire_bookie.client.entry_read import MISSING_ERRORS, ReadWay
from quire_bookie.errors import LedgerError, QuorumError, UnauthorizedError
from quire_bookie.model import NO_ENTRY, BookieId, Buffer, EntryId, LedgerMetadata
from quire_bookie.quorum.coverage import LacCoverage


@dataclass(frozen=True, slots=True)
class LacFound:
    """`lac`: the highest found, or the entry before the last segment. `answered`: who gave usable answers."""

    lac: EntryId
    length: int
    """Payload bytes up to some entry that may lie above `lac`: an upper bound of the confirmed length."""
    answered: frozenset[BookieId]


async def read_lac(way: ReadWay, metadata: LedgerMetadata) -> LacFound:
    """Ask all bookies of the last segment. UnauthorizedError at once; QuorumError when it cannot be covered."""
    round_ = _Round(way, metadata)
    round_.start()
    return await round_.result


class _Round:
    def __init__(self, way: ReadWay, metadata: LedgerMetadata) -> None:
        segment = metadata.segments[-1]
        self.result: asyncio.Future[LacFound] = asyncio.get_running_loop().create_future()
        self._way = way
        self._ensemble = segment.ensemble
        self._coverage = LacCoverage(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        self._lac: int = segment.first_entry - 1
        self._length = 0
        self._answered: set[BookieId] = set()
        self._error: LedgerError | None = None

    def start(self) -> None:
        """Ask everybody."""
        way = self._way
        for position, bookie in enumerate(self._ensemble):
            way.links.link(bookie, way.purpose).read(
                way.ledger,
                NO_ENTRY,
                lambda answer, position=position: self._got(position, answer),  # type: ignore[misc]
                fence_key=way.fence_key,
                # As the stock client: the first read of a recovery fences, only the following ones have priority.
                high_priority=False,
            )

    def _got(self, position: int, answer: Buffer | LedgerError) -> None:
        if self.result.done():
            return
        if not isinstance(answer, LedgerError):
            try:
                last = self._way.digest.decode_entry(answer, self._way.ledger, None)
            except LedgerError as error:
                answer = error
            else:
                self._lac = max(self._lac, last.lac)
                self._length = max(self._length, last.length)
        if isinstance(answer, UnauthorizedError):
            self.result.set_exception(answer)
            return
        if isinstance(answer, LedgerError) and not isinstance(answer, MISSING_ERRORS):
            self._error = self._error or answer
            self._coverage.failed(position)
        else:
            self._answered.add(self._ensemble[position])
            self._coverage.answered(position)
        if self._coverage.is_covered:
            self.result.set_result(LacFound(EntryId(self._lac), self._length, frozenset(self._answered)))
        elif self._coverage.is_hopeless:
            failure = QuorumError(
                f"too few bookies of {', '.join(self._ensemble)} answered to know "
                f"the last confirmed entry of ledger {self._way.ledger}: {self._error}"
            )
            failure.__cause__ = self._error
            self.result.set_exception(failure)
