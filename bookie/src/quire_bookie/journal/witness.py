"""The witness of a journal: a record, outside the journal files, of how far the journal was durable.

Owns the file `journal.witness`. A journal file can prove neither that a newer file existed, nor that groups followed
its last valid one. The witness can: it names the newest generation, the end of the durable groups in it, and the file
that may become the next generation.

```
file   | slot 0 (4096) | slot 1 (4096) |        record `number` is in slot number mod 2
slot     "QuireWit" 8, version u32, crc32c u32 over the rest, uuid 16, number u64, generation u64, offset u64,
         sequence u64, prepared generation u64, prepared file u64, closed u32, zero u32, zeros to the slot's end
```
Numbers are little-endian. A write goes to the slot of the older record, so a torn write leaves the other slot. Written:

* when a spare file is prepared for the next generation, before any group can use it, off the add path;
* when a generation comes into use, and when the journal starts, before its first append;
* `JOURNAL_WITNESS_S` after the first group that the witness does not cover;
* when the journal closes.

Not provable: groups of the last `JOURNAL_WITNESS_S` (plus one write of the witness) before a process died. The witness
must never claim more than is durable, and must never be written on the add path.
"""

import asyncio
import logging
import struct
from collections.abc import Callable
from dataclasses import replace

from quire_bookie.crc import crc32c
from quire_bookie.dataclass import dataclass
from quire_bookie.env.disk import Disk, JournalFile
from quire_bookie.errors import JournalDamagedError
from quire_bookie.journal.format import JournalPosition
from quire_bookie.model import Buffer

log = logging.getLogger("quire.journal")

WITNESS_NAME = "journal.witness"
SLOT_BYTES = 4096
_VERSION = 1
_MAGIC = b"QuireWit"
_PREFIX = struct.Struct("<8sII")
_RECORD = struct.Struct("<16sQQQQQQI4x")


@dataclass(frozen=True, slots=True)
class WitnessRecord:
    """The record in a slot."""

    uuid: bytes
    position: JournalPosition
    """Every group before it is durable, and the file of its generation exists."""
    prepared_generation: int = 0
    """0: no file is prepared."""
    prepared_file: int = 0
    """Number of the file that may hold `prepared_generation`."""
    closed: bool = False
    """Whether the journal was closed cleanly at the position."""
    number: int = 0


def encode_slot(record: WitnessRecord) -> bytes:
    """Encode one slot."""
    rest = _RECORD.pack(
        record.uuid,
        record.number,
        *record.position,
        record.prepared_generation,
        record.prepared_file,
        record.closed,
    )
    return (_PREFIX.pack(_MAGIC, _VERSION, crc32c(rest)) + rest).ljust(SLOT_BYTES, b"\0")


def decode_slot(slot: Buffer) -> WitnessRecord | None:
    """Decode a slot; None if it holds no intact record."""
    end = _PREFIX.size + _RECORD.size
    if len(slot) < end:
        return None
    magic, version, crc = _PREFIX.unpack_from(slot)
    rest = bytes(slot[_PREFIX.size : end])
    if magic != _MAGIC or version != _VERSION or crc32c(rest) != crc:
        return None
    uuid, number, generation, offset, sequence, prepared, file, closed = _RECORD.unpack(rest)
    return WitnessRecord(uuid, JournalPosition(generation, offset, sequence), prepared, file, bool(closed), number)


async def load_witness(disk: Disk, directory: str, uuid: bytes) -> WitnessRecord | None:
    """Return the newer intact record; None without a file. DamagedError if none is intact, or of another journal."""
    path = f"{directory}/{WITNESS_NAME}"
    try:
        content = await disk.read_file(path)
    except FileNotFoundError:
        return None
    if len(content) != 2 * SLOT_BYTES:
        raise JournalDamagedError(
            path, len(content), f"the file is truncated: it has {len(content)} of {2 * SLOT_BYTES} bytes"
        )
    found = [record for at in (0, 1) if (record := decode_slot(content[at * SLOT_BYTES : (at + 1) * SLOT_BYTES]))]
    if not found:
        raise JournalDamagedError(path, 0, "neither of its two records matches its checksum")
    if len(found) == 1 and any(content[:SLOT_BYTES]) and any(content[SLOT_BYTES:]):
        log.warning("%s: one of the two records is damaged; using the other one, number %d", path, found[0].number)
    newest = max(found, key=lambda record: record.number)
    if newest.uuid != uuid:
        raise JournalDamagedError(path, 0, "the file belongs to another journal")
    return newest


async def create_witness(disk: Disk, directory: str, uuid: bytes, position: JournalPosition) -> WitnessRecord:
    """Write a witness with one record, durably, replacing an older witness. DiskFullError, OSError."""
    record = WitnessRecord(uuid, position)
    await disk.replace_file(f"{directory}/{WITNESS_NAME}", encode_slot(record) + bytes(SLOT_BYTES))
    return record


class WitnessWriter:
    """Writes witness records in place, one at a time. Event loop's thread only.

    `current` returns the record to write when a write begins. `failed` receives the OSError of a failed write, and
    waiters receive False.
    """

    def __init__(
        self, last: WitnessRecord, *, current: Callable[[], WitnessRecord], failed: Callable[[BaseException], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._last = last
        self._current = current
        self._failed = failed
        self._file: JournalFile | None = None
        self._in_flight = False
        self._broken = False
        self._waiting: list[asyncio.Future[bool]] = []
        """Callers that wait for a write that has not started yet."""

    async def open(self, disk: Disk, directory: str, *, synced: bool) -> None:
        """Open the file for writing. OSError."""
        self._file = await disk.open_journal(f"{directory}/{WITNESS_NAME}", synced=synced)

    def store(self) -> "asyncio.Future[bool]":
        """Write the current state. The future's result is True once this or a later state is durable."""
        waiter: asyncio.Future[bool] = self._loop.create_future()
        if self._broken or self._file is None:
            waiter.set_result(False)
            return waiter
        self._waiting.append(waiter)
        if not self._in_flight:
            self._write()
        return waiter

    def _write(self) -> None:
        assert self._file is not None
        waiting, self._waiting = self._waiting, []
        record = replace(self._current(), number=self._last.number + 1)
        assert waiting and not self._in_flight
        assert record.position >= self._last.position, "a proved position stays proved"

        def written(error: BaseException | None) -> None:
            self._in_flight = False
            assert record.number == self._last.number + 1, "one record is written at a time"
            if error is None:
                self._last = record
            else:
                # The content of this slot is unknown, so the other slot must not be overwritten.
                self._broken = True
                waiting.extend(self._waiting)
                self._waiting = []
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(error is None)
            if error is not None:
                self._failed(error)
            elif self._waiting:
                self._write()

        self._in_flight = True
        try:
            self._file.submit(record.number % 2 * SLOT_BYTES, [encode_slot(record)], written)
        except OSError as error:
            self._loop.call_soon(written, error)

    async def close(self) -> None:
        """Wait for the write in flight and release the file."""
        file, self._file = self._file, None
        if file is not None:
            await file.close()
