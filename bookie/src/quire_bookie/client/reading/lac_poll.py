"""Waits at one bookie after the other until the LAC of a ledger moves: BookKeeper's long poll.

What a bookie says about the LAC is a hint until a digest vouches for it: only the header of an entry and the packet of
an explicit LAC count, so that bytes that were damaged on the way or on a disk make nobody read what is not confirmed.
Such a LAC counts also when only one bookie has it, because writers never take one back.
"""

import asyncio
from collections.abc import Sequence

from quire_bookie.client.entry_read import MISSING_ERRORS, ReadWay
from quire_bookie.client.links.bookie_link import BuildRequest
from quire_bookie.client.reading.lac_read import lac_told
from quire_bookie.errors import BookieUnavailableError, LedgerError
from quire_bookie.limits import LAC_POLL_ANSWER_S
from quire_bookie.model import NO_ENTRY, BookieId, EntryId, LedgerMetadata
from quire_bookie.quorum.write_set import write_set
from quire_bookie.wire.client_codec import v3_read, v3_read_lac
from quire_bookie.wire.messages import ReadResponse, Response, Status, error_of

_NOBODY_KNOWS_S = 0.5


class LacPolls:
    """The polls of one reader, one at a time."""

    def __init__(self, way: ReadWay) -> None:
        self._way = way
        self._turn = 0

    async def wait(self, metadata: LedgerMetadata, beyond: EntryId, timeout_s: float) -> EntryId:
        """A LAC above `beyond`; `beyond` itself when none was heard of within `timeout_s`, or sooner.

        A bookie that fails is followed by the next one; one that keeps silent is not asked first again.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        bookies = self._bookies(metadata, beyond)
        for bookie in bookies:
            left_s = end_s - loop.time()
            if left_s <= 0:
                break
            try:
                lac = await self._poll(bookie, beyond, left_s)
            except MISSING_ERRORS:
                continue  # it has nothing of the ledger yet, and answered at once
            except LedgerError:
                self._way.links.health.failed(bookie)
                continue
            if lac > beyond:
                return lac
            # No bookie may keep a reader from what the others know. One that answers early was fenced, or stops.
            self._turn += 1
            return beyond
        # All of them failed or have nothing: not again at once.
        await asyncio.sleep(max(min(end_s - loop.time(), _NOBODY_KNOWS_S), 0.0))
        return beyond

    def _bookies(self, metadata: LedgerMetadata, beyond: EntryId) -> Sequence[BookieId]:
        """First who will hold the entry that vouches for a LAC of `beyond` + 1: in turn, the well ones first."""
        ensemble = metadata.segments[-1].ensemble
        positions = write_set(EntryId(beyond + 2), metadata.ensemble_size, metadata.write_quorum)
        turn = self._turn % len(positions)
        first = [ensemble[p] for p in (*positions[turn:], *positions[:turn])]
        others = [bookie for bookie in ensemble if bookie not in first]
        health = self._way.links.health
        return [*health.order(first), *health.order(others)]

    async def _poll(self, bookie: BookieId, beyond: EntryId, timeout_s: float) -> EntryId:
        """The highest LAC that the bookie can prove once it may have moved. LedgerError."""
        way = self._way
        name = f"the LAC of ledger {way.ledger} at bookie {bookie}"

        def poll(transaction: int) -> bytes:
            wait_ms = max(int(timeout_s * 1000), 1)
            return v3_read(transaction, way.ledger, NO_ENTRY, previous_lac=beyond, timeout_ms=wait_ms)

        answer = await self._ask(bookie, poll, timeout_s + LAC_POLL_ANSWER_S)
        if answer.status is not Status.OK:
            raise error_of(answer.status, name)
        lac, hint = NO_ENTRY, NO_ENTRY
        if isinstance(answer, ReadResponse):
            hint = NO_ENTRY if answer.max_lac is None else answer.max_lac
            if answer.data is not None:
                lac = way.digest.decode_entry(answer.data, way.ledger, None).lac
        if lac > beyond or hint <= beyond:
            return lac
        # An explicit LAC, which no entry carries.
        answer = await self._ask(bookie, lambda t: v3_read_lac(t, way.ledger), LAC_POLL_ANSWER_S)
        told = lac_told(way, answer, bookie)
        if told.lac > beyond:
            return told.lac
        if isinstance(told.last_entry, LedgerError):
            raise told.last_entry
        lac = way.digest.decode_entry(told.last_entry, way.ledger, None).lac
        if lac <= beyond:
            raise BookieUnavailableError(f"{name}: it says {hint}, but nothing that it holds vouches for it")
        return lac

    async def _ask(self, bookie: BookieId, build: BuildRequest, timeout_s: float) -> Response:
        answer: asyncio.Future[Response | LedgerError] = asyncio.get_running_loop().create_future()

        def resolve(value: Response | LedgerError) -> None:
            if not answer.done():
                answer.set_result(value)

        link = self._way.links.v3_link(bookie)
        transaction = link.ask(build, resolve, timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                found = await answer
        except TimeoutError as error:
            # Not forgotten: the link looks whether the bookie is dead.
            self._way.links.health.overdue(bookie, timeout_s)
            raise BookieUnavailableError(f"bookie {bookie} did not answer within {timeout_s:.1f} s") from error
        except asyncio.CancelledError:
            link.forget(transaction)
            raise
        if isinstance(found, LedgerError):
            raise found
        return found
