"""The client's steps over whole buffers, in plain Python: the specification and the fallback. See `plain`."""

from collections.abc import Sequence
from struct import Struct
from typing import Protocol

from quire_bookie.crc import crc32c
from quire_bookie.model import ENTRY_HEADER_BYTES, Buffer

_HEADER = Struct(">qqqq")
_LENGTH = Struct(">i")
_CHECKSUM_BYTES = 4


class ReadEntry(Protocol):
    """An entry as returned to a reader."""

    @property
    def entry_id(self) -> int:
        """The id of the entry."""
        ...

    @property
    def lac(self) -> int:
        """The last add confirmed when the entry was sent."""
        ...

    @property
    def length(self) -> int:
        """Payload bytes of the ledger up to and including this entry."""
        ...

    @property
    def payload(self) -> memoryview:
        """The payload of the entry."""
        ...


def encode_adds(
    prefix: bytes,
    ledger: int,
    first: int,
    lac: int,
    length: int,
    size_max: int,
    payloads: list[Buffer | tuple[Buffer, ...]] | tuple[Buffer | tuple[Buffer, ...], ...],
) -> tuple[bytes, int]:
    """Encode V2 adds of consecutive entries from `first` on with CRC32C digests. Return them and the new length.

    `prefix`: header word and master key; `length`: payload bytes of the ledger before `first`. A payload may be a tuple
    of parts. OverflowError with the size of a payload above `size_max`.
    """
    pack, pack_length = _HEADER.pack, _LENGTH.pack
    fixed_bytes = len(prefix) + ENTRY_HEADER_BYTES + _CHECKSUM_BYTES
    buffers: list[Buffer] = []
    add = buffers.append
    for entry, payload in enumerate(payloads, first):
        if isinstance(payload, tuple):
            size_bytes = sum(map(len, payload))
        else:
            size_bytes = len(payload)
        if size_bytes > size_max:
            raise OverflowError(size_bytes)
        length += size_bytes
        header = pack(ledger, entry, lac, length)
        checksum = crc32c(header)
        if isinstance(payload, tuple):
            for part in payload:
                checksum = crc32c(part, checksum)
            add(pack_length(fixed_bytes + size_bytes) + prefix + header + checksum.to_bytes(4, "big"))
            buffers += payload
        else:
            checksum = crc32c(payload, checksum)
            add(pack_length(fixed_bytes + size_bytes) + prefix + header + checksum.to_bytes(4, "big"))
            add(payload)
    return b"".join(buffers), length


def encode_copies(prefix: bytes, ledger: int, entries: Sequence[ReadEntry]) -> bytes:
    """Encode V2 adds of entries as they were read: with their ids, LACs and lengths, and CRC32C digests.

    `prefix`: header word and master key.
    """
    pack, pack_length = _HEADER.pack, _LENGTH.pack
    fixed_bytes = len(prefix) + ENTRY_HEADER_BYTES + _CHECKSUM_BYTES
    buffers: list[Buffer] = []
    for entry in entries:
        header = pack(ledger, entry.entry_id, entry.lac, entry.length)
        checksum = crc32c(entry.payload, crc32c(header))
        buffers.append(pack_length(fixed_bytes + len(entry.payload)) + prefix + header + checksum.to_bytes(4, "big"))
        buffers.append(entry.payload)
    return b"".join(buffers)


def check_entries(ledger: int, first: int, entries: list[Buffer]) -> list[int]:
    """Return LAC and length, alternating, of the leading entries with ids from `first` on that match their CRC32C."""
    found: list[int] = []
    payload_at = ENTRY_HEADER_BYTES + _CHECKSUM_BYTES
    for wanted, data in enumerate(entries, first):
        view = memoryview(data)
        if len(view) < payload_at:
            break
        head = view[:ENTRY_HEADER_BYTES]
        of, entry, lac, length = _HEADER.unpack(head)
        checksum = crc32c(view[payload_at:], crc32c(head))
        if of != ledger or entry != wanted or checksum.to_bytes(4, "big") != view[ENTRY_HEADER_BYTES:payload_at]:
            break
        found += (lac, length)
    return found


def encode_stored(prefix: bytes, entries: list[Buffer]) -> bytes:
    """Encode V2 adds of unchanged stored entries (header, digest, payload). `prefix`: header word and master key."""
    pack_length = _LENGTH.pack
    buffers: list[Buffer] = []
    for entry in entries:
        buffers.append(pack_length(len(prefix) + len(entry)) + prefix)
        buffers.append(entry)
    return b"".join(buffers)


def split_batch(body: Buffer) -> list[memoryview]:
    """Return views of the entries in the body of a batch response, each of which follows its length of 4 bytes.

    ValueError if an entry extends beyond the end.
    """
    view, size_bytes, unpack = memoryview(body), len(body), _LENGTH.unpack_from
    entries: list[memoryview] = []
    position = 0
    while position < size_bytes:
        start = position + 4
        size = unpack(view, position)[0] if start <= size_bytes else -1
        position = start + size
        if size < 0 or position > size_bytes:
            raise ValueError("an entry runs over the end of its batch")
        entries.append(view[start:position])
    return entries


def count_batch(body: Buffer) -> int:
    """Return how many entries `split_batch` would return. ValueError as `split_batch`."""
    return len(split_batch(body))


def check_batch(ledger: int, first: int, body: Buffer) -> int:
    """Count the leading entries with the ids from `first` on that match their CRC32C. ValueError as `split_batch`."""
    return len(check_entries(ledger, first, [*split_batch(body)])) // 2
