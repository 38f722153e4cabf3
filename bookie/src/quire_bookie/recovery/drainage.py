"""Drains bookies: lets them go, marks their ledgers, publishes the progress, ends the drain. Run by the auditor.

It copies nothing: replication workers do, for which a replica on a leaving bookie is one that must move. Every pass
starts from the metadata, so the next auditor after a crash continues where the last one was.

    waiting   -> leaving    enough other bookies are writable for the ensembles; then it is made read-only
    leaving   -> emptied    two walks in a row found no ledger that names it, and it was never writable meanwhile
    emptied   -> forgotten  decommission only, once it is stopped: first its cookie is deleted, then the request
    cancelled -> forgotten  it is writable again if the drain made it read-only, or it has no cookie any more
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from quire_bookie.errors import LedgerError, MetadataFormatError, NodeMissingError
from quire_bookie.limits import AUDITOR_MARKS_AT_ONCE, DRAIN_MARKS_MAX, DRAIN_TICK_S, REPLICATION_REMEMBERED_MAX
from quire_bookie.metadata import layout
from quire_bookie.metadata.cookies import CookieInUseError, Cookies
from quire_bookie.metadata.drains import DRAINS, Drain, Drains, Wish, decode_drains, leaving
from quire_bookie.metadata.ledger_metadata import decode_ledger_metadata
from quire_bookie.metadata.rack_map import change_rack_map, without_place
from quire_bookie.metadata.recovery_controls import RecoveryControls
from quire_bookie.metadata.retrying import watch_with_retries
from quire_bookie.metadata.store import Check, Node
from quire_bookie.metadata.unrecoverable import UnrecoverableLedgers
from quire_bookie.model import BookieId, LedgerId
from quire_bookie.recovery.access import ClusterAccess
from quire_bookie.recovery.drain_plan import Census, DrainContext, names, progress, start_leaving
from quire_bookie.recovery.ledger_folders import ledger_folders
from quire_bookie.recovery.stats import RecoveryStats

_log = logging.getLogger("quire.recovery.drainage")
_EMPTY_WALKS = 2

SetReadOnly: TypeAlias = Callable[[BookieId, bool], Awaitable[None]]
"""Make a bookie read-only, or writable again, for an administrator. Raises LedgerError if it was not reached."""


class Drainage:
    """Carries out all drains. Two instances at once do the same work twice, which is harmless."""

    def __init__(
        self, access: ClusterAccess, controls: RecoveryControls, set_read_only: SetReadOnly, stats: RecoveryStats
    ) -> None:
        self._access = access
        self._controls = controls
        self._set_read_only = set_read_only
        self._stats = stats
        self._drains = Drains(access.metadata)
        self._notes = UnrecoverableLedgers(access.metadata)
        self._empty: dict[BookieId, int] = {}
        """By bookie, the number of walks in a row that found no ledger of it."""
        self._shut: set[BookieId] = set()
        """Leaving bookies that were not writable at any time since the current walk began."""
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Work when the drain requests or the bookies change, and regularly while there are requests.

        Raises MetadataError.
        """
        self._empty.clear()
        forget = self._access.registry.on_change(self._bookies_changed)
        watch = await watch_with_retries(self._access.metadata, DRAINS, _log.warning)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._work(), name="drains")
                async for _ in watch:
                    self._wake.set()
        finally:
            forget()
            await watch.close()

    def _bookies_changed(self) -> None:
        for bookie in self._access.registry.writable:
            self._shut.discard(bookie)
            self._empty.pop(bookie, None)
        self._wake.set()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            began_s = loop.time()
            try:
                busy = await self.run_pass()
            except MetadataFormatError as error:
                _log.error("drains are paused until an administrator repairs the drain requests: %s", error)
                busy = False
            took_s = loop.time() - began_s
            try:
                async with asyncio.timeout(max(DRAIN_TICK_S, 5 * took_s) if busy else None):
                    await self._wake.wait()
            except TimeoutError:
                continue
            # bookies that keep registering and vanishing must not cause walks without a pause
            await asyncio.sleep(took_s)

    async def run_pass(self) -> bool:
        """Do one pass over all drain requests. Return False if there are none. Raises MetadataError."""
        drains = await self._drains.read()
        self._stats.drains = len(drains)
        if not drains:
            self._stats.drain_ledgers_left = self._stats.drain_bytes_left = 0
            return False
        enabled = await self._controls.is_enabled()
        self._shut = set(leaving(drains) - self._access.registry.writable)
        censuses = await self._walk(drains, mark=enabled)
        registry = self._access.registry
        needed = {bookie: census.ensemble_max for bookie, census in censuses.items()}
        now = await self._drains.change(lambda found: start_leaving(found, registry.writable, needed))
        if leaving(now) != leaving(drains):
            _log.warning("bookies start to leave: %s", ", ".join(sorted(leaving(now) - leaving(drains))))
            self._wake.set()
        for drain in now:
            census = censuses.get(drain.bookie)
            if census is not None:
                await self._follow_up(drain, census, leaving(now), enabled=enabled)
        self._stats.drain_ledgers_left = sum(census.ledgers for census in censuses.values())
        self._stats.drain_bytes_left = sum(census.size_bytes for census in censuses.values())
        return True

    # ---- one bookie
    async def _follow_up(self, drain: Drain, census: Census, others: frozenset[BookieId], *, enabled: bool) -> None:
        """Take the next step of one drain and publish its progress."""
        bookie = drain.bookie
        refused: str | None = None
        emptied = False
        try:
            if drain.wish is Wish.CANCEL:
                if await self._undo(drain):
                    return
                refused = "it is away and becomes writable when it is back; decommission it if it does not come back"
            elif drain.leaving:
                await self._keep_read_only(drain)
        except LedgerError as error:
            refused = f"{error}; or use `quire bookie read-only` where it runs"
        if drain.leaving and drain.wish is not Wish.CANCEL:
            # A bookie that was writable when the walk began may have joined a ledger behind the walk's position.
            is_empty = not census.ledgers and bookie in self._shut
            self._empty[bookie] = self._empty.get(bookie, 0) + 1 if is_empty else 0
            emptied = self._empty[bookie] >= _EMPTY_WALKS
        if emptied and drain.wish is Wish.DECOMMISSION and await self._forget(drain):
            return
        around = DrainContext(self._access.registry.writable, others, enabled, refused)
        before = await self._drains.progress_of(bookie)
        seen = progress(drain, census, around, before, self._access.clock.now_ms(), emptied=emptied)
        if before is None or before.state != seen.state or before.blocked_by != seen.blocked_by:
            _log.info("bookie %s: %s, %d ledgers left; %s", bookie, seen.state, seen.ledgers_left, seen.blocked_by)
        await self._drains.note(seen)

    async def _keep_read_only(self, drain: Drain) -> None:
        """Make the bookie read-only whenever it is writable. Raises LedgerError.

        Recorded first, because the cancellation of the drain must know it.
        """
        bookie = drain.bookie
        if bookie not in self._access.registry.writable:
            return
        if not drain.made_read_only:
            await self._drains.change(
                lambda found: tuple(
                    replace(one, made_read_only=True) if one.bookie == bookie and one.leaving else one for one in found
                )
            )
        if bookie in await self._drains.leaving():  # another auditor may have ended the drain meanwhile
            await self._set_read_only(bookie, True)

    async def _undo(self, drain: Drain) -> bool:
        """Undo a cancelled drain. Return False if the bookie is away, so that it cannot be done yet.

        Raises LedgerError.

        The drain of a bookie that never returns stays until an administrator decommissions it or deletes its cookie.
        """
        bookie, registry = drain.bookie, self._access.registry
        if drain.made_read_only and await self._access.metadata.get(layout.cookie_path(bookie)) is not None:
            if bookie not in self._access.registered:
                return False
            try:
                # Also if the bookie seems writable: an earlier read-only request may take effect a moment later.
                await self._set_read_only(bookie, False)
            except LedgerError:
                if bookie not in registry.writable:
                    raise
        await self._delete_request(drain)
        _log.warning("bookie %s is no longer drained", bookie)
        return True

    async def _forget(self, drain: Drain) -> bool:
        """Delete the cookie of an emptied bookie, then its request.

        Return False while the bookie still runs, or if the request has changed.
        """
        bookie, cookies = drain.bookie, Cookies(self._access.metadata)
        node = await self._access.metadata.get(DRAINS)
        wishes = () if node is None else decode_drains(node.value)
        if node is None or all((one.bookie, one.wish) != (bookie, Wish.DECOMMISSION) for one in wishes):
            return False
        try:
            try:
                await cookies.delete(bookie, Check(DRAINS, node.version))
            except NodeMissingError:
                await cookies.check_free(bookie)  # the cookie is gone already
        except CookieInUseError as error:
            _log.debug("the cookie of %s stays: %s", bookie, error)
            return False
        with contextlib.suppress(MetadataFormatError):  # the rack map is invalid and needs an administrator
            await change_rack_map(self._access.metadata, self._access.chance, partial(without_place, bookie=bookie))
        await self._delete_request(drain)
        _log.warning("bookie %s is decommissioned: no ledger names it, its cookie is gone", bookie)
        return True

    async def _delete_request(self, drain: Drain) -> None:
        """Delete the request unless an administrator replaced it meanwhile."""
        done = (drain.bookie, drain.wish, drain.since_ms)
        await self._drains.change(
            lambda found: tuple(one for one in found if (one.bookie, one.wish, one.since_ms) != done)
        )
        await self._drains.forget(drain.bookie)
        self._empty.pop(drain.bookie, None)

    # ---- all ledgers
    async def _walk(self, drains: tuple[Drain, ...], *, mark: bool) -> dict[BookieId, Census]:
        """Walk through all ledgers once. Mark ledgers of leaving bookies, up to DRAIN_MARKS_MAX of each bookie."""
        censuses = {one.bookie: Census() for one in drains}
        gone = leaving(drains)
        # A waiting bookie needs the largest ensemble of all ledgers; otherwise most ledgers need not be decoded.
        needles = [bookie.encode() for bookie in gone] if gone == censuses.keys() else [b""]
        marked = await self._marked(gone)
        noted = await self._noted()
        async for folder in ledger_folders(self._access.metadata):
            async for page in self._access.metadata.scan(folder):
                due = [
                    wanted
                    for node in page
                    if any(needle in node.value for needle in needles)
                    and (wanted := self._count(node, censuses, gone, marked if mark else None, noted)) is not None
                ]
                for at in range(0, len(due), AUDITOR_MARKS_AT_ONCE):
                    part = due[at : at + AUDITOR_MARKS_AT_ONCE]
                    made = await asyncio.gather(
                        *(self._access.marks.mark(ledger, bookies, again=False) for ledger, bookies in part)
                    )
                    self._stats.marks_made += sum(made)
        return censuses

    def _count(
        self,
        node: Node,
        censuses: dict[BookieId, Census],
        gone: frozenset[BookieId],
        marked: dict[BookieId, set[LedgerId]] | None,
        noted: set[LedgerId],
    ) -> tuple[LedgerId, list[BookieId]] | None:
        """Count one ledger. Return it with the leaving bookies that it must be marked for; None if it needs no mark."""
        ledger = layout.ledger_of_path(node.key)
        if ledger is None:
            return None
        try:
            metadata = decode_ledger_metadata(node.value)
        except MetadataFormatError as error:
            # The ledger may name any of them: it counts for all bookies whose id its bytes contain.
            for bookie, census in censuses.items():
                if bookie.encode() in node.value:
                    census.ledgers += 1
                    census.undecodable += 1
            _log.error("ledger %d is skipped: %s", ledger, error)
            return None
        for bookie, census in censuses.items():
            census.count_ledger(
                ledger,
                metadata,
                bookie,
                unrecoverable=ledger in noted,
                unmarked=self._access.settings.unmarked_write_quorum,
            )
        if marked is None:
            return None
        due = [bookie for bookie in sorted(gone) if names(metadata, bookie) and ledger not in marked[bookie]]
        if not any(len(marked[bookie]) < DRAIN_MARKS_MAX for bookie in due):
            return None
        for bookie in due:
            marked[bookie].add(ledger)
        return ledger, due

    async def _marked(self, gone: frozenset[BookieId]) -> dict[BookieId, set[LedgerId]]:
        """Return by leaving bookie the ledgers that are marked for it, at most DRAIN_MARKS_MAX."""
        found: dict[BookieId, set[LedgerId]] = {bookie: set() for bookie in gone}
        if gone:
            async for page in self._access.marks.marks():
                for mark in page:
                    for bookie in gone & set(mark.bookies):
                        if len(found[bookie]) < DRAIN_MARKS_MAX:
                            found[bookie].add(mark.ledger)
        return found

    async def _noted(self) -> set[LedgerId]:
        """Return the ledgers that cannot be restored and whose loss no administrator accepted."""
        found: set[LedgerId] = set()
        async for page in self._notes.pages():
            found.update(note.ledger for note in page if note.accepted_ms is None)
            if len(found) >= REPLICATION_REMEMBERED_MAX:
                break
        return found
