"""A run of ADD frames in one buffer: the client's innermost loop. Owns no format: `wire` says what a frame is.

Does for CRC32C, in one pass and with one copy of each payload, what `Digest.encode_entry` and `v2_adds` do for every
digest in several; a test holds the two equal.
"""

from collections.abc import Sequence
from struct import Struct

from quire_bookie.crc import crc32c
from quire_bookie.model import ENTRY_HEADER_BYTES, Buffer, DigestType, EntryId, LedgerId
from quire_bookie.wire import v2
from quire_bookie.wire.client_codec import v2_adds
from quire_bookie.wire.digest import Digest

_HEADER = Struct(">qqqq")
_LENGTH = Struct(">i")
_WORD = Struct(">I")
_CHECKSUM_BYTES = 4


class AddFrames:
    """Builds the frames of one ledger's normal adds."""

    __slots__ = ("_digest", "_ledger", "_master_key", "_prefix")

    def __init__(self, ledger: LedgerId, digest: Digest, master_key: bytes) -> None:
        self._ledger = ledger
        self._digest = digest
        self._master_key = master_key
        self._prefix = _WORD.pack(v2.header_word(v2.ADD)) + master_key

    def encode(
        self, first: EntryId, lac: EntryId, length: int, payloads: Sequence[Buffer | tuple[Buffer, ...]]
    ) -> tuple[bytes, int]:
        """The frames of consecutive entries from `first` on, and the ledger's length after them.

        `length`: payload bytes of the ledger before them.
        """
        if self._digest.type is not DigestType.CRC32C:
            return self._encode_slowly(first, lac, length, payloads)
        ledger, prefix, pack, pack_length = self._ledger, self._prefix, _HEADER.pack, _LENGTH.pack
        fixed_bytes = len(prefix) + ENTRY_HEADER_BYTES + _CHECKSUM_BYTES
        buffers: list[Buffer] = []
        add = buffers.append
        for entry, payload in enumerate(payloads, first):
            if isinstance(payload, tuple):
                size_bytes = sum(map(len, payload))
                length += size_bytes
                header = pack(ledger, entry, lac, length)
                checksum = crc32c(header)
                for part in payload:
                    checksum = crc32c(part, checksum)
                add(pack_length(fixed_bytes + size_bytes) + prefix + header + checksum.to_bytes(4, "big"))
                buffers += payload
            else:
                size_bytes = len(payload)
                length += size_bytes
                header = pack(ledger, entry, lac, length)
                checksum = crc32c(payload, crc32c(header))
                add(pack_length(fixed_bytes + size_bytes) + prefix + header + checksum.to_bytes(4, "big"))
                add(payload)
        return b"".join(buffers), length

    def _encode_slowly(
        self, first: EntryId, lac: EntryId, length: int, payloads: Sequence[Buffer | tuple[Buffer, ...]]
    ) -> tuple[bytes, int]:
        entries: list[tuple[Buffer, ...]] = []
        for entry, payload in enumerate(payloads, first):
            parts = payload if isinstance(payload, tuple) else (payload,)
            length += sum(map(len, parts))
            entries.append((self._digest.encode_entry(self._ledger, EntryId(entry), lac, length, parts), *parts))
        return b"".join(v2_adds(self._master_key, entries)), length
