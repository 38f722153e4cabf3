"""Reads the last confirmed entry of an open ledger from the bookies of its last segment.

Reads the last entry of every bookie; its header contains the LAC that the writer knew. The result is usable as soon as
it is covered (see `quorum.coverage`). With a fence key the same reads fence the ledger, and a covered result means that
no writer can reach its ack quorum any more.
"""

import asyncio
from collections.abc import Collection, Mapping
from functools import partial
from typing import NamedTuple

from quire_bookie.client.entry_read import MISSING_ERRORS, ReadWay
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import LedgerError, NoSuchEntryError, QuorumError, UnauthorizedError
from quire_bookie.model import NO_ENTRY, BookieId, Buffer, EntryId, LedgerMetadata
from quire_bookie.quorum.coverage import LacCoverage
from quire_bookie.wire.client_codec import v3_read_lac
from quire_bookie.wire.messages import ReadLacResponse, Response, Status, error_of


@dataclass(frozen=True, slots=True)
class LacFound:
    """The result. `lac`: the highest found, or the entry before the last segment. `answered`: with usable responses.

    `last_held`: the last entry of each bookie that reported it; late responses are still added.
    """

    lac: EntryId
    length: int
    """Payload bytes up to an entry that may be above `lac`: an upper bound of the confirmed length."""
    answered: frozenset[BookieId]
    last_held: Mapping[BookieId, EntryId]


async def read_lac(way: ReadWay, metadata: LedgerMetadata, *, explicit: bool = False) -> LacFound:
    """Ask all bookies of the last segment. UnauthorizedError at once; QuorumError if the result cannot be covered.

    `explicit`: also read the explicit LAC of an idle writer, by V3 and without fencing.
    """
    round_ = _ExplicitRound(way, metadata) if explicit else _Round(way, metadata)
    round_.start()
    return await round_.result


class LastHeld(NamedTuple):
    """A bookie's last entry of a ledger and the LAC in its header; both are NO_ENTRY if the bookie has no entry."""

    entry: EntryId
    lac: EntryId


async def last_entries(way: ReadWay, bookies: Collection[BookieId]) -> dict[BookieId, LastHeld]:
    """Return the last entry of each of `bookies`. LedgerError if one of them fails or returns an invalid entry."""
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
    """Sends a read of the last entry to every bookie of the last segment and combines the responses."""

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
        """Send the request to every bookie."""
        for position, bookie in enumerate(self._ensemble):
            self._ask(position, bookie)

    def _ask(self, position: int, bookie: BookieId) -> None:
        way = self._way
        way.links.link(bookie, way.purpose).read(
            way.ledger,
            NO_ENTRY,
            partial(self._got, position),
            fence_key=way.fence_key,
            # As in the stock client: the first read of a recovery fences; only later ones have high priority.
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
                f"too few bookies of {', '.join(self._ensemble)} responded to find "
                f"the last confirmed entry of ledger {self._way.ledger}: {self._error}"
            )
            failure.__cause__ = self._error
            self.result.set_exception(failure)


class _ExplicitRound(_Round):
    """Sends READ_LAC instead, whose response contains the explicit LAC and the last entry."""

    def _ask(self, position: int, bookie: BookieId) -> None:
        self._way.links.v3_link(bookie).ask(
            lambda transaction: v3_read_lac(transaction, self._way.ledger), partial(self._got_lac, position)
        )

    def _got_lac(self, position: int, answer: Response | LedgerError) -> None:
        if not isinstance(answer, LedgerError):
            parsed = parse_lac(self._way, answer, self._ensemble[position])
            self._lac = max(self._lac, parsed.lac)
            self._got(position, parsed.last_entry)
        else:
            self._got(position, answer)


class ParsedLac(NamedTuple):
    """The response of one bookie to READ_LAC. `lac`: the explicit LAC; NO_ENTRY if missing or with a wrong digest."""

    lac: EntryId
    last_entry: Buffer | LedgerError


def parse_lac(way: ReadWay, answer: Response, bookie: BookieId) -> ParsedLac:
    """Parse a response to READ_LAC. A valid explicit LAC counts despite other errors: its digest protects it."""
    name = f"the LAC of ledger {way.ledger} at bookie {bookie}"
    if not isinstance(answer, ReadLacResponse):
        status = Status.BAD_REQUEST if answer.status is Status.OK else answer.status
        return ParsedLac(NO_ENTRY, error_of(status, name))
    lac, damage = NO_ENTRY, None
    if answer.packet:
        try:
            lac = way.digest.decode_lac(answer.packet, way.ledger)
        except LedgerError as error:
            damage = error
    if damage is not None:
        return ParsedLac(lac, damage)
    if answer.status is not Status.OK:
        return ParsedLac(lac, error_of(answer.status, name))
    if answer.last_entry is None:
        return ParsedLac(lac, NoSuchEntryError(f"{name}: it has no entry"))
    return ParsedLac(lac, answer.last_entry)
