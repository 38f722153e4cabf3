"""The step over whole buffers that a client takes, in plain Python: what it means, and the fallback. See `plain`."""

from struct import Struct

from quire_bookie.crc import crc32c
from quire_bookie.model import ENTRY_HEADER_BYTES, Buffer

_HEADER = Struct(">qqqq")
_LENGTH = Struct(">i")
_CHECKSUM_BYTES = 4


def encode_adds(
    prefix: bytes,
    ledger: int,
    first: int,
    lac: int,
    length: int,
    size_max: int,
    payloads: list[Buffer | tuple[Buffer, ...]] | tuple[Buffer | tuple[Buffer, ...], ...],
) -> tuple[bytes, int]:
    """The V2 adds of consecutive entries from `first` on, with CRC32C digests, and the ledger's length behind them.

    `prefix`: header word and master key; `length`: payload bytes of the ledger before them. A payload may come in
    parts. OverflowError with the size of a payload above `size_max`.
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
