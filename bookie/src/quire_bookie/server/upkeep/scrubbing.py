"""Scrubs the entry logs of one bookie in the background, round after round.

Owns the pace, and the position from which the next process continues; findings go to `damage_report`. Covers the
durable bytes of every log, including logs that are still written; entries newer than the last flush are in the journal.
Checks entries against the digest of their ledger if its metadata allows that: CRC32 and CRC32C, and HMAC with the
ledger's password. Repairs nothing, with one exception: it restores a master key that was lost with damaged entry logs,
because the ledger's metadata proves the key. Never delays an add: it sleeps after each piece of at most a quarter MiB.

    <home>/scrub.position   one line: log, offset, milliseconds since the epoch at which the last round ended (0: none)
"""

import asyncio
import logging
from collections import OrderedDict
from typing import Any, Final

from quire_bookie import limits
from quire_bookie.dataclass import dataclass
from quire_bookie.env.clock import WallClock
from quire_bookie.env.disk import Disk
from quire_bookie.errors import (
    DigestMismatchError,
    MetadataError,
    MetadataFormatError,
    NoSuchLedgerError,
    StorageError,
)
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.model import DigestType, EntryId, LedgerId
from quire_bookie.server.upkeep.damage_marks import DamageMarks
from quire_bookie.server.upkeep.damage_report import DamageReport
from quire_bookie.settings.scrubbing import ScrubbingSettings
from quire_bookie.storage.ledger_storage import LedgerStorage
from quire_bookie.storage.scrub import Damage, Scrub, ScrubPosition, ScrubStats
from quire_bookie.wire.digest import Digest, master_key

POSITION_NAME: Final = "scrub.position"
DIGESTS_MAX: Final = 1024
"""Ledgers whose digest is cached."""
SAVE_EVERY_BYTES: Final = 64 * limits.MIB

_log = logging.getLogger("quire.server.scrubbing")


@dataclass(slots=True)
class ScrubbingStats:
    """Holds counters since the start, for the metrics collector."""

    rounds: int = 0
    logs: int = 0
    bytes_read: int = 0
    entries: int = 0
    digests: int = 0
    keys_restored: int = 0


class Scrubbing:
    """Runs the rounds of the scrub. `damage` holds the findings."""

    def __init__(
        self,
        storage: LedgerStorage[Any],
        metadata: MetadataStore,
        disk: Disk,
        clock: WallClock,
        settings: ScrubbingSettings | None = None,
        marks: DamageMarks | None = None,
    ) -> None:
        """`marks`: reports findings to auto-recovery; None: no report."""
        self._storage = storage
        self._nodes = LedgerNodes(metadata)
        self._disk = disk
        self._clock = clock
        self._settings = settings or ScrubbingSettings()
        self.damage = DamageReport(storage, self._check_digest, marks)
        self._path = f"{storage.home}/{POSITION_NAME}"
        self._digests: OrderedDict[LedgerId, Digest | None] = OrderedDict()
        self._metadata_away_until_s = 0.0
        self._ended_ms = 0
        self._unsaved_bytes = 0
        self._counted = ScrubStats()
        self._work: Scrub | None = None
        self.stats = ScrubbingStats()

    @property
    def ended_ms(self) -> int:
        """When the last round ended or the bookie was created, in milliseconds since the epoch; 0: not yet."""
        return self._ended_ms

    @property
    def position(self) -> ScrubPosition | None:
        """The position of the current round; None between rounds."""
        return None if self._work is None else self._work.position

    async def run(self) -> None:
        """Run rounds until cancelled. A failure is logged, and the round is resumed later."""
        start = await self._load()
        keys_settled = False
        while True:
            keys_settled = keys_settled or await self._settle_keys()
            if not self._settings.interval_s:
                await asyncio.sleep(limits.SCRUB_RETRY_S)
                continue
            due_s = self._ended_ms / 1000 + self._settings.interval_s - self._clock.now_ms() / 1000
            # Due later than in one interval: the clock was set back, so the saved time is meaningless.
            if start == ScrubPosition() and 0 < due_s <= self._settings.interval_s:
                await asyncio.sleep(min(due_s, limits.SCRUB_RETRY_S))  # the clock may be set meanwhile
                continue
            try:
                await self.run_round(start)
                start = ScrubPosition()
            except (StorageError, OSError) as error:
                start = self.position or ScrubPosition()
                _log.warning("the scrub stopped at entry log %d and will continue there: %s", start.log, error)
                await asyncio.sleep(limits.SCRUB_RETRY_S)

    async def run_round(self, start: ScrubPosition | None = None) -> list[Damage]:
        """Run one round from `start` on; return its findings. StorageError, OSError: see `position`."""
        self.damage.begin_round()
        self._counted = ScrubStats()
        self._work = work = self._storage.new_scrub(self.damage.found, self._pace, self._verify)
        work.position = start or ScrubPosition()
        await work.logs(self._storage.scrubbed_logs)
        await work.index_alone(self._storage.has_log)
        for suspect in self._storage.quarantined:
            self.damage.found(Damage(LedgerId(-1), EntryId(-1), EntryId(-1), suspect.path, 0, suspect.reason))
        self._count()
        self._work = None
        self._ended_ms = self._clock.now_ms()
        self.stats.rounds += 1
        await self._save(ScrubPosition())
        found = self.damage.end_round()
        _log.info(
            "scrubbed %d entries, %d with their digest: %s", work.stats.entries, work.stats.digests, _words(found)
        )
        return found

    async def _pace(self, size_bytes: int) -> None:
        entries = 0 if self._work is None else self._work.stats.entries - self._counted.entries
        self._count()
        self._unsaved_bytes += size_bytes
        if self._unsaved_bytes >= SAVE_EVERY_BYTES and self._work is not None:
            await self._save(self._work.position)
        # Small entries cost time of the event loop rather than of the disk: 14 us each, measured.
        await asyncio.sleep(
            max(size_bytes / self._settings.bytes_per_second, entries / limits.SCRUB_ENTRIES_PER_SECOND)
        )

    def _count(self) -> None:
        """Add the counts of the scrub since the last call."""
        if self._work is None:
            return
        now, before, stats = self._work.stats, self._counted, self.stats
        assert now.entries >= before.entries and now.bytes_read >= before.bytes_read, "counters only grow"
        stats.logs += now.logs - before.logs
        stats.bytes_read += now.bytes_read - before.bytes_read
        stats.entries += now.entries - before.entries
        stats.digests += now.digests - before.digests
        self._counted = ScrubStats(now.logs, now.bytes_read, now.entries, now.digests)

    # ---- digests
    async def _verify(self, ledger: LedgerId, entry: EntryId, body: memoryview) -> str | None:
        if self._work is not None and await self._digest(ledger) is not None:
            self._work.stats.digests += 1
        return await self._check_digest(ledger, entry, body)

    async def _check_digest(self, ledger: LedgerId, entry: EntryId, body: memoryview) -> str | None:
        """Return the error of an entry; None if it is intact or its digest cannot be checked."""
        digest = await self._digest(ledger)
        if digest is None:
            return None
        try:
            digest.decode_entry(body, ledger, entry)
        except DigestMismatchError as error:
            return str(error)
        return None

    async def _digest(self, ledger: LedgerId) -> Digest | None:
        """Return the digest of a ledger's entries; None if they cannot be checked."""
        if ledger in self._digests:
            return self._digests[ledger]
        now_s = asyncio.get_running_loop().time()
        if now_s < self._metadata_away_until_s:
            return None
        digest = None
        try:
            metadata = (await self._nodes.read(ledger)).value
            if metadata.has_password and metadata.digest_type is not DigestType.DUMMY:
                digest = Digest(metadata.digest_type, metadata.password)
        except NoSuchLedgerError:
            _log.debug("ledger %d was deleted: left to garbage collection", ledger)
        except MetadataFormatError as error:
            _log.debug("the digests of ledger %d are not checked: %s", ledger, error)
        except MetadataError as error:
            _log.debug("digests are temporarily not checked: %s", error)
            self._metadata_away_until_s = asyncio.get_running_loop().time() + limits.SCRUB_RETRY_S
            return None
        self._digests[ledger] = digest
        if len(self._digests) > DIGESTS_MAX:
            self._digests.popitem(last=False)
        return digest

    # ---- keys that a rebuild of the index did not find
    async def _settle_keys(self) -> bool:
        """Restore missing keys, once per start: only a rebuild or a replay in limbo loses them. False: try again."""
        try:
            for ledger in await self._storage.ledgers_without_key():
                await self._restore_key(ledger)
        except (MetadataError, StorageError, OSError) as error:
            _log.warning("could not restore keys; ledgers without a key still refuse writers: %s", error)
            return False
        return True

    async def _restore_key(self, ledger: LedgerId) -> None:
        try:
            metadata = (await self._nodes.read(ledger)).value
            if metadata.has_password:
                await self._storage.adopt_key(ledger, master_key(metadata.password))
                self.stats.keys_restored += 1
        except NoSuchLedgerError:
            _log.debug("ledger %d was deleted: left to garbage collection", ledger)
        except MetadataFormatError as error:
            _log.error("could not restore the key of ledger %d: %s", ledger, error)

    # ---- the saved position
    async def _load(self) -> ScrubPosition:
        if not await self._disk.exists(self._path):
            self._ended_ms = self._clock.now_ms()  # a new bookie has nothing to scrub for one interval
            return ScrubPosition()
        try:
            log, offset, ended_ms = map(int, (await self._disk.read_file(self._path)).split())
        except ValueError:
            _log.warning("%s does not parse: the scrub starts from the beginning", self._path)
            return ScrubPosition()
        self._ended_ms = ended_ms
        return ScrubPosition(log, offset)

    async def _save(self, position: ScrubPosition) -> None:
        self._unsaved_bytes = 0
        try:
            await self._disk.replace_file(self._path, f"{position.log} {position.offset} {self._ended_ms}\n".encode())
        except StorageError as error:
            _log.debug("no space to save the position of the scrub: %s", error)


def _words(found: list[Damage]) -> str:
    if not found:
        return "nothing is damaged"
    ledgers = {damage.ledger for damage in found if damage.ledger >= 0}
    return f"{len(found)} damages in {len(ledgers)} ledgers"
