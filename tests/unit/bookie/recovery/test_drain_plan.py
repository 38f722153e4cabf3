"""Who may leave when, what stands in the way, and how long it takes."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.metadata.drains import Drain, Wish, leaving
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState, Segment
from quire_bookie.recovery.drain_plan import Census, Surroundings, blockers, eta_s, let_go, progress, replica_bytes

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
def test_no_bookie_is_let_go_under_the_ensemble(
    wishes: list[tuple[int, Wish, bool]], writable: set[int], ensemble: int
) -> None:
    drains = tuple(Drain(BookieId(str(n)), wish, at, leaving=went) for at, (n, wish, went) in enumerate(wishes))
    able = {BookieId(str(number)) for number in writable}
    after = let_go(drains, able, {one.bookie: ensemble for one in drains})
    fresh = leaving(after) - leaving(drains)
    if fresh:
        assert len(able - leaving(after)) >= ensemble
    for one, before in zip(after, drains, strict=True):
        assert (one.bookie, one.wish, one.since_ms) == (before.bookie, before.wish, before.since_ms)
        if before.leaving:
            assert one == before
        elif one.leaving:
            assert one.made_read_only == (one.bookie in able) and one.wish is not Wish.CANCEL
    assert let_go(after, able, {one.bookie: ensemble for one in drains}) == after
    assert let_go(drains, able, {}) == drains, "who was not counted is not let go"


def test_the_older_wish_comes_first_and_one_that_is_away_needs_room_as_well() -> None:
    drains = tuple(Drain(bookie, Wish.DRAIN, at) for at, bookie in enumerate((A, B, E)))
    after = let_go(drains, {A, B, C, D}, dict.fromkeys((A, B, E), 3))
    assert [one.leaving for one in after] == [True, False, True]
    assert [one.made_read_only for one in after] == [True, False, False]
    after = let_go(drains[2:], {C, D}, {E: 3})
    assert [one.leaving for one in after] == [False], "it may be back in a moment, and be missed"


def test_one_that_is_not_given_back_yet_still_counts_as_gone() -> None:
    drains = (Drain(A, Wish.CANCEL, 0, leaving=True, made_read_only=True), Drain(B, Wish.DRAIN, 1))
    assert let_go(drains, {A, B, C, D}, {A: 3, B: 3}) == drains, "the wish for A may be said anew any moment"
    assert let_go(drains[1:], {A, B, C, D}, {B: 3})[0].leaving


def test_a_census_counts_what_a_bookie_holds() -> None:
    closed = ledger((A, B, C), (A, D, C), last=9, length=1000, starts=(0, 4))
    assert replica_bytes(closed, B) == int(1000 * 4 * 2 / 3 / 10)
    assert replica_bytes(closed, E) == 0 and replica_bytes(ledger((A, B)), A) == 0
    census = Census()
    assert census.saw(LedgerId(1), closed, A, unrecoverable=True)
    assert not census.saw(LedgerId(2), ledger((B, C, D, E)), A, unrecoverable=False)
    assert census.saw(LedgerId(3), ledger((A, B)), A, unrecoverable=False)
    assert not census.saw(LedgerId(4), ledger((B, C, D, E, BookieId("f")), last=3), A, unrecoverable=False)
    assert (census.ledgers, census.open, census.unrecoverable) == (2, 1, 1)
    assert (census.ensemble_max, census.largest) == (5, 4), "of all ledgers, whether they name it or not"
    for number in range(100):
        census.saw(LedgerId(100 + number), ledger((A, B)), A, unrecoverable=True)
    assert len(census.open_named) == len(census.unrecoverable_named) == 20 and census.open == 101


def test_what_blocks_a_drain_is_named_with_a_remedy() -> None:
    drain = Drain(A, Wish.DRAIN, 0, leaving=True)
    around = Surroundings(frozenset((B, C)), frozenset((A,)), enabled=True)
    census = Census(ledgers=2, ensemble_max=2)
    assert blockers(drain, census, around) == ()
    (switched,) = blockers(drain, census, replace(around, enabled=False))
    assert "autorecovery on" in switched
    (room,) = blockers(drain, replace(census, ensemble_max=3, largest=LedgerId(7)), around)
    assert "2 other bookies are writable, under the ensemble of 3 of ledger 7" in room
    (bad,) = blockers(drain, replace(census, unrecoverable=1, unrecoverable_named=[LedgerId(8)]), around)
    assert "--accept-loss" in bad and "(8)" in bad
    (opened,) = blockers(drain, replace(census, open=21, open_named=[LedgerId(9)]), around)
    assert opened.startswith("21 ledgers are open on it (9, ...)")
    (unread,) = blockers(drain, replace(census, undecodable=1), around)
    assert "cannot be read" in unread
    assert blockers(drain, census, replace(around, refused="it has no HTTP port")) == ("it has no HTTP port",)
    waiting = replace(drain, leaving=False)
    assert blockers(waiting, Census(ensemble_max=2, open=1), around) == (), "what is open matters once it leaves"
    assert len(blockers(waiting, Census(ensemble_max=3), around)) == 1


def test_an_end_is_estimated_from_what_was_done() -> None:
    assert eta_s(100, 50, 9, 9, 10.0) == 11
    assert eta_s(100, 100, 9, 8, 10.0) is None, "nothing was copied yet"
    assert eta_s(0, 0, 4, 1, 9.0) == 4, "ledgers without bytes"
    assert eta_s(100, 0, 4, 0, 9.0) == 0


def test_progress_remembers_where_it_began_and_begins_anew_with_a_new_wish() -> None:
    drain = Drain(A, Wish.DRAIN, 1000, leaving=True)
    around = Surroundings(frozenset((B, C)), frozenset((A,)), enabled=True)
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
