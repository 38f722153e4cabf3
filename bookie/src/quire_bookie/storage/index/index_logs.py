"""Verifies RocksDB's log files (MANIFEST and write-ahead logs) before RocksDB reads them.

RocksDB evaluates a record's type before its checksum. One flipped bit turns a type into one of recycled logs: RocksDB
then drops every later record without an error, or its open never returns while it holds the interpreter's lock, so that
nothing in the process can end it. It also drops the rest of a block after a record of zeros. This check detects both,
and every other flipped bit of a record, by the checksums in the files. It reads each byte once, without RocksDB.

    file      blocks of 32 KiB, the last one may be short; fewer than 7 bytes at the end of a block are padding
    record    masked crc32c u32 over type and payload | payload bytes u16 | type u8 | payload      (little endian)

A crash leaves a last record that is truncated by the end of the file, or zeros up to the end of the file. This check
and RocksDB accept both. Records of recycled logs have a longer header and fail the check: `index_rocksdb` never lets
RocksDB recycle logs.
"""

import os
import re
import struct
from typing import BinaryIO, Final

from quire_bookie import limits
from quire_bookie.crc import crc32c
from quire_bookie.errors import DamagedError

BLOCK_BYTES: Final = 32 * limits.KIB
_HEADER: Final = struct.Struct("<IHB")
_NO_HEADER: Final = bytes(_HEADER.size)
_TYPE_AT: Final = 6
_MASK_DELTA: Final = 0xA282EAD8
_U32: Final = 0xFFFFFFFF
_CURRENT: Final = re.compile(rb"(MANIFEST-[0-9]{6,20})\n")


class _LogError(Exception):
    """A damaged record. `at` is its offset, in its block or in the file."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__(what)
        self.at = at


def check_logs(folder: str) -> None:
    """Verify CURRENT, the MANIFEST that it names, and every write-ahead log. A folder without a database is valid.

    DamagedError names the file. OSError.
    """
    if not os.path.isdir(folder):
        return
    names = sorted(os.listdir(folder))
    logs = [name for name in names if name.endswith(".log")]
    if "CURRENT" not in names:
        # Without it RocksDB creates a new database among the files of the old one, and replays its logs. A start that
        # was killed while it created the database has left neither tables nor a write-ahead log.
        if logs or any(name.endswith(".sst") for name in names):
            raise DamagedError(folder, 0, "its file CURRENT is missing")
        return
    with open(f"{folder}/CURRENT", "rb") as file:
        found = _CURRENT.fullmatch(file.read(limits.KIB))
    if found is None:
        raise DamagedError(folder, 0, "its file CURRENT does not name a MANIFEST")
    manifest = found[1].decode()
    if manifest not in names:
        raise DamagedError(folder, 0, f"its file CURRENT names {manifest}, which is missing")
    for name in (manifest, *logs):
        with open(f"{folder}/{name}", "rb", buffering=limits.MIB) as file:
            try:
                _check_log(file)
            except _LogError as error:
                raise DamagedError(folder, 0, f"the record at byte {error.at} of its file {name} {error}") from None


def _check_log(file: BinaryIO) -> None:
    start = 0
    while block := file.read(BLOCK_BYTES):
        try:
            records_end = _check_block(block)
        except _LogError as error:
            error.at += start
            raise
        if records_end is not None:
            rest = block[records_end:]
            while rest:
                if rest.count(0) != len(rest):
                    raise _LogError(start + records_end, "is zero, and more follows it")
                rest = file.read(BLOCK_BYTES)
        start += len(block)


def _check_block(block: bytes) -> int | None:
    """Verify the records of a block. Return the offset at which zeros replace a record, or None."""
    view = memoryview(block)
    size = len(block)
    at = 0
    while (payload_at := at + _HEADER.size) <= size:
        stored, length, _type = _HEADER.unpack_from(block, at)
        end = payload_at + length
        if end > size:
            if size == BLOCK_BYTES or end > BLOCK_BYTES or _has_flipped_length(view, at, stored, length):
                raise _LogError(at, "has a wrong length")
            return None  # truncated by a crash
        if _masked_crc(view[at + _TYPE_AT : end]) != stored:
            if block[at:payload_at] == _NO_HEADER:
                return at
            raise _LogError(at, "has a wrong checksum")
        at = end
    return None


def _has_flipped_length(view: memoryview, at: int, stored: int, length: int) -> bool:
    """Return whether the record is complete and one flipped bit in its length exceeds the file, without a crash."""
    sizes = (length ^ (1 << bit) for bit in range(16))
    ends = (at + _HEADER.size + size for size in sizes)
    return any(end <= len(view) and _masked_crc(view[at + _TYPE_AT : end]) == stored for end in ends)


def _masked_crc(content: memoryview) -> int:
    """Compute a checksum in RocksDB's masked form: it rotates and offsets checksums, as content may contain some."""
    crc = crc32c(content)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _U32
