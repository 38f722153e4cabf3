"""Encodes numbers as base-128 varints of the protocol buffer format."""

SMALL = tuple(bytes((value,)) for value in range(0x80))
"""The encoded values below 128."""
_UINT64 = (1 << 64) - 1


def encode_varint(value: int) -> bytes:
    """Encode a value in -2**63 .. 2**64-1; a negative one takes ten bytes, as int64 and as uint64 with all bits set."""
    if 0 <= value < 0x80:
        return SMALL[value]
    if 0 <= value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    value &= _UINT64
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
