"""Ledgers that the metadata no longer names: kept in full for a time, because the metadata may be wrong.

Owns one record per such ledger, and the clock that measures their time. A ledger in quarantine is *held*: its entries,
blocks, key and state stay, reads are served, compaction and scrub treat it as any other, and only normal adds are
refused, because the ledger is fenced. An *undeleted* ledger left quarantine at an administrator's request: it is not
collected until the metadata names it again, or until the requested time has passed. When a ledger enters quarantine,
leaves it or is deleted, is decided by `server.upkeep.garbage_collection`.

The clock counts the milliseconds in which the metadata was reliable, as measured by the collector. It is not a wall
clock: time while the bookie is down does not count, and jumps of the wall clock have no effect.

    'q' ledger:u64   0  crc32c u32 over key and bytes 4..   4  version u8 = 1   5  state u8 (1 quarantined, 2 undeleted)
                     6  since, wall clock, ms since the epoch i64   14  since, by the clock above, ms u64
                     22  undeleted: for how long, ms u64 (0: until the metadata names it)   30  entries u64
                     38  bytes u64   46  reason, UTF-8
    'm' quarantine   0  crc32c u32 over key and bytes 4..   4  version u8 = 1   5  the clock, ms u64     (little-endian)

Each change is one index commit. The records exist only in the index: after a rebuild from the entry logs these ledgers
are held as any other, and their quarantine starts again when the collector finds them missing. A record that does not
match its checksum counts as *undeleted* without an end, which it may have been: such a ledger is not deleted
automatically.
"""

import logging
import struct
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any, Final

from quire_bookie.crc import crc32c
from quire_bookie.dataclass import dataclass
from quire_bookie.env.clock import WallClock
from quire_bookie.env.index_store import IndexStore
from quire_bookie.errors import DamagedError, DiskFullError, NoSuchLedgerError
from quire_bookie.limits import QUARANTINE_REASON_BYTES_MAX
from quire_bookie.model import LedgerId
from quire_bookie.storage.entry_ranges import indexed_size
from quire_bookie.storage.flush_worker import FlushWorker
from quire_bookie.storage.formats.index_keys import (
    QUARANTINE_CLOCK_KEY,
    QUARANTINE_END,
    QUARANTINE_START,
    ledger_of_quarantine_key,
    quarantine_key,
    state_key,
)
from quire_bookie.storage.index.index_commits import IndexCommits
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo, LedgerStates, encode_state

QUARANTINE_VERSION: Final = 1
RECORDS_PER_COMMIT: Final = 1000
_CRC = struct.Struct("<I")
_RECORD = struct.Struct("<BBqQQQQ")
_CLOCK = struct.Struct("<BQ")

_log = logging.getLogger("quire.storage.ledger_quarantine")
LoadLedger = Callable[[LedgerId], Coroutine[Any, Any, LedgerInfo | None]]


class QuarantineState(Enum):
    """The state in a record."""

    QUARANTINED = 1
    UNDELETED = 2


@dataclass(frozen=True, slots=True)
class QuarantinedLedger:
    """One record. `since_ms`: wall clock; `since_clock_ms`: quarantine's clock. Entries and bytes: flushed ones."""

    ledger: LedgerId
    state: QuarantineState
    since_ms: int
    since_clock_ms: int
    lasts_ms: int
    entries: int
    size_bytes: int
    reason: str

    @property
    def is_undeleted(self) -> bool:
        """Whether an administrator undeleted the ledger."""
        return self.state is QuarantineState.UNDELETED


def encode_quarantined(one: QuarantinedLedger) -> bytes:
    """Encode the value under the ledger's quarantine key."""
    reason = one.reason.encode()[:QUARANTINE_REASON_BYTES_MAX]
    rest = (
        _RECORD.pack(
            QUARANTINE_VERSION,
            one.state.value,
            one.since_ms,
            one.since_clock_ms,
            one.lasts_ms,
            one.entries,
            one.size_bytes,
        )
        + reason
    )
    return _CRC.pack(crc32c(rest, crc32c(quarantine_key(one.ledger)))) + rest


def decode_quarantined(ledger: LedgerId, value: bytes) -> QuarantinedLedger:
    """Decode a record. DamagedError if it is damaged, or of a later version."""
    head = _CRC.size + _RECORD.size
    if len(value) < head or crc32c(value[4:], crc32c(quarantine_key(ledger))) != _CRC.unpack_from(value)[0]:
        raise DamagedError("index", 0, f"the quarantine record of ledger {ledger} does not match its checksum")
    version, state, *numbers = _RECORD.unpack_from(value, _CRC.size)
    if version != QUARANTINE_VERSION or state not in (1, 2):
        raise DamagedError("index", 0, f"the quarantine record of ledger {ledger} is of version {version}")
    since_ms, since_clock_ms, lasts_ms, entries, size_bytes = numbers
    reason = value[head:].decode("utf-8", "replace")
    return QuarantinedLedger(
        ledger, QuarantineState(state), since_ms, since_clock_ms, lasts_ms, entries, size_bytes, reason
    )


def encode_clock(clock_ms: int) -> bytes:
    """Encode the value under the clock's key."""
    rest = _CLOCK.pack(QUARANTINE_VERSION, clock_ms)
    return _CRC.pack(crc32c(rest, crc32c(QUARANTINE_CLOCK_KEY))) + rest


def decode_clock(value: bytes | None) -> int:
    """Decode the clock; 0 without a value or if it is damaged: `load` then derives the clock from the records."""
    if value is None or len(value) != _CRC.size + _CLOCK.size:
        return 0
    if crc32c(value[4:], crc32c(QUARANTINE_CLOCK_KEY)) != _CRC.unpack_from(value)[0]:
        return 0
    version, clock_ms = _CLOCK.unpack_from(value, _CRC.size)
    return int(clock_ms) if version == QUARANTINE_VERSION else 0


class LedgerQuarantine:
    """Tracks the quarantined and undeleted ledgers of one storage."""

    def __init__(
        self,
        index: IndexStore,
        commits: IndexCommits,
        states: LedgerStates,
        flushes: FlushWorker[Any],
        clock: WallClock,
        load: LoadLedger,
    ) -> None:
        self._index = index
        self._commits = commits
        self._states = states
        self._flushes = flushes
        self._wall = clock
        self._load_ledger = load
        self._known: dict[LedgerId, QuarantinedLedger] = {}
        self._is_loaded = False
        self.clock_ms = 0
        """Milliseconds in which the metadata was reliable while any ledger had a record."""
        self.ledgers = 0
        """Ledgers in quarantine, without undeleted ones."""
        self.size_bytes = 0
        """Their bytes."""

    async def open(self) -> None:
        """Load the records at the start; a bookie whose records cannot be read still serves."""
        try:
            await self.load()
        except DamagedError as error:
            _log.error("no ledger is deleted until the quarantine records can be read: %s", error)

    async def load(self) -> None:
        """Read the records once. DamagedError: the quarantined ledgers are unknown, so nothing may be deleted."""
        if self._is_loaded:
            return
        found: dict[LedgerId, QuarantinedLedger] = {}
        async for key, value in self._index.scan(QUARANTINE_START, QUARANTINE_END):
            ledger = ledger_of_quarantine_key(key)
            try:
                found[ledger] = decode_quarantined(ledger, value)
            except DamagedError as error:
                _log.error("%s; keeping the ledger until the metadata names it or you undelete it for some time", error)
                found[ledger] = QuarantinedLedger(
                    ledger, QuarantineState.UNDELETED, self._wall.now_ms(), 0, 0, 0, 0, "its record is damaged"
                )
        clock_ms = decode_clock(await self._index.get(QUARANTINE_CLOCK_KEY))
        if self._is_loaded:
            return
        # A crash may have kept a record and lost the clock's value of the same time.
        self.clock_ms = max([clock_ms, *(one.since_clock_ms for one in found.values())])
        for one in found.values():
            self._note(one)
        self._is_loaded = True

    async def all(self) -> list[QuarantinedLedger]:
        """Return every record, by ledger. DamagedError."""
        await self.load()
        return [self._known[ledger] for ledger in sorted(self._known)]

    def get(self, ledger: LedgerId) -> QuarantinedLedger | None:
        """Return the record of a ledger. Call after `load`."""
        return self._known.get(ledger)

    def is_kept(self, ledger: LedgerId) -> bool:
        """Return whether the ledger is undeleted and must not be deleted. Call after `load`."""
        known = self._known.get(ledger)
        return known is not None and known.is_undeleted

    def age_ms(self, one: QuarantinedLedger) -> int:
        """Return the age of a record, by the quarantine's clock."""
        return self.clock_ms - one.since_clock_ms

    async def put(self, ledger: LedgerId, reason: str) -> bool:
        """Fence the ledger and put it into quarantine, durably. False: it is not held, or has a record.

        DiskFullError: it has no record, but is fenced. DamagedError, StorageError.
        """
        await self.load()
        entries, size_bytes = await indexed_size(self._index, ledger)
        one = QuarantinedLedger(
            ledger, QuarantineState.QUARANTINED, self._wall.now_ms(), self.clock_ms, 0, entries, size_bytes, reason
        )
        return await self._flushes.exclusive(partial(self._put, one))

    async def _put(self, one: QuarantinedLedger) -> bool:
        info = await self._load_ledger(one.ledger)
        if info is None or info.deleted or one.ledger in self._known:
            return False
        info.fenced = True
        self._states.mark_dirty(info)  # the next flush writes the fence into an entry log, for a rebuild of the index
        await self._commits.commit(
            [(state_key(one.ledger), encode_state(info)), (quarantine_key(one.ledger), encode_quarantined(one))]
        )
        self._note(one)
        return True

    async def undelete(self, ledgers: Sequence[LedgerId], lasts_ms: int = 0) -> list[QuarantinedLedger]:
        """Protect ledgers from collection, durably, until the metadata names them, or for `lasts_ms`.

        Return their new records. NoSuchLedgerError: one of them has no record here, and nothing changed.
        DiskFullError, StorageError.
        """
        await self.load()
        return await self._flushes.exclusive(partial(self._undelete, ledgers, lasts_ms))

    async def _undelete(self, ledgers: Sequence[LedgerId], lasts_ms: int) -> list[QuarantinedLedger]:
        for ledger in ledgers:
            if ledger not in self._known:
                raise NoSuchLedgerError(
                    f"ledger {ledger} is not in quarantine on this bookie; `quire bookie quarantine list` lists the "
                    "ledgers that are"
                )
        found = [
            replace(
                self._known[ledger],
                state=QuarantineState.UNDELETED,
                since_ms=self._wall.now_ms(),
                since_clock_ms=self.clock_ms,
                lasts_ms=lasts_ms,
            )
            for ledger in ledgers
        ]
        for start in range(0, len(found), RECORDS_PER_COMMIT):
            part = found[start : start + RECORDS_PER_COMMIT]
            await self._commits.commit([(quarantine_key(one.ledger), encode_quarantined(one)) for one in part])
            for one in part:
                self._note(one)
        return found

    async def release(self, ledgers: Iterable[LedgerId]) -> None:
        """Remove the records of ledgers, durably: they are held as any other, but stay fenced."""
        await self.load()
        await self._flushes.exclusive(partial(self._release, sorted(ledgers)))

    async def _release(self, ledgers: list[LedgerId]) -> None:
        for start in range(0, len(ledgers), RECORDS_PER_COMMIT):
            part = ledgers[start : start + RECORDS_PER_COMMIT]
            await self._commits.commit([], [quarantine_key(ledger) for ledger in part])
            for ledger in part:
                self.forget(ledger)

    async def advance(self, elapsed_ms: int) -> None:
        """Advance the clock by a time of reliable metadata, durably if there is space; only if there are records."""
        await self.load()
        if self._known and elapsed_ms > 0:
            await self._flushes.exclusive(partial(self._advance, elapsed_ms))

    async def _advance(self, elapsed_ms: int) -> None:
        self.clock_ms += elapsed_ms
        try:
            await self._commits.commit([(QUARANTINE_CLOCK_KEY, encode_clock(self.clock_ms))])
        except DiskFullError as error:
            # Deletions must continue, to free the disk; after a restart this time has to pass again.
            _log.warning("no space to store the clock of the quarantine: %s", error)

    def keys_of(self, ledger: LedgerId) -> list[bytes]:
        """Return the keys to delete in the commit that deletes the ledger. Call after `load`."""
        return [quarantine_key(ledger)] if ledger in self._known else []

    def forget(self, ledger: LedgerId) -> None:
        """Forget a record that was removed from the index."""
        one = self._known.pop(ledger, None)
        if one is not None and not one.is_undeleted:
            self.ledgers -= 1
            self.size_bytes -= one.size_bytes
            assert self.ledgers >= 0 and self.size_bytes >= 0

    def _note(self, one: QuarantinedLedger) -> None:
        self.forget(one.ledger)
        self._known[one.ledger] = one
        if not one.is_undeleted:
            self.ledgers += 1
            self.size_bytes += one.size_bytes
