"""Murmur3, 32 bits, seed 0: the hash of Key_Shared and of the Failover ring.

Source of the algorithm: Austin Appleby's MurmurHash3_x86_32 (public domain description).
"""

_C1, _C2, _MASK = 0xCC9E2D51, 0x1B873593, 0xFFFFFFFF


def murmur3_32(data: bytes, seed: int = 0) -> int:
    """Return the unsigned 32-bit hash."""
    state = seed
    whole = len(data) & ~3
    for position in range(0, whole, 4):
        block = int.from_bytes(data[position : position + 4], "little") * _C1 & _MASK
        block = (block << 15 | block >> 17) * _C2 & _MASK
        state ^= block
        state = (state << 13 & _MASK | state >> 19) * 5 + 0xE6546B64 & _MASK
    tail = int.from_bytes(data[whole:], "little")
    if whole != len(data):
        tail = tail * _C1 & _MASK
        state ^= (tail << 15 | tail >> 17) * _C2 & _MASK
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return state ^ state >> 16


def key_hash(key: bytes) -> int:
    """Return the 31-bit hash that Pulsar uses for a sticky key."""
    return murmur3_32(key) & 0x7FFFFFFF
