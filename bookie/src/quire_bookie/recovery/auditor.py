"""The auditor: finds ledgers that lack replicas and marks them. One elected process runs it.

* Lost bookies: when a bookie has been away for the delay, every ledger that names it is marked, page by page.
* An administrator who writes the same delay again gives up on the missing bookies: all are audited at once.
* All ledgers are checked at an interval, with a bounded number of requests per second. The time of the last check is in
  the metadata, so a restart or another auditor does not start over.
* Ledgers that were created with fewer copies than configured are marked (`narrow_check`).
* Bookies that an administrator drains are let go and followed until they are empty (`drainage`).

It only marks: it never copies, replaces or deletes. It never marks a replica in an unknown state. Two auditors at once
would mark the same ledgers twice, which is harmless. Memory is bounded by a page of ledgers.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from quire_bookie.env.backoff import Backoff
from quire_bookie.env.rate_limit import RateLimit
from quire_bookie.errors import LedgerError, MetadataError, MetadataFormatError
from quire_bookie.limits import AUDITOR_MARKS_AT_ONCE, METADATA_RETRY_BACKOFF_S
from quire_bookie.metadata import layout
from quire_bookie.metadata.cookies import Cookies
from quire_bookie.metadata.election import Election
from quire_bookie.metadata.ledger_metadata import decode_ledger_metadata
from quire_bookie.metadata.recovery_controls import LOST_BOOKIE_DELAY, CheckKind, MissingGivenUp, RecoveryControls
from quire_bookie.metadata.retrying import watch_with_retries
from quire_bookie.metadata.store import EventKind, Node
from quire_bookie.metadata.under_replication import MARKS, UNDER_REPLICATION
from quire_bookie.model import BookieId, LedgerId, LedgerMetadata
from quire_bookie.quorum.wanted_copies import wanted_copies
from quire_bookie.recovery.access import ClusterAccess
from quire_bookie.recovery.bookie_absences import LostBookies
from quire_bookie.recovery.bookie_status import lost_after_s
from quire_bookie.recovery.copies import fewest_copies
from quire_bookie.recovery.drainage import Drainage, SetReadOnly
from quire_bookie.recovery.fragment_check import Health, LedgerCheck
from quire_bookie.recovery.fragments import closed_fragments
from quire_bookie.recovery.ledger_folders import ledger_folders
from quire_bookie.recovery.narrow_check import NarrowCheck
from quire_bookie.recovery.placement_check import PlacementCheck
from quire_bookie.recovery.stats import RecoveryStats

_log = logging.getLogger("quire.recovery.auditor")
_LEADER_CHECK_S = 10.0
_DISABLED_POLL_S = 10.0
_LEDGERS_AT_ONCE = 8
_NOTICE_ATTEMPTS, _NOTICE_PAUSE_S = 20, 0.5


class LeadershipLostError(MetadataError):
    """Another process is the auditor now, or this process's metadata session ended."""


class Auditor:
    """A candidate in the election of the auditor and, while it leads, the auditor."""

    def __init__(
        self,
        access: ClusterAccess,
        election: Election,
        controls: RecoveryControls,
        stats: RecoveryStats,
        set_read_only: SetReadOnly | None = None,
    ) -> None:
        """`set_read_only`: makes a drained bookie read-only; None: over its HTTP port."""
        self._access = access
        self._election = election
        self._controls = controls
        self._stats = stats
        self._pace = RateLimit(access.settings.operations_s)
        self._lost = LostBookies()
        make_read_only = set_read_only or access.http.set_read_only
        self._placement = PlacementCheck(access, stats)
        self._narrow = NarrowCheck(access, stats)
        self._drainage = Drainage(access, controls, make_read_only, stats)
        self._wake = asyncio.Event()
        self._at_once = False
        self._copies = [0, 0, 0]
        """Counts of the current check: ledgers without a copy, below the ack quorum, below the write quorum."""
        self.leads = False

    async def run(self) -> None:
        """Stand for election and audit while leading, until cancelled. Ends otherwise only with an unexpected error."""
        backoff = Backoff(METADATA_RETRY_BACKOFF_S)
        forget = self._access.registry.on_change(self._bookies_changed)
        try:
            while True:
                await self._election.win()
                self._stats.elections_won += 1
                _log.info("this process is the auditor")
                self.leads = True
                try:
                    # In a task of its own: a TaskGroup that failed leaves its task marked as being cancelled, and
                    # before 3.11.3 Python takes the next timeout there for that cancellation. Then no process would be
                    # auditor.
                    await asyncio.get_running_loop().create_task(self._lead(), name="auditor's term")
                except* MetadataError as errors:
                    # Another process that reaches the store may lead now; this one stands for election again.
                    _log.warning("this process is no longer the auditor: %s", errors.exceptions[0])
                self.leads = False
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise asyncio.CancelledError  # cancelled while the term was failing, which hid the cancellation
                await backoff.wait()
        finally:
            forget()
            self.leads = False

    def _bookies_changed(self) -> None:
        # Also while another process leads: a bookie that came back counts as present for the next auditor too.
        self._lost.returned(self._access.registered)
        self._narrow.wake()
        self._wake.set()

    async def resign(self) -> None:
        """Give up leadership so that another process can lead at once."""
        await self._election.resign()

    async def _lead(self) -> None:
        await self._controls.ensure_layout()
        await self._controls.ensure_lost_bookie_delay_s(self._access.settings.lost_bookie_delay_s)
        self._lost.audit_again()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_leading(), name="auditor's leadership")
            group.create_task(self._follow(), name="auditor's controls")
            group.create_task(self._audit_lost(), name="audit of lost bookies")
            group.create_task(self._drainage.run(), name="drains")
            group.create_task(self._narrow.run(), name="check of copies")
            if self._access.settings.check_interval_s > 0:
                check = self._at_intervals(
                    CheckKind.ALL_LEDGERS, self._access.settings.check_interval_s, self.check_all
                )
                group.create_task(check, name="check of all ledgers")
            if self._access.settings.placement_check_interval_s > 0:
                placement = self._at_intervals(
                    CheckKind.PLACEMENT, self._access.settings.placement_check_interval_s, self._placement.check
                )
                group.create_task(placement, name="check of placement")

    async def _keep_leading(self) -> None:
        while True:
            await asyncio.sleep(_LEADER_CHECK_S)
            if not await self._election.still_leads():
                raise LeadershipLostError("the election node belongs to another process, or our session ended")

    async def _follow(self) -> None:
        """React when an administrator gives up on missing bookies or uses the auto-recovery switch."""
        watch = await watch_with_retries(self._access.metadata, f"{UNDER_REPLICATION}/", _log.warning)
        given_up = MissingGivenUp(self._access.metadata)
        try:
            await given_up.was_requested()
            async for event in watch:
                if event.key == LOST_BOOKIE_DELAY or event.kind is EventKind.RESYNC:
                    self._at_once |= await given_up.was_requested()
                    self._wake.set()
                elif event.key.startswith(f"{UNDER_REPLICATION}/d"):
                    self._wake.set()
                elif event.key.startswith(f"{MARKS}/") and event.kind is EventKind.CREATED:
                    self._narrow.wake()
        finally:
            await watch.close()

    async def _enabled(self) -> None:
        """Return once auto-recovery is switched on."""
        while not await self._controls.is_enabled():  # noqa: ASYNC110  the state is in the store, not here
            await asyncio.sleep(_DISABLED_POLL_S)

    # ---- lost bookies
    async def _audit_lost(self) -> None:
        """Search when the bookies change, when a delay runs out, and at the interval."""
        interval_s = self._access.settings.audit_interval_s
        loop = asyncio.get_running_loop()
        named = await self._named()
        while True:
            self._wake.clear()
            await self._enabled()
            delay_s = await lost_after_s(self._access, self._controls)
            at_once, self._at_once = self._at_once, False
            if at_once:
                await self._notice_registrations()
                named = await self._named()  # new ledgers may name a bookie whose cookie is gone too
            known = named | frozenset(await Cookies(self._access.metadata).bookies())
            self._lost.update(known, self._access.registered, loop.time())
            lost = self._lost.lost(0, loop.time()) if at_once else self._lost.to_audit(delay_s, loop.time())
            if lost:
                await self.audit(lost)
                self._lost.audited(lost)
            self._stats.searches += 1
            waits = [self._lost.next_s(delay_s, loop.time()), interval_s or None]
            try:
                async with asyncio.timeout(min((wait for wait in waits if wait is not None), default=None)):
                    await self._wake.wait()
            except TimeoutError:
                if interval_s and self._lost.next_s(delay_s, loop.time()) is None:
                    self._lost.audit_again()
                    named = await self._named()

    async def _notice_registrations(self) -> None:
        """Wait until the registrations followed here equal those in the store: an administrator may know of a loss
        first.
        """
        for _ in range(_NOTICE_ATTEMPTS):
            if await self._access.registered_in_store() == self._access.registered:
                return
            await asyncio.sleep(_NOTICE_PAUSE_S)

    async def _named(self) -> frozenset[BookieId]:
        """Return every bookie that a ledger names: one whose cookie was removed too early still holds data that is
        missing.
        """
        found: set[BookieId] = set()
        async for folder in ledger_folders(self._access.metadata):
            async for page in self._access.metadata.scan(folder):
                for node in page:
                    read = self._read(node)
                    if read is not None:
                        found.update(*(segment.ensemble for segment in read[1].segments))
        return frozenset(found)

    async def audit(self, lost: Collection[BookieId]) -> int:
        """Mark every ledger that names one of these bookies and return how many there are.

        Raises MetadataError: some ledgers were not marked; call it again later.
        """
        _log.warning("bookies are lost: %s; marking their ledgers", ", ".join(sorted(lost)))
        found = 0
        # Ids are ASCII in the value in each format version, so most ledgers need not be decoded.
        needles = [bookie.encode() for bookie in sorted(lost)]
        async for folder in ledger_folders(self._access.metadata):
            async for page in self._access.metadata.scan(folder):
                named = [node for node in page if any(needle in node.value for needle in needles)]
                # One at a time, the store's responses would take minutes for a bookie with many ledgers.
                for at in range(0, len(named), AUDITOR_MARKS_AT_ONCE):
                    part = named[at : at + AUDITOR_MARKS_AT_ONCE]
                    found += sum(await asyncio.gather(*(self._mark_lost(node, lost) for node in part)))
        self._stats.audits += 1
        _log.info("%d ledgers are marked for %s", found, ", ".join(sorted(lost)))
        return found

    async def _mark_lost(self, node: Node, lost: Collection[BookieId]) -> bool:
        read = self._read(node)
        if read is None:
            return False
        ledger, metadata = read
        missing = {bookie for segment in metadata.segments for bookie in segment.ensemble} & set(lost)
        if not missing - self._access.registered:
            return False  # the bookies came back during the walk
        # Marked again even if the mark names them: a worker that checked before the loss must not remove that mark.
        made = await self._access.marks.mark(ledger, missing)
        self._stats.marks_made += made  # not added across the await: several calls run at once
        return True

    def _read(self, node: Node) -> tuple[LedgerId, LedgerMetadata] | None:
        ledger = layout.ledger_of_path(node.key)
        if ledger is None:
            return None
        try:
            return ledger, decode_ledger_metadata(node.value)
        except MetadataFormatError as error:
            self._stats.ledgers_unreadable += 1
            _log.error("ledger %d is skipped: %s", ledger, error)
            return None

    # ---- all ledgers
    async def _at_intervals(self, kind: CheckKind, interval_s: float, work: Callable[[], Awaitable[int]]) -> None:
        loop, clock = asyncio.get_running_loop(), self._access.clock
        due_s = loop.time() + interval_s
        while True:
            last_ms = await self._controls.last_check_ms(kind)
            wait_s = 0.0 if last_ms is None else interval_s - (clock.now_ms() - last_ms) / 1000
            # A last check in the future, written by a wrong clock, delays the check by one interval at most.
            wait_s = min(wait_s, due_s - loop.time())
            if wait_s > 0:
                await asyncio.sleep(wait_s)
                continue
            await self._enabled()
            await work()
            await self._controls.set_last_check_ms(kind, clock.now_ms())
            due_s = loop.time() + interval_s

    async def check_all(self) -> int:
        """Check every ledger once, mark those that lack something, and return how many. Raises MetadataError."""
        marked = 0
        self._copies = [0, 0, 0]
        async for folder in ledger_folders(self._access.metadata):
            async for page in self._access.metadata.scan(folder, page_keys=100):
                for at in range(0, len(page), _LEDGERS_AT_ONCE):
                    part = page[at : at + _LEDGERS_AT_ONCE]
                    marked += sum(await asyncio.gather(*map(self._check, part)))
        assert self._copies == sorted(self._copies), "a ledger without a copy is below each quorum"
        stats = self._stats
        stats.checks += 1
        stats.ledgers_without_copy, stats.ledgers_below_ack_quorum, stats.ledgers_below_write_quorum = self._copies
        _log.info("checked all ledgers; %d lack replicas or entries", marked)
        return marked

    async def _check(self, node: Node) -> bool:
        read = self._read(node)
        if read is None:
            return False
        ledger, metadata = read
        check = LedgerCheck(self._access, self._access.handle(ledger, metadata), self._pace)
        try:
            reports = await check.check(closed_fragments(metadata))
        except LedgerError as error:
            _log.warning("ledger %d could not be checked: %s", ledger, error)
            return False
        self._stats.ledgers_checked += 1
        fewest = fewest_copies(reports)
        if fewest is not None:
            self._copies[0] += fewest == 0
            self._copies[1] += fewest < metadata.ack_quorum
            wanted = wanted_copies(metadata, self._access.settings.unmarked_write_quorum)
            self._copies[2] += fewest < wanted
        self._stats.replicas_unknown += sum(report.health is Health.UNKNOWN for report in reports)
        # A bookie that is gone is marked after its delay, not here.
        bad = {report.bookie for report in reports if report.health in (Health.LACKING, Health.LIMBO)}
        if bad:
            made = await self._access.marks.mark(ledger, bad, again=False)
            self._stats.marks_made += made
        return bool(bad)
