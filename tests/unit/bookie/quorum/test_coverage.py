"""Tests LAC coverage against the table of BookKeeper's rule, and its meaning by brute force."""

from itertools import combinations, product

import pytest

from quire_bookie.model import EntryId
from quire_bookie.quorum.coverage import LacCoverage
from quire_bookie.quorum.write_set import write_set

_ALL_QUORUMS = [(e, w, a) for e in range(1, 6) for w in range(1, e + 1) for a in range(1, w + 1)]


@pytest.mark.parametrize(
    ("quorums", "answered", "covered"),
    [
        ((1, 1, 1), set(), False),
        ((1, 1, 1), {0}, True),
        ((3, 3, 2), {0}, False),
        ((3, 3, 2), {0, 2}, True),
        ((3, 3, 3), {1}, True),
        ((3, 3, 1), {0, 1}, False),
        ((3, 3, 1), {0, 1, 2}, True),
        ((3, 2, 2), {0}, False),
        ((3, 2, 2), {0, 1}, True),
        ((3, 2, 1), {0, 1}, False),
        ((5, 3, 2), {0, 1, 2}, False),
        ((5, 3, 2), {0, 2, 4}, False),
        ((5, 3, 2), {0, 1, 3, 4}, True),
    ],
)
def test_coverage_needs_fewer_silent_bookies_than_the_ack_quorum_in_every_write_set(
    quorums: tuple[int, int, int], answered: set[int], covered: bool
) -> None:
    coverage = LacCoverage(*quorums)
    for position in answered:
        coverage.answered(position)
    assert coverage.is_covered is covered


@pytest.mark.parametrize("quorums", _ALL_QUORUMS)
def test_covered_means_that_no_confirmed_entry_can_be_hidden(quorums: tuple[int, int, int]) -> None:
    size, write_quorum, ack_quorum = quorums
    for answers in product([False, True], repeat=size):
        coverage = LacCoverage(*quorums)
        for position in range(size):
            if answers[position]:
                coverage.answered(position)
        hidden = any(
            not any(answers[position] for position in holders)
            for entry in range(size)
            for holders in combinations(write_set(EntryId(entry), size, write_quorum), ack_quorum)
        )
        assert coverage.is_covered is not hidden


def test_a_round_is_hopeless_when_enough_positions_failed() -> None:
    coverage = LacCoverage(3, 3, 2)
    coverage.failed(0)
    assert not coverage.is_hopeless
    coverage.failed(1)
    assert coverage.is_hopeless
    assert not coverage.is_covered


@pytest.mark.parametrize("quorums", _ALL_QUORUMS)
def test_after_all_responses_a_round_is_covered_or_hopeless(quorums: tuple[int, int, int]) -> None:
    for answers in product([False, True], repeat=quorums[0]):
        coverage = LacCoverage(*quorums)
        for position, good in enumerate(answers):
            (coverage.answered if good else coverage.failed)(position)
        assert coverage.is_covered is not coverage.is_hopeless
