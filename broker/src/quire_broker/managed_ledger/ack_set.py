"""Partial acknowledgments of one batch. Pure.

On the wire and in cursor states an ack set is a list of signed 64-bit words, bit i of word w standing for message
64*w + i of the batch, and a set bit means *not yet acknowledged*. Here it is one integer of the same bits, so that
joining two acknowledgments is `&` and a batch is done at 0. Trailing zero words are never written.
"""

from collections.abc import Sequence

_WORD_BITS = 64
_WORD_BYTES = 8
_WORD_MASK = (1 << _WORD_BITS) - 1


def unacked_mask(words: Sequence[int]) -> int:
    """The remaining messages of signed 64-bit `words`."""
    if len(words) == 1:
        return words[0] & _WORD_MASK
    return int.from_bytes(b"".join([(word & _WORD_MASK).to_bytes(_WORD_BYTES, "little") for word in words]), "little")


def full_mask(batch_size: int) -> int:
    """Nothing of a batch of `batch_size` messages is acknowledged."""
    return (1 << batch_size) - 1


def words_of(mask: int) -> tuple[int, ...]:
    """Signed 64-bit words of the remaining messages; () for none."""
    count = (mask.bit_length() + _WORD_BITS - 1) // _WORD_BITS
    raw = mask.to_bytes(count * _WORD_BYTES, "little")
    return tuple(
        int.from_bytes(raw[start : start + _WORD_BYTES], "little", signed=True)
        for start in range(0, len(raw), _WORD_BYTES)
    )
