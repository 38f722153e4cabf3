"""Builds a run of ADD frames in one buffer: the client's innermost loop. The frame format is owned by `wire`.

For CRC32C, one call of `bulk` with one copy of each payload does the same as `Digest.encode_entry` and `v2_adds`, which
support every digest in several steps. A test checks that both give equal bytes.
"""

from collections.abc import Sequence
from struct import Struct

from quire_bookie.bulk import encode_adds
from quire_bookie.errors import LedgerError
from quire_bookie.model import Buffer, DigestType, EntryId, LedgerId
from quire_bookie.wire import v2
from quire_bookie.wire.client_codec import v2_adds
from quire_bookie.wire.digest import Digest

_WORD = Struct(">I")


class AddFrames:
    """Builds the frames of one ledger's normal adds."""

    __slots__ = ("_digest", "_is_crc32c", "_ledger", "_master_key", "_prefix", "_size_max")

    def __init__(self, ledger: LedgerId, digest: Digest, master_key: bytes, payload_bytes_max: int) -> None:
        self._ledger = ledger
        self._digest = digest
        self._is_crc32c = digest.type is DigestType.CRC32C
        self._master_key = master_key
        self._prefix = _WORD.pack(v2.header_word(v2.ADD)) + master_key
        self._size_max = payload_bytes_max

    def encode(
        self, first: EntryId, lac: EntryId, length: int, payloads: Sequence[Buffer | tuple[Buffer, ...]]
    ) -> tuple[bytes, int]:
        """Return the frames of consecutive entries from `first` on, and the ledger's length after them.

        `length`: payload bytes of the ledger before `first`. LedgerError for a payload above the limit.
        """
        if not isinstance(payloads, (list, tuple)):
            payloads = list(payloads)
        try:
            if self._is_crc32c:
                return encode_adds(self._prefix, self._ledger, first, lac, length, self._size_max, payloads)
            return self._encode_slowly(first, lac, length, payloads)
        except OverflowError as error:
            text = f"an entry of {error} bytes; the limit is {self._size_max}: write smaller entries"
            raise LedgerError(text) from error

    def _encode_slowly(
        self, first: EntryId, lac: EntryId, length: int, payloads: Sequence[Buffer | tuple[Buffer, ...]]
    ) -> tuple[bytes, int]:
        entries: list[tuple[Buffer, ...]] = []
        for entry, payload in enumerate(payloads, first):
            parts = payload if isinstance(payload, tuple) else (payload,)
            size_bytes = sum(map(len, parts))
            if size_bytes > self._size_max:
                raise OverflowError(size_bytes)
            length += size_bytes
            entries.append((self._digest.encode_entry(self._ledger, EntryId(entry), lac, length, parts), *parts))
        return b"".join(v2_adds(self._master_key, entries)), length
