"""The last confirmed entry of a ledger that is not closed, from the bookies of its last segment.

Every bookie is asked for the last entry it holds; that entry's header carries the LAC the writer knew. The answer is
usable as soon as it is covered (see `quorum.coverage`). With a fence key the same reads fence the ledger, and a covered
answer means that no writer can reach its ack quorum any more.
"""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from quire_bookie.client.entry_read import MISSING_ERRORS, ReadWay
from quire_bookie.errors import LedgerError, NoSuchEntryError, QuorumError, UnauthorizedError
from quire_bookie.model import NO_ENTRY, BookieId, Buffer, EntryId, LedgerMetadata
from quire_bookie.quorum.coverage import LacCoverage
from quire_bookie.wire.client_codec import v3_read_lac
from quire_bookie.wire.messages import ReadLacResponse, Response, Status, error_of


@dataclass(frozen=True, slots=True)
class LacFound:
    """`lac`: the highest found, or the entry before the last segment. `answered`: who gave usable answers.

    `last_held`: the last entry of each bookie that said so; grows while late answers come.
    """

    lac: EntryId
    length: int
    """Payload bytes up to some entry that may lie above `lac`: an upper bound of the confirmed length."""
    answered: frozenset[BookieId]
    last_held: Mapping[BookieId, EntryId]


async def read_lac(way: ReadWay, metadata: LedgerMetadata, *, explicit: bool = False) -> LacFound:
    """Ask all bookies of the last segment. UnauthorizedError at once; QuorumError when it cannot be covered.

    `explicit`: also for the LAC that an idle writer publishes, by V3 and without fencing.
    """
    round_ = _ExplicitRound(way, metadata) if explicit else _Round(way, metadata)
    round_.start()
    return await round_.result


class LastHeld(NamedTuple):
    """The last entry that a bookie holds of a ledger, and the LAC in its header; NO_ENTRY twice: it holds none."""

    entry: EntryId
    lac: EntryId


async def last_entries(way: ReadWay, bookies: Collection[BookieId]) -> dict[BookieId, LastHeld]:
    """What each of `bookies` holds last. LedgerError when one of them does not say, or says it wrongly."""
    answers = await asyncio.gather(*(_last_entry(way, bookie) for bookie in bookies), return_exceptions=True)
    found: dict[BookieId, LastHeld] = {}
    for bookie, answer in zip(bookies, answers, strict=True):
        if isinstance(answer, BaseException):
            raise answer
        found[bookie] = answer
    return found


async def _last_entry(way: ReadWay, bookie: BookieId) -> LastHeld:
    try:
        stored = await way.ask(bookie, NO_ENTRY)
    except MISSING_ERRORS:
        return LastHeld(NO_ENTRY, NO_ENTRY)
    last = way.digest.decode_entry(stored, way.ledger, None)
    return LastHeld(last.entry, last.lac)


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
        self._last_held: dict[BookieId, EntryId] = {}
        self._error: LedgerError | None = None

    def start(self) -> None:
        """Ask everybody."""
        for position, bookie in enumerate(self._ensemble):
            self._ask(position, bookie)

    def _ask(self, position: int, bookie: BookieId) -> None:
        way = self._way
        way.links.link(bookie, way.purpose).read(
            way.ledger,
            NO_ENTRY,
            partial(self._got, position),
            fence_key=way.fence_key,
            # As the stock client: the first read of a recovery fences, only the following ones have priority.
            high_priority=False,
        )

    def _got(self, position: int, answer: Buffer | LedgerError) -> None:
        if not isinstance(answer, LedgerError):
            try:
                last = self._way.digest.decode_entry(answer, self._way.ledger, None)
            except LedgerError as error:
                answer = error
            else:
                self._last_held[self._ensemble[position]] = last.entry
                self._lac = max(self._lac, last.lac)
                self._length = max(self._length, last.length)
        if isinstance(answer, MISSING_ERRORS):
            self._last_held[self._ensemble[position]] = NO_ENTRY
        if self.result.done():
            return
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
            self.result.set_result(
                LacFound(EntryId(self._lac), self._length, frozenset(self._answered), self._last_held)
            )
        elif self._coverage.is_hopeless:
            failure = QuorumError(
                f"too few bookies of {', '.join(self._ensemble)} answered to know "
                f"the last confirmed entry of ledger {self._way.ledger}: {self._error}"
            )
            failure.__cause__ = self._error
            self.result.set_exception(failure)


class _ExplicitRound(_Round):
    """Asks with READ_LAC, whose answer has the explicit LAC and the last entry."""

    def _ask(self, position: int, bookie: BookieId) -> None:
        self._way.links.v3_link(bookie).ask(
            lambda transaction: v3_read_lac(transaction, self._way.ledger), partial(self._told, position)
        )

    def _told(self, position: int, answer: Response | LedgerError) -> None:
        if not isinstance(answer, LedgerError):
            told = lac_told(self._way, answer, self._ensemble[position])
            self._lac = max(self._lac, told.lac)
            self._got(position, told.last_entry)
        else:
            self._got(position, answer)


class LacTold(NamedTuple):
    """What one bookie said to READ_LAC: `lac` is the explicit one, NO_ENTRY without one or with a wrong digest."""

    lac: EntryId
    last_entry: Buffer | LedgerError


def lac_told(way: ReadWay, answer: Response, bookie: BookieId) -> LacTold:
    """The answer to READ_LAC of `bookie`. An explicit LAC counts whatever else is wrong: its digest protects it."""
    name = f"the LAC of ledger {way.ledger} at bookie {bookie}"
    if not isinstance(answer, ReadLacResponse):
        status = Status.BAD_REQUEST if answer.status is Status.OK else answer.status
        return LacTold(NO_ENTRY, error_of(status, name))
    lac, damage = NO_ENTRY, None
    if answer.packet:
        try:
            lac = way.digest.decode_lac(answer.packet, way.ledger)
        except LedgerError as error:
            damage = error
    if damage is not None:
        return LacTold(lac, damage)
    if answer.status is not Status.OK:
        return LacTold(lac, error_of(answer.status, name))
    if answer.last_entry is None:
        return LacTold(lac, NoSuchEntryError(f"{name}: it has no entry"))
    return LacTold(lac, answer.last_entry)
