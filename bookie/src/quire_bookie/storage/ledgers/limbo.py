"""Limbo: tracks which ledgers may have lost entries, keys and fences here. Owns the record of it and its rules.

A bookie that lost its journal, or an entry log, does not know which entries it held. Ledger ids are assigned in
ascending order in two spaces (below 2^31, and long ones), so every ledger that may have lost something is at or below
one bound in each space. Such a ledger is fenced permanently, and while it is in limbo a miss is *unknown*, never *no
such entry*. Only `end_limbo`, of one ledger or of all, ends limbo. Entering again starts a new generation: ledgers
whose limbo had ended are in limbo again.

The record is stored in the index and in its own file beside the entry logs, so that a rebuild of the index keeps it.
The file is written first; the copy with the higher number is valid.

    record   0  crc32c u32 over bytes 4..   4  version u8 = 1   5  flags u8 (1 active)   6  number u64: of this record
            14  generation u32   18  short bound i64   26  long bound i64   (little-endian; -1: no bound)
"""

import logging
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from quire_bookie.crc import crc32c
from quire_bookie.dataclass import dataclass
from quire_bookie.env.disk import Disk
from quire_bookie.env.index_store import IndexStore
from quire_bookie.errors import DamagedError
from quire_bookie.model import LedgerId
from quire_bookie.storage.formats.index_keys import LIMBO_KEY
from quire_bookie.storage.index.index_commits import IndexCommits

LIMBO_NAME: Final = "limbo.record"
LIMBO_VERSION: Final = 1
LONG_IDS_START: Final = 1 << 31
NO_LEDGER: Final = LedgerId(-1)
_ACTIVE = 1
_CRC = struct.Struct("<I")
_RECORD = struct.Struct("<BBQIqq")

_log = logging.getLogger("quire.storage.limbo")


@dataclass(frozen=True, slots=True)
class Limbo:
    """The stored state. `generation` 0: limbo was never entered here."""

    number: int = 0
    generation: int = 0
    short_bound: LedgerId = NO_LEDGER
    long_bound: LedgerId = NO_LEDGER
    active: bool = False

    def covers(self, ledger: LedgerId) -> bool:
        """Return whether a ledger is at or below the bound of its id space, during limbo or after it."""
        return ledger <= (self.long_bound if ledger >= LONG_IDS_START else self.short_bound)

    def entered(self, bounds: Sequence[LedgerId]) -> "Limbo":
        """Return a new generation, up to the highest of `bounds` in each id space. Bounds never decrease."""
        short, long = self.short_bound, self.long_bound
        for bound in bounds:
            if bound >= LONG_IDS_START:
                long = max(long, bound)
            else:
                short = max(short, bound)
        return Limbo(self.number + 1, self.generation + 1, short, long, True)

    def ended(self) -> "Limbo":
        """Return the state after limbo. Ledgers that were in limbo stay fenced, as the bounds remain."""
        return replace(self, number=self.number + 1, active=False)


def encode_limbo(limbo: Limbo) -> bytes:
    """Encode the index value, which is also the content of the file."""
    flags = _ACTIVE if limbo.active else 0
    rest = _RECORD.pack(LIMBO_VERSION, flags, limbo.number, limbo.generation, limbo.short_bound, limbo.long_bound)
    return _CRC.pack(crc32c(rest)) + rest


def decode_limbo(value: bytes, path: str) -> Limbo:
    """Check and decode a record. DamagedError if it is damaged."""
    if len(value) != _CRC.size + _RECORD.size or crc32c(value[4:]) != _CRC.unpack_from(value)[0]:
        raise DamagedError(path, 0, "the record of limbo does not match its checksum")
    version, flags, number, generation, short, long = _RECORD.unpack_from(value, _CRC.size)
    if version != LIMBO_VERSION:
        raise DamagedError(path, 0, f"version {version} of the record of limbo is not supported")
    return Limbo(number, generation, LedgerId(short), LedgerId(long), bool(flags & _ACTIVE))


async def read_limbo_file(disk: Disk, directory: str) -> Limbo | None:
    """Read the record beside the entry logs; None without a file. DamagedError."""
    path = f"{directory}/{LIMBO_NAME}"
    if not await disk.exists(path):
        return None
    return decode_limbo(await disk.read_file(path), path)


async def load_limbo(disk: Disk, index: IndexStore, directory: str, commits: IndexCommits) -> Limbo:
    """Load the newer of the two copies at a start, and update the other. DamagedError."""
    value = await index.get(LIMBO_KEY)
    indexed = None if value is None else decode_limbo(value, "index")
    try:
        filed = await read_limbo_file(disk, directory)
    except DamagedError as error:
        if indexed is None:
            raise
        _log.warning("using the copy of the record in the index: %s", error)
        filed = None
    known = max(filter(None, (indexed, filed)), key=lambda limbo: limbo.number, default=None)
    if known is None:
        return Limbo()
    if filed != known or indexed != known:
        await store_limbo(disk, directory, commits, known)
    return known


async def store_limbo(disk: Disk, directory: str, commits: IndexCommits, limbo: Limbo) -> None:
    """Store the record durably in file and index. The caller holds the storage's write lock. DiskFullError."""
    await disk.replace_file(f"{directory}/{LIMBO_NAME}", encode_limbo(limbo))
    await commits.commit([(LIMBO_KEY, encode_limbo(limbo))])
