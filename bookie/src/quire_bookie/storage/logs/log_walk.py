"""Reads an entry log from one end to the other, record by record, and skips damage. Read-only, piece by piece.

Owns the framing of an untrusted log: each record is checked, and after a damaged one the next intact one is searched,
so that a flipped byte costs only the records that contain it. The bytes in between are a `Gap`. Never returns bytes
that fail their checksum. `LogAccount` derives the lost content of the gaps from the log's own maps.
"""

import asyncio
import struct
from collections.abc import AsyncIterator
from dataclasses import field
from typing import Final, NamedTuple

from quire_bookie import limits
from quire_bookie.crc import crc32c
from quire_bookie.dataclass import dataclass
from quire_bookie.env.disk import Disk, DiskFile
from quire_bookie.errors import DamagedError
from quire_bookie.model import NO_ENTRY, EntryId, LedgerId
from quire_bookie.storage.formats import log_format
from quire_bookie.storage.formats.log_format import (
    FILE_LEDGER,
    FOOTER_ENTRY,
    LOG_ALIGNMENT_BYTES,
    LOG_HEADER_BYTES,
    MAP_ENTRY,
    RECORD_HEADER_BYTES,
    SEAL_BYTES,
    STATE_ENTRY,
    LedgerMap,
    LogHeader,
)

PIECE_BYTES: Final = 256 * limits.KIB
RECORDS_PER_PIECE: Final = 512
"""Checking them blocks the event loop for about 1 ms."""
RECORD_BYTES_MAX: Final = 64 * limits.MIB
"""Larger than any entry, state or map: a larger size is damage."""
_STATE_BYTES_MAX: Final = 16 * limits.KIB
_SEARCH_BYTES: Final = 16 * limits.KIB
_RECORD = struct.Struct("<IIqq")
_ENTRY_IDS = struct.Struct(">qq")


class WalkedRecord(NamedTuple):
    """An intact record. `ledger` is -1 for footers and maps."""

    ledger: LedgerId
    entry: EntryId
    offset: int
    body: memoryview


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes without an intact record. `suspect`: the entry that both headers of a damaged record name."""

    offset: int
    end: int
    suspect: tuple[LedgerId, EntryId] | None = None


@dataclass(slots=True)
class Piece:
    """The result of one step of the walk, in the order of the file."""

    records: list[WalkedRecord] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    size_bytes: int = 0


@dataclass(slots=True)
class WalkedLog:
    """An open log with an intact header. `map_offset` is None without an intact seal."""

    path: str
    header: LogHeader
    file: DiskFile
    size_bytes: int
    map_offset: int | None

    @property
    def sealed(self) -> bool:
        """Whether the log has an intact seal."""
        return self.map_offset is not None


async def open_log(disk: Disk, path: str) -> WalkedLog:
    """Open a log to walk it; close `file` afterwards. DamagedError: it cannot be opened, or its header is damaged."""
    try:
        file = await disk.open_read_only(path)
    except OSError as error:
        raise DamagedError(path, 0, f"cannot be opened: {error}") from error
    try:
        size = await file.size()
        header = log_format.decode_header(await read_at(file, 0, LOG_HEADER_BYTES), path)
        try:
            seal = await read_at(file, max(0, size - SEAL_BYTES), SEAL_BYTES)
            map_offset: int | None = log_format.decode_seal(seal, header.log, size, path)
        except DamagedError:
            map_offset = None  # not sealed, or its seal is damaged: the walk finds out
    except BaseException:
        await file.close()
        raise
    return WalkedLog(path, header, file, size, map_offset)


async def read_at(file: DiskFile, offset: int, size: int) -> bytes:
    """Read up to `size` bytes; an error of the device raises DamagedError."""
    try:
        return await file.read(offset, size)
    except OSError as error:
        raise DamagedError(file.path, offset, f"cannot be read: {error}") from error


class LogWalk:
    """Walks a log once, from `start` on, up to `end` or the end of the file."""

    def __init__(self, log: WalkedLog, start: int = LOG_HEADER_BYTES, end: int | None = None) -> None:
        self._file = log.file
        self._salt = log_format.salt_of(log.header)
        self._end = log.size_bytes - (SEAL_BYTES if log.sealed else 0)
        if end is not None:
            self._end = min(self._end, end)
        self._at = max(LOG_HEADER_BYTES, start)
        self._data = b""
        self._base = 0
        self.flush_end = LOG_HEADER_BYTES
        """The end of the last flush with an intact footer."""
        self.footer = 0
        """The offset of that footer."""
        self.reached_map = False
        """Whether the map of the whole log was found, which ends the walk."""

    @property
    def offset(self) -> int:
        """The offset of the next piece."""
        return self._at

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield all pieces, in the order of the file."""
        while self._at < self._end and not self.reached_map:
            yield await self._next_piece()

    async def _next_piece(self) -> Piece:
        piece = Piece()
        start = self._at
        while self._at < self._end and not self.reached_map and len(piece.records) < RECORDS_PER_PIECE:
            size = await self._record_at(self._at)
            if size is None:
                piece.gaps.append(await self._skip_damage())
                break
            self._take(piece, size)
            if self._at - start >= PIECE_BYTES:
                break
        piece.size_bytes = self._at - start
        return piece

    def _take(self, piece: Piece, size: int) -> None:
        """Add the intact record of `size` bytes at the current offset to the piece, and advance."""
        begin = self._at - self._base
        _crc, _size, ledger, entry = _RECORD.unpack_from(self._data, begin)
        body = memoryview(self._data)[begin + RECORD_HEADER_BYTES : begin + size]
        piece.records.append(WalkedRecord(LedgerId(ledger), EntryId(entry), self._at, body))
        offset, self._at = self._at, self._at + size
        if ledger != FILE_LEDGER:
            return
        if entry == MAP_ENTRY:
            self.reached_map = True
        else:
            self._at += log_format.padding_to(self._at, LOG_ALIGNMENT_BYTES)
            self.flush_end, self.footer = self._at, offset

    async def _record_at(self, at: int) -> int | None:
        """Return the size of the intact record at `at`; None if there is none."""
        if not await self._fill(at, RECORD_HEADER_BYTES):
            return None
        size = self._plausible(at)
        if size is None or not await self._fill(at, size):
            return None
        begin = at - self._base
        stored = _RECORD.unpack_from(self._data, begin)[0]
        if crc32c(memoryview(self._data)[begin + 4 : begin + size], self._salt) != stored:
            return None
        return size

    def _plausible(self, at: int) -> int | None:
        """Return the size in the header at `at`, which is in `_data`, if it is plausible."""
        _crc, size, ledger, entry = _RECORD.unpack_from(self._data, at - self._base)
        total = int(size) + RECORD_HEADER_BYTES
        if size > RECORD_BYTES_MAX or at + total > self._end or ledger < FILE_LEDGER or entry < STATE_ENTRY:
            return None
        return total

    async def _fill(self, at: int, size: int) -> bool:
        """Ensure that `size` bytes from `at` on are in `_data`; False if they cannot be read."""
        if self._base <= at and at + size <= self._base + len(self._data):
            return True
        wanted = min(max(size, PIECE_BYTES), self._end - at)
        try:
            self._data = await read_at(self._file, at, wanted)
        except DamagedError:
            try:  # the device may refuse only a part
                self._data = await read_at(self._file, at, min(size, self._end - at))
            except DamagedError:
                self._data = b""
        self._base = at
        return len(self._data) >= size

    async def _skip_damage(self) -> Gap:
        """Move from a damaged record to the next intact one, or to the end."""
        start = self._at
        suspect = await self._suspect(start)
        if suspect is not None:
            ids, following = suspect
            if following == self._end or await self._record_at(following) is not None:
                self._at = following
                return Gap(start, following, ids)
        at = start + 1
        while at < self._end:
            found = await self._search(at, min(at + _SEARCH_BYTES, self._end))
            if found is not None:
                self._at = found
                return Gap(start, found)
            at += _SEARCH_BYTES
            await asyncio.sleep(0)
        self._at = self._end
        return Gap(start, self._end)

    async def _suspect(self, at: int) -> tuple[tuple[LedgerId, EntryId], int] | None:
        """Return the entry of a damaged record, if its header and that of its body agree, and its end."""
        if not await self._fill(at, RECORD_HEADER_BYTES + _ENTRY_IDS.size):
            return None
        total = self._plausible(at)
        if total is None or total < RECORD_HEADER_BYTES + _ENTRY_IDS.size:
            return None
        ledger, entry = _RECORD.unpack_from(self._data, at - self._base)[2:]
        if _ENTRY_IDS.unpack_from(self._data, at - self._base + RECORD_HEADER_BYTES) != (ledger, entry):
            return None
        return (LedgerId(ledger), EntryId(entry)), at + total

    async def _search(self, start: int, end: int) -> int | None:
        """Return the offset of the first intact record that starts in [start, end)."""
        for at in range(start, end):
            if self._base <= at and at + RECORD_HEADER_BYTES <= self._base + len(self._data):
                if self._plausible(at) is None:
                    continue
            elif not await self._fill(at, RECORD_HEADER_BYTES):
                return None  # the device cannot read these bytes, or the file ends
            if not await self._looks_like_a_record(at):
                continue
            if await self._record_at(at) is not None:
                return at
        return None

    async def _looks_like_a_record(self, at: int) -> bool:
        """Check cheaply whether a record may start at `at`, before its bytes are read and checksummed."""
        total = self._plausible(at)
        if total is None:
            return False
        ledger, entry = _RECORD.unpack_from(self._data, at - self._base)[2:]
        if ledger == FILE_LEDGER:
            return entry in (FOOTER_ENTRY, MAP_ENTRY)
        if entry == STATE_ENTRY:
            return total <= _STATE_BYTES_MAX
        return await self._suspect(at) is not None


@dataclass(slots=True)
class LedgerLoss:
    """Records of a ledger that a log's maps count and the walk did not find."""

    first: EntryId
    last: EntryId
    entries: int
    size_bytes: int
    suspects: list[EntryId] = field(default_factory=list)
    """The lost entries, if the ids of all of them are known."""


class LogAccount:
    """Compares the records that a walk found with the log's own maps: the footers, and the map once it is sealed."""

    def __init__(self, log: WalkedLog) -> None:
        self._log = log
        self.found: LedgerMap = {}
        self.gaps: list[Gap] = []
        self._counted: LedgerMap | None = {}  # by the intact footers so far; None: an earlier footer was lost
        self._last_footer = 0
        self._flushed: LedgerMap = {}  # found up to the last footer
        self._compared = self.found  # compared by `losses`
        self._since: LedgerMap = {}  # found since the last footer
        self._gaps_since: list[tuple[int, LedgerMap]] = []  # each with the records between the last footer and the gap
        self._whole: LedgerMap | None = None
        self._flush_end = LOG_HEADER_BYTES

    def add(self, piece: Piece) -> None:
        """Count a piece, whose records precede its gap."""
        note = log_format.note_entries
        for record in piece.records:
            ledger, entry, _offset, body = record
            if ledger == FILE_LEDGER:
                self._add_map(record)
                continue
            size = len(body) + RECORD_HEADER_BYTES
            one = (NO_ENTRY, NO_ENTRY, 0, size) if entry == STATE_ENTRY else (entry, entry, 1, size)
            note(self.found, ledger, *one)
            note(self._since, ledger, *one)
        for gap in piece.gaps:
            self._add_gap(gap)

    def _add_gap(self, gap: Gap) -> None:
        self.gaps.append(gap)
        before: LedgerMap = {}
        log_format.merge_map(before, self._since)
        self._gaps_since.append((gap.offset, before))

    def _add_map(self, record: WalkedRecord) -> None:
        size = len(record.body) + RECORD_HEADER_BYTES
        try:
            spans, previous = log_format.decode_map(record.body, self._log.path, record.offset)
        except DamagedError:  # despite a valid checksum: written by a later version, or by a bug
            self._add_gap(Gap(record.offset, record.offset + size))
            return
        if record.entry == MAP_ENTRY:
            self._whole = spans
            return
        if not previous:
            self._counted = {}
        elif previous != self._last_footer:
            lost_only_a_footer = len(self._gaps_since) == 1 and self._gaps_since[0][0] == previous
            if self._counted is not None and lost_only_a_footer:
                log_format.merge_map(self._counted, self._gaps_since[0][1])
            else:
                self._counted = None
        if self._counted is not None:
            log_format.merge_map(self._counted, spans)
        log_format.merge_map(self._flushed, self._since)
        self._last_footer, self._since, self._gaps_since = record.offset, {}, []
        end = record.offset + size
        self._flush_end = end + log_format.padding_to(end, LOG_ALIGNMENT_BYTES)

    def expected(self, *, sealed: bool, durable_bytes: int) -> LedgerMap | None:
        """Return the content of the log according to its own maps; None if they do not determine it.

        `sealed`: the log is known to be sealed, even if its end is damaged; otherwise `durable_bytes` were durable.
        """
        if self._whole is not None:
            return self._whole
        if sealed or self._log.sealed:
            gaps = self._gaps_since
            if self._counted is None or len(gaps) != 1 or gaps[0][0] != self._log.map_offset:
                return None
            log_format.merge_map(self._counted, gaps[0][1])  # only the map itself is damaged
            return self._counted
        # No footer counts the records that a crash left after the last flush; they must not offset losses.
        self._compared = self._flushed
        return self._counted if self._flush_end >= durable_bytes else None

    def losses(self, expected: LedgerMap) -> dict[LedgerId, LedgerLoss]:
        """Return the ledgers with missing records, compared with `expected`."""
        lost: dict[LedgerId, LedgerLoss] = {}
        for ledger, span in expected.items():
            found = self._compared.get(ledger)
            entries = span.entries - (found.entries if found else 0)
            size = span.size_bytes - (found.size_bytes if found else 0)
            if entries > 0 or size > 0:
                known = {gap.suspect[1] for gap in self.gaps if gap.suspect and gap.suspect[0] == ledger}
                lost[ledger] = LedgerLoss(
                    span.first, span.last, max(0, entries), size, sorted(known) if len(known) == entries else []
                )
        return lost
