"""Tracks the known damage of one bookie: found by scrub or read, reported to auto-recovery, checked until repaired.

Owns the list of findings. Auto-recovery gets each finding within seconds (`damage_marks`), and again while it lasts. A
finding leaves the list when its entries read intact again, or when a whole round of the scrub no longer finds it.
Repairs nothing, and never delays a read: `read_failed` only adds to the list.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from quire_bookie import limits
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import DamagedError, NoSuchEntryError, NoSuchLedgerError, StorageError, UnknownLedgerStateError
from quire_bookie.model import Buffer, EntryId, LedgerId
from quire_bookie.server.upkeep.damage_marks import DamageMarks
from quire_bookie.storage.scrub import INDEX_PATH, Damage

_log = logging.getLogger("quire.server.scrubbing")

CheckDigest = Callable[[LedgerId, EntryId, memoryview], Awaitable[str | None]]
"""Checks an entry against its ledger's digest; returns the error, or None."""


class CheckedStorage(Protocol):
    """The methods of the ledger storage that the report uses."""

    async def read(self, ledger: LedgerId, entry: EntryId, /) -> Buffer:
        """Return a stored entry."""
        ...

    def forget_read(self, ledger: LedgerId, first: EntryId, last: EntryId, /) -> None:
        """Serve these entries from the disk again, not from the read cache."""
        ...


@dataclass(slots=True)
class DamageStats:
    """Holds counters since the start, for the metrics collector."""

    damages: int = 0
    by_reads: int = 0
    """Of `damages`, those first found by a read."""
    repaired: int = 0
    """Findings whose entries read intact again."""


class DamageReport:
    """Tracks, reports and checks findings. `marks` None: auto-recovery gets no report."""

    def __init__(self, storage: CheckedStorage, check_digest: CheckDigest, marks: DamageMarks | None = None) -> None:
        self._storage = storage
        self._check_digest = check_digest
        self._marks = marks
        self._known: dict[Damage, None] = {}
        self._before: dict[Damage, None] = {}
        self._wake = asyncio.Event()
        self._checked_s = 0.0
        self._reported_s = 0.0
        self.stats = DamageStats()

    @property
    def findings(self) -> list[Damage]:
        """At most `limits.SCRUB_REPORT_MAX` findings: of this round and, until it ends, of the last one."""
        return [*self._known, *(damage for damage in self._before if damage not in self._known)][
            : limits.SCRUB_REPORT_MAX
        ]

    # ---- findings
    def begin_round(self) -> None:
        """Start to collect the findings of a round of the scrub."""
        self._before = dict.fromkeys(self.findings)
        self._known = {}

    def end_round(self) -> list[Damage]:
        """Drop findings that the round did not find again; return the others."""
        self._before = {}
        return self.findings

    def found(self, damage: Damage) -> None:
        """Note a finding of the scrub."""
        self._note(damage)

    def read_failed(self, ledger: LedgerId, entry: EntryId, error: DamagedError) -> None:
        """Note that a read found damage. `entry` -1: the bytes that list the entries are damaged."""
        for known in (self._known, self._before):
            if any(damage.covers(ledger, entry) for damage in known):
                return
        self.stats.by_reads += self._note(Damage(ledger, entry, entry, error.path, error.offset, str(error)))

    def _note(self, damage: Damage) -> bool:
        """Add a finding; return whether it is new."""
        if damage in self._known or len(self._known) >= limits.SCRUB_REPORT_MAX:
            return False
        self._known[damage] = None
        if damage.ledger >= 0 and damage.first >= 0:
            # An intact copy in the cache would hide the damage from auto-recovery, until a restart loses it.
            self._storage.forget_read(damage.ledger, damage.first, damage.last)
        self._mark(damage)
        if damage in self._before:
            return False
        self.stats.damages += 1
        _log.error("damage: %s", damage.line())
        return True

    def _mark(self, damage: Damage) -> None:
        if self._marks is not None:
            self._marks.found(damage)
            self._wake.set()

    # ---- reporting and checking
    async def run(self) -> None:
        """Report findings and check them again, until cancelled."""
        while True:
            if not self.findings and not self._due:
                await self._wake.wait()
            self._wake.clear()
            await self.report()
            now_s = asyncio.get_running_loop().time()
            if now_s - self._checked_s >= limits.DAMAGE_CHECK_INTERVAL_S:
                await self.check_again()
                self._checked_s = asyncio.get_running_loop().time()
            await asyncio.sleep(limits.DAMAGE_REPORT_INTERVAL_S)

    @property
    def _due(self) -> int:
        return 0 if self._marks is None else self._marks.due

    async def report(self) -> None:
        """Report pending findings to auto-recovery."""
        if self._marks is not None and self._marks.due:
            await self._marks.report()

    async def check_again(self) -> None:
        """Read the damaged entries again. Findings that are repaired leave the list, others are marked again."""
        now_s = asyncio.get_running_loop().time()
        again = now_s - self._reported_s >= limits.DAMAGE_REPORTED_AGAIN_S
        if again:
            self._reported_s = now_s
        for damage in self.findings:
            if damage.ledger < 0 or damage.first < 0:
                continue  # only the next round of the scrub can check it
            if await self._is_repaired(damage):
                self._known.pop(damage, None)
                self._before.pop(damage, None)
                self.stats.repaired += 1
                _log.info("damage is repaired: %s", damage.line())
            elif again:
                self._mark(damage)

    async def _is_repaired(self, damage: Damage) -> bool:
        self._storage.forget_read(damage.ledger, damage.first, damage.last)
        for number in range(damage.first, damage.last + 1):
            entry = EntryId(number)
            try:
                body = await self._storage.read(damage.ledger, entry)
            except NoSuchLedgerError:
                return True  # deleted
            except NoSuchEntryError:
                if damage.path != INDEX_PATH:
                    return False
                continue  # a damaged value of the index covers all ids of its block, also those never added
            except (UnknownLedgerStateError, StorageError, OSError):
                return False
            if await self._check_digest(damage.ledger, entry, memoryview(body)) is not None:
                return False
            await asyncio.sleep(1 / limits.SCRUB_ENTRIES_PER_SECOND)
        return True
