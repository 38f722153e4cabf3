"""Partial acknowledgments of one batch. Pure.

On the wire and in cursor states an ack set is a list of signed 64-bit words. Bit i of word w stands for message
64*w + i of the batch, and a set bit means *not yet acknowledged*. This module holds the same bits in one integer:
`&` joins two acknowledgments, and 0 means that the whole batch is acknowledged. Trailing zero words are never written.
"""

from collections.abc import Sequence

_WORD_BITS = 64
_WORD_BYTES = 8
_WORD_MASK = (1 << _WORD_BITS) - 1


def unacked_mask(words: Sequence[int]) -> int:
    """Return the mask of the unacknowledged messages from signed 64-bit `words`."""
    if len(words) == 1:
        return words[0] & _WORD_MASK
    return int.from_bytes(b"".join([(word & _WORD_MASK).to_bytes(_WORD_BYTES, "little") for word in words]), "little")


def full_mask(batch_size: int) -> int:
    """Return the mask of a batch of `batch_size` messages of which none is acknowledged."""
    return (1 << batch_size) - 1


def words_of(mask: int) -> tuple[int, ...]:
    """Return the signed 64-bit words of the unacknowledged messages; () if there are none."""
    count = (mask.bit_length() + _WORD_BITS - 1) // _WORD_BITS
    raw = mask.to_bytes(count * _WORD_BYTES, "little")
    return tuple(
        int.from_bytes(raw[start : start + _WORD_BYTES], "little", signed=True)
        for start in range(0, len(raw), _WORD_BYTES)
    )
