"""Finds damage before a reader does: checks every durable record of every log, and the index against the logs.

Owns the mapping from a finding to ledgers and ids. Read-only. Works piece by piece at the pace of its caller, so that
adds and reads are not delayed, and can continue at the position where an earlier pass stopped.

A record of a live ledger must be reachable through the index, or superseded by another copy. Damaged bytes are reported
for the entries that the index has there, or else for the entries that the log's map counts.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from typing import Final

from quire_bookie.dataclass import dataclass
from quire_bookie.env.disk import Disk
from quire_bookie.env.index_store import IndexStore
from quire_bookie.errors import DamagedError
from quire_bookie.model import NO_ENTRY, EntryId, LedgerId
from quire_bookie.storage.formats.block_index import Block, decode_block
from quire_bookie.storage.formats.index_keys import (
    BLOCK_MASK,
    BLOCK_SHIFT,
    block_key,
    block_of_key,
    ledger_of_block_key,
    state_key,
)
from quire_bookie.storage.formats.log_catalog import LogState
from quire_bookie.storage.formats.log_format import FILE_LEDGER, LOG_HEADER_BYTES, STATE_ENTRY, LedgerSpan
from quire_bookie.storage.ledgers.ledger_states import is_deleted
from quire_bookie.storage.logs.log_walk import Gap, LogAccount, LogWalk, Piece, WalkedRecord, open_log

BLOCKS_PER_GET: Final = 256
INDEX_PATH: Final = "index"
"""Reported as the path of a damaged value of the index, which consists of many files."""
BLOCKS_START: Final = b"b"
BLOCKS_END: Final = b"c"

Pace = Callable[[int], Awaitable[None]]
"""Called with the bytes of each piece; waits as long as the rate limit requires."""
Verify = Callable[[LedgerId, EntryId, memoryview], Awaitable[str | None]]
"""Checks an entry against its ledger's digest; returns the error, or None."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One finding. `ledger` is -1 if the ledger is unknown; `first` is -1 if the damage is not in an entry."""

    ledger: LedgerId
    first: EntryId
    last: EntryId
    path: str
    offset: int
    what: str

    def covers(self, ledger: LedgerId, entry: EntryId) -> bool:
        """Return whether the finding covers this entry."""
        return self.ledger == ledger and self.first <= entry <= self.last

    def line(self) -> str:
        """Return the finding as a log line."""
        where = f"{self.path} at {self.offset}: {self.what}"
        if self.ledger < 0:
            return where
        if self.first < 0:
            return f"ledger {self.ledger}: {where}"
        return f"ledger {self.ledger} entries {self.first} to {self.last}: {where}"


@dataclass(slots=True)
class ScrubStats:
    """Counters of a scrub, for reports and metrics."""

    logs: int = 0
    bytes_read: int = 0
    entries: int = 0
    digests: int = 0
    """Entries whose digest was checked as well."""


@dataclass(frozen=True, slots=True)
class ScrubbedLog:
    """A log to scrub. `durable_bytes`: the committed bytes of a log that is still written; None once it is sealed."""

    path: str
    durable_bytes: int | None = None

    @classmethod
    def of(cls, state: LogState, path: str) -> "ScrubbedLog":
        """Return the log at `path` whose state the index has committed."""
        return cls(path, None if state.sealed else state.durable_bytes)


@dataclass(frozen=True, slots=True)
class ScrubPosition:
    """Where a pass continues: logs below `log` are done, and in `log` all records below `offset`."""

    log: int = 0
    offset: int = 0


@dataclass(slots=True)
class Scrub:
    """One pass over the logs and the index. `report` is called for each finding."""

    disk: Disk
    index: IndexStore
    report: Callable[[Damage], None]
    pace: Pace
    verify: Verify | None = None
    stats: ScrubStats = field(default_factory=ScrubStats)
    position: ScrubPosition = ScrubPosition()

    async def logs(self, logs: Callable[[], Mapping[int, ScrubbedLog]]) -> None:
        """Scrub every log from `position` on, ascending. Calls `logs` again before each, as logs come and go."""
        while True:
            start, known = self.position, logs()
            log = min((each for each in known if each >= start.log), default=None)
            if log is None:
                return
            await self.log(log, known[log], start.offset if log == start.log else 0)
            self.position = ScrubPosition(log + 1, 0)

    async def log(self, log: int, scrubbed: ScrubbedLog, start: int = 0) -> None:
        """Scrub one log. A log that disappears meanwhile was compacted or dropped, which is not a finding."""
        path, durable_bytes = scrubbed.path, scrubbed.durable_bytes
        try:
            walked = await open_log(self.disk, path)
        except DamagedError as error:
            if await self.disk.exists(path):
                self.report(Damage(FILE_LEDGER, NO_ENTRY, NO_ENTRY, path, 0, str(error)))
            return
        try:
            if durable_bytes is not None:
                walked.map_offset = None  # a seal that no commit names was interrupted by a crash, or is being written
                # Bytes after the durable ones belong to a running flush, or to one that a crash interrupted.
            walk, account = LogWalk(walked, start, durable_bytes), LogAccount(walked)
            async for piece in walk.pieces():
                account.add(piece)
                await self._piece(log, path, piece)
                self.position = ScrubPosition(log, walk.offset)
                self.stats.bytes_read += piece.size_bytes
                await self.pace(piece.size_bytes)
            size = walked.size_bytes
        finally:
            await walked.file.close()
        self.stats.logs += 1
        if durable_bytes is not None and size < durable_bytes:
            account.gaps.append(Gap(size, durable_bytes))
        elif durable_bytes is None and not walk.reached_map and not account.gaps:
            self.report(
                Damage(FILE_LEDGER, NO_ENTRY, NO_ENTRY, path, size, "the map and the seal at its end are missing")
            )
        if account.gaps and await self.disk.exists(path):
            complete = start <= LOG_HEADER_BYTES
            await self._name_gaps(log, path, account, durable_bytes if complete else -1)

    # ---- intact records
    async def _piece(self, log: int, path: str, piece: Piece) -> None:
        by_block: dict[bytes, list[WalkedRecord]] = {}
        for record in piece.records:
            if record.ledger != FILE_LEDGER and record.entry != STATE_ENTRY:
                by_block.setdefault(block_key(record.ledger, record.entry >> BLOCK_SHIFT), []).append(record)
        keys = list(by_block)
        for start in range(0, len(keys), BLOCKS_PER_GET):
            part = keys[start : start + BLOCKS_PER_GET]
            for key, block in zip(part, await self._blocks(part), strict=True):
                await self._compare(log, path, key, block, by_block[key])

    async def _compare(
        self, log: int, path: str, key: bytes, block: Block | DamagedError | None, records: list[WalkedRecord]
    ) -> None:
        """Compare the records of one block with the index."""
        if isinstance(block, DamagedError):
            self._report_block(key, str(block))
            return
        places = _places(block) if block is not None else {}
        unreachable: list[WalkedRecord] = []
        for record in records:
            place = places.get(record.entry & BLOCK_MASK)
            self.stats.entries += 1
            if place is None:
                if block is None or not block.lost:  # a block that lost a part already reports that to every reader
                    unreachable.append(record)
            elif place == (log, record.offset) and self.verify is not None:
                wrong = await self.verify(record.ledger, record.entry, record.body)
                if wrong is not None:
                    self.report(Damage(record.ledger, record.entry, record.entry, path, record.offset, wrong))
        if unreachable and await self._is_live(records[0].ledger):
            again = await self._blocks([key])
            known = _places(again[0]) if isinstance(again[0], Block) else {}
            unreachable = [record for record in unreachable if record.entry & BLOCK_MASK not in known]
            for record in unreachable:
                what = "the entry is missing from the index; rebuild the index"
                self.report(Damage(record.ledger, record.entry, record.entry, path, record.offset, what))

    async def _blocks(self, keys: list[bytes]) -> list[Block | DamagedError | None]:
        found: list[Block | DamagedError | None] = []
        try:
            values = await self.index.get_many(keys)
        except DamagedError as error:
            if len(keys) == 1:
                return [error]
            for key in keys:
                found += await self._blocks([key])
            return found
        for key, value in zip(keys, values, strict=True):
            try:
                found.append(None if value is None else decode_block(key, value))
            except DamagedError as error:
                found.append(error)
        return found

    async def _is_live(self, ledger: LedgerId) -> bool:
        try:
            value = await self.index.get(state_key(ledger))
            return value is not None and not is_deleted(ledger, value)
        except DamagedError:
            return True

    # ---- damaged ones
    async def _name_gaps(self, log: int, path: str, account: LogAccount, durable_bytes: int | None) -> None:
        """Report the gaps with their ledgers and entries. `durable_bytes` -1: a partial walk, without counts."""
        expected = None
        if durable_bytes != -1:
            expected = account.expected(sealed=durable_bytes is None, durable_bytes=durable_bytes or 0)
        named: set[int] = set()
        spans: dict[LedgerId, LedgerSpan] = dict(account.found if expected is None else expected)
        lost = spans if expected is None else account.losses(expected)
        for ledger in sorted(lost):
            if not await self._is_live(ledger):
                named.update(range(len(account.gaps)))  # of a deleted ledger: not needed any more
                continue
            for gap, first, last in await self._indexed_in_gaps(log, ledger, spans[ledger], account.gaps):
                named.add(gap)
                self._report_gap(path, account.gaps[gap], ledger, first, last)
            if expected is not None and lost[ledger].size_bytes and not account.losses(expected)[ledger].entries:
                named.update(range(len(account.gaps)))
                what = "a record of the ledger's state is damaged; the index still has it"
                self.report(Damage(ledger, NO_ENTRY, NO_ENTRY, path, account.gaps[0].offset, what))
        for number, gap_left in enumerate(account.gaps):
            if number in named:
                continue
            if gap_left.suspect is None:
                self._report_gap(path, gap_left, FILE_LEDGER, NO_ENTRY, NO_ENTRY)
            elif await self._is_live(gap_left.suspect[0]) and await self._points_to(log, gap_left):
                self._report_gap(path, gap_left, gap_left.suspect[0], gap_left.suspect[1], gap_left.suspect[1])

    async def _points_to(self, log: int, gap: Gap) -> bool:
        """Return whether the index still points to the suspect in the gap."""
        assert gap.suspect is not None
        ledger, entry = gap.suspect
        (block,) = await self._blocks([block_key(ledger, entry >> BLOCK_SHIFT)])
        if not isinstance(block, Block):
            return True
        place = _places(block).get(entry & BLOCK_MASK)
        return place is not None and place[0] == log and gap.offset <= place[1] < gap.end

    async def _indexed_in_gaps(
        self, log: int, ledger: LedgerId, span: LedgerSpan, gaps: list[Gap]
    ) -> list[tuple[int, EntryId, EntryId]]:
        """Return (number of the gap, first, last) of each run of entries that the index has in a gap."""
        found: list[tuple[int, EntryId, EntryId]] = []
        if span.first == NO_ENTRY:
            return found
        low, high = block_key(ledger, span.first >> BLOCK_SHIFT), block_key(ledger, span.last >> BLOCK_SHIFT)
        try:
            async for key, value in self.index.scan(low, high + b"\0"):
                base = block_of_key(key) << BLOCK_SHIFT
                for entry_low, (in_log, offset) in sorted(_places(decode_block(key, value)).items()):
                    gap = _gap_at(gaps, offset) if in_log == log else None
                    if gap is None:
                        continue
                    entry = EntryId(base | entry_low)
                    if found and found[-1][0] == gap and found[-1][2] == entry - 1:
                        found[-1] = (gap, found[-1][1], entry)
                    else:
                        found.append((gap, entry, entry))
        except DamagedError as error:
            self._report_block(low, str(error))
        return found

    def _report_gap(self, path: str, gap: Gap, ledger: LedgerId, first: EntryId, last: EntryId) -> None:
        what = f"{gap.end - gap.offset} bytes hold no intact record"
        self.report(Damage(ledger, first, last, path, gap.offset, what))

    # ---- the index by itself
    async def index_alone(self, exists: Callable[[int], bool]) -> None:
        """Check that every value of the block index is intact, complete, and points to existing logs."""
        try:
            async for key, value in self.index.scan(BLOCKS_START, BLOCKS_END):
                self._check_value(key, value, exists)
                if block_of_key(key) % BLOCKS_PER_GET == 0:
                    await asyncio.sleep(0)
        except DamagedError as error:
            self.report(Damage(FILE_LEDGER, NO_ENTRY, NO_ENTRY, error.path, error.offset, str(error)))

    def _check_value(self, key: bytes, value: bytes, exists: Callable[[int], bool]) -> None:
        try:
            block = decode_block(key, value)
        except DamagedError as error:
            self._report_block(key, str(error))
            return
        if block.lost:
            self._report_block(key, "some of these entries may have been lost to damage")
        for segment in block.segments:
            if not exists(segment.log):
                base = block_of_key(key) << BLOCK_SHIFT
                first, last = EntryId(base | min(segment.lows)), EntryId(base | max(segment.lows))
                what = f"the index points into entry log {segment.log:016x}, which does not exist"
                self.report(Damage(ledger_of_block_key(key), first, last, INDEX_PATH, 0, what))

    def _report_block(self, key: bytes, what: str) -> None:
        base = block_of_key(key) << BLOCK_SHIFT
        self.report(Damage(ledger_of_block_key(key), EntryId(base), EntryId(base | BLOCK_MASK), INDEX_PATH, 0, what))


def _places(block: Block) -> dict[int, tuple[int, int]]:
    """Return (log, offset) by id % 256."""
    return {
        low: (segment.log, offset)
        for segment in block.segments
        for low, offset in zip(segment.lows, segment.offsets(), strict=False)
    }


def _gap_at(gaps: list[Gap], offset: int) -> int | None:
    return next((number for number, gap in enumerate(gaps) if gap.offset <= offset < gap.end), None)
