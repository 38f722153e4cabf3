"""Batch ack sets: a set bit is a message that is not acknowledged."""

from hypothesis import given
from hypothesis import strategies as st

from quire_broker.managed_ledger.cursors.ack_set import full_mask, unacked_mask, words_of

_WORDS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4)


def _bits(words: list[int]) -> set[int]:
    return {64 * at + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1}


@given(_WORDS)
def test_words_survive_except_for_trailing_zeros(words: list[int]) -> None:
    back = list(words_of(unacked_mask(words)))
    while words and words[-1] == 0:
        words.pop()
    assert back == words


@given(_WORDS, _WORDS, st.integers(1, 200))
def test_joining_two_acknowledgments_keeps_messages_that_neither_acknowledged(
    first: list[int], second: list[int], size: int
) -> None:
    left = full_mask(size) & unacked_mask(first) & unacked_mask(second)
    expected = _bits(first) & _bits(second) & set(range(size))
    assert _bits(list(words_of(left))) == expected
    assert (left == 0) == (not expected)


def test_a_stored_ack_set_of_pulsar_has_two_of_five_messages_left() -> None:
    # tests/golden: a batch of five of which 0, 1 and 2 were acknowledged is stored as 0x18
    assert words_of(full_mask(5) & ~0b111) == (0x18,)
    assert words_of(full_mask(64)) == (-1,)
    assert words_of(0) == ()
