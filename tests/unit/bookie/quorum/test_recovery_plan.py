"""Tests the verdict on an entry and the end of a recovered ledger."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.model import EntryId
from quire_bookie.quorum.recovery_plan import EntrySearch, Frontier, Verdict


def _verdict(quorums: tuple[int, int], answers: str) -> Verdict:
    search = EntrySearch(*quorums)
    for answer in answers:
        verdict = {"m": search.missing, "x": search.failed}[answer]()
        assert verdict is search.verdict, "a read continues according to the verdict after each response"
    return search.verdict


@pytest.mark.parametrize(
    ("quorums", "answers", "verdict"),
    [
        ((1, 1), "", Verdict.OPEN),
        ((1, 1), "m", Verdict.MISSING),
        ((1, 1), "x", Verdict.UNDECIDED),
        ((3, 2), "m", Verdict.OPEN),
        ((3, 2), "mm", Verdict.MISSING),
        ((3, 2), "mx", Verdict.OPEN),
        ((3, 2), "mxx", Verdict.UNDECIDED),
        ((3, 2), "mxm", Verdict.MISSING),
        ((3, 2), "xxx", Verdict.UNDECIDED),
        ((3, 3), "m", Verdict.MISSING),
        ((3, 1), "mm", Verdict.OPEN),
        ((3, 1), "mmx", Verdict.UNDECIDED),
        ((3, 1), "mmm", Verdict.MISSING),
        ((2, 1), "mx", Verdict.UNDECIDED),
    ],
)
def test_an_entry_is_missing_only_if_enough_replicas_lack_it(
    quorums: tuple[int, int], answers: str, verdict: Verdict
) -> None:
    assert _verdict(quorums, answers) is verdict


@pytest.mark.parametrize("quorums", [(w, a) for w in range(1, 5) for a in range(1, w + 1)])
def test_a_missing_entry_can_never_have_been_confirmed(quorums: tuple[int, int]) -> None:
    write_quorum, ack_quorum = quorums
    for answers in product("mx", repeat=write_quorum):
        if _verdict(quorums, "".join(answers)) is Verdict.MISSING:
            assert write_quorum - answers.count("m") < ack_quorum


@given(
    st.lists(st.booleans(), max_size=30),
    st.integers(1, 8),
    st.randoms(use_true_random=False),
)
def test_entries_are_passed_on_in_order_up_to_the_first_missing_in_any_order_of_responses(
    present: list[bool], in_flight_max: int, chance: object
) -> None:
    held = [*present, False]
    first = 5
    frontier: Frontier[str] = Frontier(EntryId(first))
    used: list[tuple[int, str]] = []
    reading: list[EntryId] = []
    while not frontier.is_done:
        reading += frontier.to_read(in_flight_max)
        assert len(reading) <= in_flight_max
        entry = reading.pop(chance.randrange(len(reading)))  # type: ignore[attr-defined]
        if entry - first < len(held) and held[entry - first]:
            frontier.found(entry, f"entry {entry}", lambda e, content: used.append((e, content)))
        else:
            frontier.missing(entry)
    end = first + held.index(False)
    assert used == [(entry, f"entry {entry}") for entry in range(first, end)]
    assert frontier.last_used == end - 1
    assert frontier.used == len(used)
    assert frontier.to_read(in_flight_max) == []


def test_entries_beyond_a_gap_never_matter() -> None:
    frontier: Frontier[str] = Frontier(EntryId(0))
    assert frontier.to_read(2) == [0, 1]
    assert frontier.to_read(4) == [2, 3]
    frontier.missing(EntryId(1))
    assert frontier.matters(EntryId(0))
    assert not frontier.matters(EntryId(2))
    used: list[int] = []
    frontier.found(EntryId(2), "beyond", lambda e, _: used.append(e))
    frontier.found(EntryId(0), "before", lambda e, _: used.append(e))
    assert used == [0]
    assert frontier.is_done
