"""Allocates ids of new ledgers, checked against the bookies. Allocates none from metadata that went back in time.

The counters in the metadata only rise, unless an older copy of the metadata is put in place. Bookies remember the
highest counters and the latest epoch that they read (`IdReport.seen`), and the highest ledger that they ever held.
Before the first id of a process, and again after the session or the connection to the metadata store broke or another
bookie registered:

* ask all registered bookies and those of the new ledger's ensemble; at least half of them must respond;
* then read the counters: every counter that a bookie reported must be at or below them. Otherwise raise
  MetadataOutdatedError; each further call checks again, until an administrator has restored the metadata.

A highest ledger above the counter proves nothing: stock clients may choose ids of their own. Ids up to that mark are
allocated too, but only if no bookie knows them; ids that a bookie holds or deleted are skipped.
"""

import asyncio
import logging
from collections.abc import Iterable
from functools import partial

from quire_bookie.client.links.bookie_link import Links
from quire_bookie.errors import LedgerError, LedgerIdInUseError, MetadataOutdatedError, QuorumError
from quire_bookie.limits import ID_INQUIRY_AGAIN_S, ID_INQUIRY_TIMEOUT_S, LEDGER_IDS_SKIPPED_MAX
from quire_bookie.metadata.ledger_ids import LedgerIds, read_counters
from quire_bookie.metadata.registration import BookieRegistry
from quire_bookie.metadata.store import MetadataStore, SessionState
from quire_bookie.model import BookieId, IdReport, LedgerId
from quire_bookie.wire import client_v3
from quire_bookie.wire.messages import BookieInfoResponse, Response, Status

_log = logging.getLogger("quire.client.ids")
_REMEDY = (
    "restore a backup into an empty store, or, without one, accept this copy with `quire metadata raise-epoch`: either "
    "begins a new epoch (docs/kubernetes/backup.md)"
)
_LONG_IDS_START = 1 << 31


class FreshIds:
    """Allocates the ledger ids of one client."""

    def __init__(self, metadata: MetadataStore, registry: BookieRegistry, links: Links) -> None:
        self._metadata = metadata
        self._ids = LedgerIds(metadata)
        self._registry = registry
        self._links = links
        self._reports: dict[BookieId, IdReport | None] = {}
        """Reports since the session began; None for a bookie that is not Quire's."""
        self._tried_s: dict[BookieId, float] = {}
        self._asking = asyncio.Lock()
        self._sessions = 0
        """Number of changes of the session."""
        self._asked_on = self._link()
        """The session and connection under which the reports were collected."""
        self._epoch = 0
        self._given: dict[bool, int] = {False: -1, True: -1}
        """The highest id allocated so far, by whether it is a long id."""
        self._remove = metadata.on_session(self._session_changed)

    def close(self) -> None:
        """Stop listening to the session."""
        self._remove()

    async def next_id(self, ensemble: Iterable[BookieId]) -> LedgerId:
        """Return an id that no ledger had before, as far as metadata and bookies know.

        `ensemble`: the bookies of the new ledger, asked even if an older copy of the metadata lacks their
        registrations. MetadataOutdatedError; QuorumError if too few bookies respond (retry); errors as
        `LedgerIds.next_id`.
        """
        members = frozenset(ensemble)
        for _ in range(LEDGER_IDS_SKIPPED_MAX):
            link = self._link()
            await self._ask_bookies(members)
            given = dict(self._given)  # another call may end before this one with a higher id
            ledger = await self._ids.next_id()
            if link != self._link():
                # The counter may be from an older copy that was put in place after the bookies responded.
                self._forget_reports()
                continue
            is_long = ledger >= _LONG_IDS_START
            if ledger <= given[is_long]:
                await self._went_back(ledger, given[is_long])
                continue
            self._given[is_long] = max(self._given[is_long], ledger)
            if ledger > self._highest(is_long) or not await self._is_known(ledger):
                return ledger
            _log.warning("skipping ledger id %d: a bookie holds or deleted a ledger with this id", ledger)
        raise LedgerIdInUseError(f"{LEDGER_IDS_SKIPPED_MAX} consecutive ledger ids are in use on bookies; {_REMEDY}")

    def _session_changed(self, _: SessionState) -> None:
        self._sessions += 1
        self._forget_reports()

    def _link(self) -> tuple[int, int]:
        """Return session and connection: one of them breaks whenever an older copy of the metadata is put in place."""
        return self._sessions, self._metadata.connection_breaks

    def _forget_reports(self) -> None:
        self._reports.clear()
        self._tried_s.clear()

    def _highest(self, is_long: bool) -> int:
        reports = [report for report in self._reports.values() if report is not None]
        return max((report.long if is_long else report.short for report in reports), default=-1)

    async def _went_back(self, ledger: LedgerId, given: int) -> None:
        """Handle a counter that allocated an id at or below one that this client received before."""
        self._reports.clear()
        found = await read_counters(self._metadata)
        if not self._is_new(found.epoch):
            raise MetadataOutdatedError(
                f"no ledger id can be allocated: the counter is at {ledger} and was at {given}; {_REMEDY}"
            )

    def _is_new(self, epoch: int) -> bool:
        """Return whether an administrator restored the metadata since; the counters then began again."""
        if epoch <= self._epoch:
            return False
        self._epoch = epoch
        self._given = {False: -1, True: -1}
        return True

    # ---- asking
    async def _ask_bookies(self, members: frozenset[BookieId]) -> None:
        """Ask every registered bookie and all `members` that were not asked. MetadataOutdatedError, QuorumError."""
        self._forget_outdated()
        if self._pending(members):
            async with self._asking:
                self._forget_outdated()
                pending = self._pending(members)
                if pending:
                    await self._ask_these(pending, members)

    def _forget_outdated(self) -> None:
        """Drop responses from before the session or the connection broke."""
        if self._asked_on != self._link():
            self._asked_on = self._link()
            self._forget_reports()

    def _concerned(self, members: frozenset[BookieId]) -> frozenset[BookieId]:
        return self._registry.writable | self._registry.read_only | members

    def _pending(self, members: frozenset[BookieId]) -> list[BookieId]:
        unanswered = self._concerned(members) - self._reports.keys()
        if not unanswered:
            return []
        long_ago_s = self._links.now_s() - ID_INQUIRY_AGAIN_S
        return sorted(bookie for bookie in unanswered if self._tried_s.get(bookie, long_ago_s) <= long_ago_s)

    async def _ask_these(self, bookies: list[BookieId], members: frozenset[BookieId]) -> None:
        link = self._link()
        answers = dict(zip(bookies, await self._ask_all(bookies, None), strict=True))
        found = await read_counters(self._metadata)
        if link != self._link():
            return  # the caller asks again: these counters and the next id may come from different copies
        self._is_new(found.epoch)
        for bookie, answer in answers.items():
            why = None if not isinstance(answer, IdReport) else found.behind(answer.seen)
            if why is not None:
                self._forget_reports()
                raise MetadataOutdatedError(
                    f"no ledger id can be allocated: the metadata went back in time, according to bookie {bookie}: "
                    f"{why}; {_REMEDY}"
                )
        for bookie, answer in answers.items():
            if isinstance(answer, LedgerError):
                self._tried_s[bookie] = self._links.now_s()
            else:
                self._reports[bookie] = answer
        concerned = self._concerned(members)
        answered = concerned & self._reports.keys()
        if 2 * len(answered) < len(concerned):
            self._tried_s.clear()
            errors = [str(answer) for answer in answers.values() if isinstance(answer, LedgerError)]
            raise QuorumError(
                f"only {len(answered)} of {len(concerned)} bookies reported which ledger ids they know, at least half "
                f"must: {errors[-1] if errors else 'they are no longer registered'}; retry when more bookies run"
            )

    async def _is_known(self, ledger: LedgerId) -> bool:
        suspects = self._links.suspects
        bookies = sorted(
            bookie for bookie in self._registry.writable | self._registry.read_only if bookie not in suspects
        )
        answers = await self._ask_all(bookies, ledger)
        return any(isinstance(answer, IdReport) and answer.ledger_known for answer in answers)

    async def _ask_all(
        self, bookies: Iterable[BookieId], ledger: LedgerId | None
    ) -> "list[IdReport | LedgerError | None]":
        return await asyncio.gather(*(self._ask(bookie, ledger) for bookie in bookies))

    async def _ask(self, bookie: BookieId, ledger: LedgerId | None) -> "IdReport | LedgerError | None":
        """Return a bookie's report, None if it does not support the request, or the error."""
        answer: asyncio.Future[Response | LedgerError] = asyncio.get_running_loop().create_future()

        def resolve(value: Response | LedgerError) -> None:
            if not answer.done():
                answer.set_result(value)

        link = self._links.v3_link(bookie)
        transaction = link.ask(partial(client_v3.id_marks, ledger=ledger), resolve, ID_INQUIRY_TIMEOUT_S)
        try:
            async with asyncio.timeout(ID_INQUIRY_TIMEOUT_S):
                found = await answer
        except TimeoutError:
            return QuorumError(f"bookie {bookie} did not respond within {ID_INQUIRY_TIMEOUT_S:.0f} s")
        finally:
            link.forget(transaction)
        if isinstance(found, LedgerError):
            return found
        if not isinstance(found, BookieInfoResponse) or found.status is not Status.OK:
            return QuorumError(f"bookie {bookie} answered a request for its ledger ids with {found.status.value}")
        return found.ids
