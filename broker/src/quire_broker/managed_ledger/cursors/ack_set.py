"""Partial acknowledgments of one batch. Pure.

On the wire and in cursor states an ack set is a list of signed 64-bit words. Bit i of word w stands for message
64*w + i of the batch, and a set bit means *not yet acknowledged*. This module holds the same bits in one integer:
`&` joins two acknowledgments, and 0 means that the whole batch is acknowledged. Trailing zero words are never written.
"""

import sys
from array import array
from collections.abc import Iterable, Sequence

_WORD_BITS = 64
_WORD_BYTES = 8
_WORD_MASK = (1 << _WORD_BITS) - 1
_MASK_FIXED_BYTES = 200
"""Of a mask in memory: its place in the table of a cursor, its position, its number."""


def unacked_mask(words: Sequence[int]) -> int:
    """Return the mask of the unacknowledged messages from signed 64-bit `words`."""
    if len(words) == 1:
        return words[0] & _WORD_MASK
    return int.from_bytes(b"".join([(word & _WORD_MASK).to_bytes(_WORD_BYTES, "little") for word in words]), "little")


def full_mask(batch_size: int) -> int:
    """Return the mask of a batch of `batch_size` messages of which none is acknowledged."""
    return (1 << batch_size) - 1


def mask_bytes(mask: int) -> int:
    """Return the memory that a mask takes in a cursor."""
    return _MASK_FIXED_BYTES + mask.bit_length() // 8


def words_of(mask: int) -> tuple[int, ...]:
    """Return the signed 64-bit words of the unacknowledged messages; () if there are none."""
    count = (mask.bit_length() + _WORD_BITS - 1) // _WORD_BITS
    return tuple(words_in(mask.to_bytes(count * _WORD_BYTES, "little")))


def intersection(words: Sequence[int], others: Sequence[int]) -> tuple[int, ...]:
    """Return the words of the messages that both leave."""
    return words_of(unacked_mask(words) & unacked_mask(others))


def words_in(raw: bytes) -> "array[int]":
    """Return the signed 64-bit words of little-endian bytes, eight for each."""
    words = array("q", raw)
    if sys.byteorder == "big":
        words.byteswap()
    return words


def bytes_of(words: Iterable[int]) -> bytes:
    """Return the little-endian bytes of signed 64-bit words."""
    found = array("q", words)
    if sys.byteorder == "big":
        found.byteswap()
    return found.tobytes()
