"""Ledger ids for new ledgers, checked against what bookies know. Never gives out an id from metadata that went back.

The counters in the metadata only rise, unless an older copy of the metadata is put in place. Bookies remember
the highest counters and the latest epoch that they read (`IdReport.seen`), and the highest ledger that they ever
held. Before
the first id of a run, and again after the session or the connection with the metadata store broke or another bookie
registered:

* ask all registered bookies, and those of the new ledger's ensemble; at least half of them must answer;
* read the counters afterwards: every counter that a bookie read before must be at or below them. Else
  MetadataOutdatedError, and each further call asks again, until an operator restored the metadata.

A highest ledger above the counter proves nothing: stock clients may choose ids of their own. Ids up to that mark are
given out all the same, but each only after no bookie knows it; those that one holds, or deleted, are skipped.
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
    """Of one client."""

    def __init__(self, metadata: MetadataStore, registry: BookieRegistry, links: Links) -> None:
        self._metadata = metadata
        self._ids = LedgerIds(metadata)
        self._registry = registry
        self._links = links
        self._reports: dict[BookieId, IdReport | None] = {}
        """Who answered since the session began; None: a bookie of another make."""
        self._tried_s: dict[BookieId, float] = {}
        self._asking = asyncio.Lock()
        self._sessions = 0
        """How often the session changed."""
        self._asked_on = self._link()
        """The session and connection that the reports are of."""
        self._epoch = 0
        self._given: dict[bool, int] = {False: -1, True: -1}
        """The highest id given out so far: a long one, or a short one."""
        self._remove = metadata.on_session(self._session_changed)

    def close(self) -> None:
        """Listen no more to the session."""
        self._remove()

    async def next_id(self, ensemble: Iterable[BookieId]) -> LedgerId:
        """An id that no ledger had before, as far as metadata and bookies know.

        `ensemble`: of the new ledger; while the metadata are put back no registration may be left that names them.
        MetadataOutdatedError; QuorumError when too few bookies answer (retry); errors as `LedgerIds.next_id`.
        """
        members = frozenset(ensemble)
        for _ in range(LEDGER_IDS_SKIPPED_MAX):
            link = self._link()
            await self._ask_bookies(members)
            given = dict(self._given)  # another call may end before this one with a higher id
            ledger = await self._ids.next_id()
            if link != self._link():
                # The counter may be one of an older copy, and the bookies answered before that was put in place.
                self._forget_reports()
                continue
            is_long = ledger >= _LONG_IDS_START
            if ledger <= given[is_long]:
                await self._went_back(ledger, given[is_long])
                continue
            self._given[is_long] = max(self._given[is_long], ledger)
            if ledger > self._highest(is_long) or not await self._is_known(ledger):
                return ledger
            _log.warning("ledger id %d is skipped: a bookie holds, or deleted, a ledger with it", ledger)
        raise LedgerIdInUseError(f"{LEDGER_IDS_SKIPPED_MAX} ledger ids in a row are in use on bookies; {_REMEDY}")

    def _session_changed(self, _: SessionState) -> None:
        self._sessions += 1
        self._forget_reports()

    def _link(self) -> tuple[int, int]:
        """Session and connection: an older copy of the metadata can be put in place only while one of them breaks."""
        return self._sessions, self._metadata.connection_breaks

    def _forget_reports(self) -> None:
        self._reports.clear()
        self._tried_s.clear()

    def _highest(self, is_long: bool) -> int:
        reports = [report for report in self._reports.values() if report is not None]
        return max((report.long if is_long else report.short for report in reports), default=-1)

    async def _went_back(self, ledger: LedgerId, given: int) -> None:
        """The counter gave out an id at or below one that it gave this client before."""
        self._reports.clear()
        found = await read_counters(self._metadata)
        if not self._is_new(found.epoch):
            raise MetadataOutdatedError(
                f"no ledger id is given out: the counter is at {ledger} and was at {given}; {_REMEDY}"
            )

    def _is_new(self, epoch: int) -> bool:
        """Whether an operator restored the metadata since: then the counters began again."""
        if epoch <= self._epoch:
            return False
        self._epoch = epoch
        self._given = {False: -1, True: -1}
        return True

    # ---- asking
    async def _ask_bookies(self, members: frozenset[BookieId]) -> None:
        """Until every registered bookie and all `members` were asked. MetadataOutdatedError, QuorumError."""
        self._forget_outdated()
        if self._pending(members):
            async with self._asking:
                self._forget_outdated()
                pending = self._pending(members)
                if pending:
                    await self._ask_these(pending, members)

    def _forget_outdated(self) -> None:
        """Forget answers that came before the session or the connection broke."""
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
            return  # the caller asks again: the counters may be those of another copy than the next number
        self._is_new(found.epoch)
        for bookie, answer in answers.items():
            why = None if not isinstance(answer, IdReport) else found.behind(answer.seen)
            if why is not None:
                self._forget_reports()
                raise MetadataOutdatedError(
                    f"no ledger id is given out: the metadata went back in time, as bookie {bookie} knows: {why}; "
                    f"{_REMEDY}"
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
                f"{len(answered)} of {len(concerned)} bookies said which ledger ids they know, and half of "
                f"them must: {errors[-1] if errors else 'they left'}"
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
        """What a bookie says; None of one that does not know the question; else why there is no answer."""
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
            return QuorumError(f"bookie {bookie} did not answer within {ID_INQUIRY_TIMEOUT_S:.0f} s")
        finally:
            link.forget(transaction)
        if isinstance(found, LedgerError):
            return found
        if not isinstance(found, BookieInfoResponse) or found.status is not Status.OK:
            return QuorumError(f"bookie {bookie} answered {found.status.value} to what ledger ids it knows")
        return found.ids
