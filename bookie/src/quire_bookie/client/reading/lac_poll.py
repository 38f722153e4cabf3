"""Waits at one bookie after the other until the LAC of a ledger advances: BookKeeper's long poll.

The LAC in a bookie's response is only a hint. A LAC counts if a digest protects it, in the header of an entry or the
packet of an explicit LAC; otherwise bytes damaged in transit or on a disk could make a reader read unconfirmed entries.
One bookie is enough for such a LAC, because a writer's LAC never goes back.
"""

import asyncio
from collections.abc import Sequence

from quire_bookie.client.entry_read import MISSING_ERRORS, ReadWay
from quire_bookie.client.links.bookie_link import BuildRequest
from quire_bookie.client.reading.lac_read import parse_lac
from quire_bookie.errors import BookieUnavailableError, LedgerError
from quire_bookie.limits import LAC_POLL_ANSWER_S
from quire_bookie.model import NO_ENTRY, BookieId, EntryId, LedgerMetadata
from quire_bookie.quorum.write_set import write_set
from quire_bookie.wire.client_codec import v3_read, v3_read_lac
from quire_bookie.wire.messages import ReadResponse, Response, Status, error_of

_ALL_FAILED_PAUSE_S = 0.5


class LacPolls:
    """Polls for one reader, one bookie at a time."""

    def __init__(self, way: ReadWay) -> None:
        self._way = way
        self._turn = 0

    async def wait(self, metadata: LedgerMetadata, beyond: EntryId, timeout_s: float) -> EntryId:
        """Return a LAC above `beyond`, or `beyond` if no higher one was found within `timeout_s` or less.

        Polls the next bookie when one fails; a bookie without news is not polled first again.
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
                continue  # it has nothing of the ledger yet and responded at once
            except LedgerError:
                self._way.links.health.failed(bookie)
                continue
            if lac > beyond:
                return lac
            # Poll another bookie next time, which may know more. A bookie that responds early was fenced or stops.
            self._turn += 1
            return beyond
        # All bookies failed or have nothing: pause before the next attempt.
        await asyncio.sleep(max(min(end_s - loop.time(), _ALL_FAILED_PAUSE_S), 0.0))
        return beyond

    def _bookies(self, metadata: LedgerMetadata, beyond: EntryId) -> Sequence[BookieId]:
        """Order the bookies: first those that will hold the entry with a LAC of `beyond` + 1, rotated, by health."""
        ensemble = metadata.segments[-1].ensemble
        positions = write_set(EntryId(beyond + 2), metadata.ensemble_size, metadata.write_quorum)
        turn = self._turn % len(positions)
        first = [ensemble[p] for p in (*positions[turn:], *positions[:turn])]
        others = [bookie for bookie in ensemble if bookie not in first]
        health = self._way.links.health
        return [*health.order(first), *health.order(others)]

    async def _poll(self, bookie: BookieId, beyond: EntryId, timeout_s: float) -> EntryId:
        """Wait until the LAC may have advanced. Return the highest LAC that the bookie can prove. LedgerError."""
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
        # The hint is an explicit LAC, which is not in the header of an entry.
        answer = await self._ask(bookie, lambda t: v3_read_lac(t, way.ledger), LAC_POLL_ANSWER_S)
        parsed = parse_lac(way, answer, bookie)
        if parsed.lac > beyond:
            return parsed.lac
        if isinstance(parsed.last_entry, LedgerError):
            raise parsed.last_entry
        lac = way.digest.decode_entry(parsed.last_entry, way.ledger, None).lac
        if lac <= beyond:
            raise BookieUnavailableError(f"{name}: it reported {hint}, but has no entry or packet that proves it")
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
            # The request stays with the link, which checks whether the bookie is dead.
            self._way.links.health.overdue(bookie, timeout_s)
            raise BookieUnavailableError(f"bookie {bookie} did not respond within {timeout_s:.1f} s") from error
        except asyncio.CancelledError:
            link.forget(transaction)
            raise
        if isinstance(found, LedgerError):
            raise found
        return found
