"""Entry headers, digests and keys: protects an entry from the writer's memory to the reader's. Pure.

    offset  0        8        16   24      32      32+D
            ledger   entry    LAC  length  digest  payload          (int64, big-endian)

The digest covers bytes 0..31 and then the payload. D is 20 for HMAC (SHA-1, key = SHA1("mac" ++ password)), 8 for CRC32
(the CRC in the low half), 4 for CRC32C, 0 for DUMMY. A LAC packet is ledger, lac, digest over those 16 bytes.
Source: BookKeeper's protocol. A bookie never checks digests; a reader always does.
"""

import hashlib
import hmac
import struct
import zlib
from collections.abc import Sequence

from quire_bookie.bulk import check_entries
from quire_bookie.crc import crc32c
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import DigestMismatchError
from quire_bookie.model import ENTRY_HEADER_BYTES, Buffer, DigestType, EntryId, LedgerId

DIGEST_BYTES = {DigestType.HMAC: 20, DigestType.CRC32: 8, DigestType.CRC32C: 4, DigestType.DUMMY: 0}
_HEADER = struct.Struct(">qqqq")
_LAC = struct.Struct(">qq")
_HEADER_CRC32C = struct.Struct(">qqqqI")


def master_key(password: bytes) -> bytes:
    """Return the 20 bytes with which a bookie authorizes writing and fencing. An empty password is hashed as well."""
    return hashlib.sha1(b"ledger" + password).digest()


@dataclass(slots=True)
class DecodedEntry:
    """An entry whose digest matched. `payload` is a view into the decoded bytes."""

    ledger: LedgerId
    entry: EntryId
    lac: EntryId
    length: int
    payload: memoryview


class Digest:
    """Computes and verifies the digests of one ledger."""

    __slots__ = ("_hmac", "size", "type")

    def __init__(self, digest_type: DigestType, password: bytes) -> None:
        self.type = digest_type
        self.size = DIGEST_BYTES[digest_type]
        self._hmac = hmac.new(hashlib.sha1(b"mac" + password).digest(), digestmod="sha1")

    def encode_entry(
        self, ledger: LedgerId, entry: EntryId, lac: EntryId, length: int, payload: Sequence[Buffer]
    ) -> bytes:
        """Return the 32+D bytes before `payload`. `length`: payload bytes of the ledger including this entry."""
        header = _HEADER.pack(ledger, entry, lac, length)
        if self.type is DigestType.CRC32C:
            checksum = crc32c(header)
            for part in payload:
                checksum = crc32c(part, checksum)
            return _HEADER_CRC32C.pack(ledger, entry, lac, length, checksum)
        return header + self._of(header, payload)

    def decode_entry(self, data: Buffer, ledger: LedgerId, entry: EntryId | None) -> DecodedEntry:
        """Check ids (`entry` None: any) and digest. Raise DigestMismatchError for every invalid entry."""
        view = memoryview(data)
        start = ENTRY_HEADER_BYTES + self.size
        if len(view) < start:
            raise DigestMismatchError(f"entry {entry} of ledger {ledger}: {len(view)} bytes, expected at least {start}")
        found_ledger, found_entry, lac, length = _HEADER.unpack_from(view)
        if found_ledger != ledger or (entry is not None and found_entry != entry):
            raise DigestMismatchError(
                f"expected entry {entry} of ledger {ledger}, found entry {found_entry} of ledger {found_ledger}"
            )
        payload = view[start:]
        if self._of(view[:ENTRY_HEADER_BYTES], (payload,)) != view[ENTRY_HEADER_BYTES:start]:
            raise DigestMismatchError(f"entry {found_entry} of ledger {ledger} does not match its {self.type.name}")
        return DecodedEntry(ledger, EntryId(found_entry), EntryId(lac), length, payload)

    def check_entries(self, entries: list[Buffer], ledger: LedgerId, first: EntryId) -> list[int]:
        """Return LAC and length, alternating, of the valid entries from `first` on; the next one needs `decode_entry`.

        Verifies only CRC32C digests, in one step; returns nothing for other types.
        """
        return check_entries(ledger, first, entries) if self.type is DigestType.CRC32C else []

    def encode_lac(self, ledger: LedgerId, lac: EntryId) -> bytes:
        """Encode the packet of an explicit LAC."""
        header = _LAC.pack(ledger, lac)
        return header + self._of(header, ())

    def decode_lac(self, packet: Buffer, ledger: LedgerId) -> EntryId:
        """Decode the LAC of a packet. Raise DigestMismatchError for every invalid packet."""
        view = memoryview(packet)
        if len(view) != _LAC.size + self.size:
            raise DigestMismatchError(f"LAC of ledger {ledger}: {len(view)} bytes, expected {_LAC.size + self.size}")
        found_ledger, lac = _LAC.unpack_from(view)
        if found_ledger != ledger or self._of(view[: _LAC.size], ()) != view[_LAC.size :]:
            raise DigestMismatchError(f"LAC of ledger {ledger} does not match its {self.type.name}")
        return EntryId(lac)

    def _of(self, header: Buffer, payload: Sequence[Buffer]) -> bytes:
        if self.type is DigestType.CRC32C:
            checksum = crc32c(header)
            for part in payload:
                checksum = crc32c(part, checksum)
            return checksum.to_bytes(4, "big")
        if self.type is DigestType.CRC32:
            checksum = zlib.crc32(header)
            for part in payload:
                checksum = zlib.crc32(part, checksum)
            return checksum.to_bytes(8, "big")
        if self.type is DigestType.HMAC:
            state = self._hmac.copy()
            state.update(header)
            for part in payload:
                state.update(part)
            return state.digest()
        return b""
