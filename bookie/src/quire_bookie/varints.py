"""Encodes numbers as base-128 varints of the protocol buffer format."""

_UINT64 = (1 << 64) - 1


def encode_varint(value: int) -> bytes:
    """Encode a value in -2**63 .. 2**64-1; a negative one takes ten bytes, as int64 and as uint64 with all bits set."""
    value &= _UINT64
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
