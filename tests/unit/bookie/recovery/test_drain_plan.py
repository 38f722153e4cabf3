"""Tests which bookies may leave, what blocks a drain, and how long it takes."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.metadata.drains import Drain, Wish, leaving
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState, Segment
from quire_bookie.recovery.drain_plan import (
    Census,
    DrainContext,
    blockers,
    eta_s,
    progress,
    replica_bytes,
    start_leaving,
)

A, B, C, D, E = (BookieId(name) for name in "abcde")


def ledger(
    *ensembles: tuple[BookieId, ...], last: int = -1, length: int = 0, starts: tuple[int, ...] = (0,)
) -> LedgerMetadata:
    return LedgerMetadata(
        ensemble_size=len(ensembles[0]),
        write_quorum=2,
        ack_quorum=2,
        segments=tuple(Segment(EntryId(s), e) for s, e in zip(starts, ensembles, strict=True)),
        state=LedgerState.CLOSED if last >= 0 else LedgerState.OPEN,
        last_entry=EntryId(last),
        length=length,
    )


@given(
    wishes=st.lists(
        st.tuples(st.integers(0, 7), st.sampled_from(list(Wish)), st.booleans()), max_size=8, unique_by=lambda w: w[0]
    ),
    writable=st.sets(st.integers(0, 7)),
    ensemble=st.integers(0, 5),
)
def test_no_bookie_leaves_if_too_few_remain_for_the_ensemble(
    wishes: list[tuple[int, Wish, bool]], writable: set[int], ensemble: int
) -> None:
    drains = tuple(Drain(BookieId(str(n)), wish, at, leaving=went) for at, (n, wish, went) in enumerate(wishes))
    able = {BookieId(str(number)) for number in writable}
    after = start_leaving(drains, able, {one.bookie: ensemble for one in drains})
    fresh = leaving(after) - leaving(drains)
    if fresh:
        assert len(able - leaving(after)) >= ensemble
    for one, before in zip(after, drains, strict=True):
        assert (one.bookie, one.wish, one.since_ms) == (before.bookie, before.wish, before.since_ms)
        if before.leaving:
            assert one == before
        elif one.leaving:
            assert one.made_read_only == (one.bookie in able) and one.wish is not Wish.CANCEL
    assert start_leaving(after, able, {one.bookie: ensemble for one in drains}) == after
    assert start_leaving(drains, able, {}) == drains, "a bookie that was not counted must not leave"


def test_the_older_drain_comes_first_and_an_absent_bookie_needs_a_replacement_too() -> None:
    drains = tuple(Drain(bookie, Wish.DRAIN, at) for at, bookie in enumerate((A, B, E)))
    after = start_leaving(drains, {A, B, C, D}, dict.fromkeys((A, B, E), 3))
    assert [one.leaving for one in after] == [True, False, True]
    assert [one.made_read_only for one in after] == [True, False, False]
    after = start_leaving(drains[2:], {C, D}, {E: 3})
    assert [one.leaving for one in after] == [False], "it may return and would then be missing"


def test_a_bookie_whose_drain_is_not_undone_yet_counts_as_gone() -> None:
    drains = (Drain(A, Wish.CANCEL, 0, leaving=True, made_read_only=True), Drain(B, Wish.DRAIN, 1))
    assert start_leaving(drains, {A, B, C, D}, {A: 3, B: 3}) == drains, "a new drain of A may be requested at any time"
    assert start_leaving(drains[1:], {A, B, C, D}, {B: 3})[0].leaving


def test_a_census_counts_what_a_bookie_holds() -> None:
    closed = ledger((A, B, C), (A, D, C), last=9, length=1000, starts=(0, 4))
    assert replica_bytes(closed, B) == int(1000 * 4 * 2 / 3 / 10)
    assert replica_bytes(closed, E) == 0 and replica_bytes(ledger((A, B)), A) == 0
    census = Census()
    assert census.count_ledger(LedgerId(1), closed, A, unrecoverable=True)
    assert not census.count_ledger(LedgerId(2), ledger((B, C, D, E)), A, unrecoverable=False)
    assert census.count_ledger(LedgerId(3), ledger((A, B)), A, unrecoverable=False)
    assert not census.count_ledger(LedgerId(4), ledger((B, C, D, E, BookieId("f")), last=3), A, unrecoverable=False)
    assert (census.ledgers, census.open, census.unrecoverable) == (2, 1, 1)
    assert (census.ensemble_max, census.largest) == (5, 4), "of all ledgers, with or without this bookie"
    for number in range(100):
        census.count_ledger(LedgerId(100 + number), ledger((A, B)), A, unrecoverable=True)
    assert len(census.open_named) == len(census.unrecoverable_named) == 20 and census.open == 101


def test_the_blockers_of_a_drain_are_named_with_a_remedy() -> None:
    drain = Drain(A, Wish.DRAIN, 0, leaving=True)
    around = DrainContext(frozenset((B, C)), frozenset((A,)), enabled=True)
    census = Census(ledgers=2, ensemble_max=2)
    assert blockers(drain, census, around) == ()
    (switched,) = blockers(drain, census, replace(around, enabled=False))
    assert "autorecovery on" in switched
    (blocked,) = blockers(drain, replace(census, ensemble_max=3, largest=LedgerId(7)), around)
    assert "2 other bookies are writable, fewer than the ensemble of 3 of ledger 7" in blocked
    (bad,) = blockers(drain, replace(census, unrecoverable=1, unrecoverable_named=[LedgerId(8)]), around)
    assert "--accept-loss" in bad and "(8)" in bad
    (opened,) = blockers(drain, replace(census, open=21, open_named=[LedgerId(9)]), around)
    assert opened.startswith("21 ledgers are open on it (9, ...)")
    (unread,) = blockers(drain, replace(census, undecodable=1), around)
    assert "cannot be read" in unread
    assert blockers(drain, census, replace(around, refused="it has no HTTP port")) == ("it has no HTTP port",)
    waiting = replace(drain, leaving=False)
    assert blockers(waiting, Census(ensemble_max=2, open=1), around) == (), (
        "open ledgers matter only once the bookie leaves"
    )
    assert len(blockers(waiting, Census(ensemble_max=3), around)) == 1


def test_the_remaining_time_is_estimated_from_the_rate_so_far() -> None:
    assert eta_s(100, 50, 9, 9, 10.0) == 11
    assert eta_s(100, 100, 9, 8, 10.0) is None, "nothing was copied yet"
    assert eta_s(0, 0, 4, 1, 9.0) == 4, "ledgers without bytes"
    assert eta_s(100, 0, 4, 0, 9.0) == 0


def test_progress_keeps_its_beginning_until_a_new_drain() -> None:
    drain = Drain(A, Wish.DRAIN, 1000, leaving=True)
    around = DrainContext(frozenset((B, C)), frozenset((A,)), enabled=True)
    first = progress(drain, Census(ledgers=10, size_bytes=100), around, None, 2000, emptied=False)
    assert (first.state, first.ledgers_first, first.began_ms, first.eta_s) == ("leaving", 10, 2000, None)
    then = progress(drain, Census(ledgers=5, size_bytes=50), around, first, 12_000, emptied=False)
    assert (then.ledgers_left, then.ledgers_first, then.bytes_first, then.began_ms, then.eta_s) == (
        5,
        10,
        100,
        2000,
        11,
    )
    done = progress(drain, Census(), around, then, 20_000, emptied=True)
    assert (done.state, done.blocked_by, done.eta_s) == ("emptied", (), 0)
    again = progress(replace(drain, since_ms=30_000), Census(ledgers=1), around, done, 31_000, emptied=False)
    assert (again.ledgers_first, again.began_ms) == (1, 31_000)
    waiting = progress(replace(drain, leaving=False), Census(ledgers=1), around, None, 31_000, emptied=False)
    assert waiting.state == "waiting" and waiting.eta_s is None
    assert progress(replace(drain, wish=Wish.CANCEL), Census(), around, None, 1, emptied=False).state == "cancelling"
