"""Tests when a bookie counts as lost."""

from quire_bookie.model import BookieId
from quire_bookie.recovery.lost_bookies import LostBookies

A, B = BookieId("a"), BookieId("b")


def test_a_bookie_is_lost_after_the_delay_and_audited_once() -> None:
    lost = LostBookies()
    lost.update({A, B}, {A, B}, 0.0)
    lost.update({A, B}, {A}, 10.0)
    assert lost.to_audit(600, 609.9) == set()
    assert lost.next_s(600, 20.0) == 590.0
    assert lost.to_audit(600, 610.0) == {B}
    lost.audited({B})
    assert lost.to_audit(600, 700.0) == set()
    assert lost.next_s(600, 20.0) is None
    lost.audit_again()
    assert lost.to_audit(600, 700.0) == {B}


def test_a_returning_bookie_is_not_lost_and_its_delay_restarts() -> None:
    lost = LostBookies()
    lost.update({A}, set(), 0.0)
    lost.update({A}, {A}, 500.0)
    lost.update({A}, set(), 501.0)
    assert lost.lost(600, 1100.0) == set()
    assert lost.lost(600, 1101.0) == {A}
    lost.returned({A})
    assert lost.missing == set()


def test_giving_up_needs_no_delay() -> None:
    lost = LostBookies()
    lost.update({A, B}, {A}, 5.0)
    assert lost.lost(600, 5.0, at_once=True) == {B}
    assert lost.lost(0, 5.0) == {B}


def test_a_bookie_without_ledgers_and_cookie_is_not_missing() -> None:
    lost = LostBookies()
    lost.update({A}, set(), 0.0)
    lost.update(set(), set(), 1.0)
    assert lost.lost(0, 2.0) == set()
