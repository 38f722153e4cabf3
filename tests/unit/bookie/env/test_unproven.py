"""Which connection is closed: the oldest unauthenticated one, of all or of one address."""

from quire_bookie.env.unproven import Unproven


def test_the_oldest_is_returned_first_and_none_twice() -> None:
    unproven: Unproven[str] = Unproven()
    for connection, address in (("first", "a"), ("second", "b"), ("third", "a")):
        unproven.add(connection, address)
    assert unproven.pop_oldest("b") == "second"
    assert unproven.pop_oldest("b") is None
    assert [unproven.pop_oldest() for _ in range(3)] == ["first", "third", None]


def test_an_authenticated_or_ended_connection_is_never_returned() -> None:
    unproven: Unproven[str] = Unproven()
    unproven.add("let in", "a")
    unproven.discard("let in")
    unproven.discard("let in")
    assert unproven.pop_oldest() is None
    assert (unproven._all, unproven._of_address) == ({}, {})
