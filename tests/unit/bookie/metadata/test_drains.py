"""Stored requests to drain bookies."""

import random

import pytest

from quire_bookie.errors import MetadataFormatError, MetadataUnavailableError
from quire_bookie.metadata.drains import (
    DRAINS,
    Drain,
    Drains,
    Progress,
    Wish,
    decode_drains,
    encode_drains,
    leaving,
    with_wish,
)
from quire_bookie.model import BookieId
from tests.sim.loop import SimLoop, simulate
from tests.sim.metadata import SimMetadata, SimMetadataStore

A, B = BookieId("a:3181"), BookieId("b:3181")


def test_requests_survive_their_encoding() -> None:
    drains = (Drain(A, Wish.DRAIN, 5), Drain(B, Wish.DECOMMISSION, 6, leaving=True, made_read_only=True))
    assert decode_drains(encode_drains(drains)) == drains
    assert leaving(drains) == {B}
    assert leaving((Drain(A, Wish.CANCEL, 5, leaving=True),)) == frozenset()
    for broken in (b"", b"{}x", b'[{"bookie": "a"}]', b'[{"bookie":"a","wish":"fly","since_ms":1}]'):
        with pytest.raises(MetadataFormatError):
            decode_drains(broken)


def test_a_repeated_request_changes_nothing_and_another_keeps_the_progress() -> None:
    once = with_wish((), A, Wish.DRAIN, 5)
    assert once == (Drain(A, Wish.DRAIN, 5),)
    assert with_wish(once, A, Wish.DRAIN, 9) == once
    let_go = (Drain(A, Wish.DRAIN, 5, leaving=True, made_read_only=True),)
    more = with_wish(let_go, A, Wish.DECOMMISSION, 9)
    assert more == (Drain(A, Wish.DECOMMISSION, 5, leaving=True, made_read_only=True),)
    assert with_wish(more, A, Wish.CANCEL, 10)[0].wish is Wish.CANCEL
    assert with_wish(once, A, Wish.CANCEL, 10) == (), "nothing was done yet: nothing to undo"
    assert with_wish((), A, Wish.CANCEL, 10) == ()


def test_changes_of_unknown_outcome_and_conflicts_are_settled() -> None:
    async def scenario(loop: SimLoop) -> None:
        server = SimMetadata(loop.network.chance, unknown_chance=0.5)
        one, other = Drains(SimMetadataStore(server)), Drains(SimMetadataStore(server))
        for number in range(20):
            drains = one if number % 2 else other
            await drains.wish(BookieId(f"b{number}"), Wish.DRAIN, number)
        assert [drain.bookie for drain in await one.read()] == [f"b{number}" for number in range(20)]
        server.unknown_chance = 0.0
        with pytest.raises(MetadataUnavailableError, match="101 drains; at most"):
            await one.change(lambda _: tuple(Drain(BookieId(str(n)), Wish.DRAIN, n) for n in range(101)))
        server.write(DRAINS, b"scribble", None)
        with pytest.raises(MetadataFormatError):
            await one.wish(A, Wish.DRAIN, 1)
        assert server.nodes[DRAINS].value == b"scribble", "an unreadable value is not overwritten"

    simulate(scenario, seed=4)


def test_progress_is_only_displayed_and_may_be_missing() -> None:
    async def scenario(_: SimLoop) -> None:
        server = SimMetadata(random.Random(1))
        drains = Drains(SimMetadataStore(server))
        seen = Progress(A, "leaving", 3, 100, 5, 200, 1, 2, None, ("no room",))
        assert await drains.progress_of(A) is None
        await drains.note(seen)
        assert await drains.progress_of(A) == seen
        server.write("/quire/drain-progress/x", b"?", None)
        assert [one async for one in drains.progress()] == [seen]
        await drains.forget(A)
        await drains.forget(A)
        assert await drains.progress_of(A) is None

    simulate(scenario, seed=1)
