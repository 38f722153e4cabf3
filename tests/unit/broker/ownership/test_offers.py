"""Offers of bundles, answers to them, and the wait for bundles that are about to arrive."""

import asyncio
import random

import pytest

from quire_bookie.metadata.store import Node
from quire_broker.ownership.offers import READY, Arrivals, Offer, Readiness, offer_in
from tests.sim.metadata import SimMetadata, SimMetadataStore

BUNDLE = "shop/orders/0x00000000_0xffffffff"


@pytest.fixture
def server() -> SimMetadata:
    return SimMetadata(random.Random(1), delay_s=(0.0, 0.0))


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (b"{}", None),
        (b'{"quireOffer":"b:1"}', None),
        (b'{"quireOffer":{"to":"b:1"}}', Offer("b:1")),
        (b'{"quireOffer":{"to":"b:1","closed":true,"topics":["t",1]}}', Offer("b:1", closed=True, topics=("t", "1"))),
        (b'{"quireOffer":{"to":null,"closed":1,"topics":"t"}}', Offer("")),
    ],
)
def test_an_offer_is_read_from_the_node_of_a_bundle(value: bytes, found: Offer | None) -> None:
    assert offer_in(Node(f"/namespace/{BUNDLE}", value, 1)) == found


async def test_a_bundle_that_is_not_expected_is_not_waited_for() -> None:
    assert not await Arrivals().wait(BUNDLE)


async def test_requests_wait_until_an_expected_bundle_arrives() -> None:
    arrivals = Arrivals()
    arrivals.expect(BUNDLE, 60.0)
    waiting = [asyncio.create_task(arrivals.wait(BUNDLE)) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()  # a client that leaves ends no other's wait
    await asyncio.wait(waiting[:1])
    assert not waiting[1].done() and arrivals.expects(BUNDLE)
    arrivals.end(BUNDLE)
    assert await waiting[1] and not arrivals.expects(BUNDLE)
    arrivals.end(BUNDLE)


async def test_the_wait_for_a_bundle_has_a_time_limit() -> None:
    arrivals = Arrivals()
    arrivals.expect(BUNDLE, 0.01)
    assert await arrivals.wait(BUNDLE)
    assert not arrivals.expects(BUNDLE)


async def test_only_the_answer_to_the_present_offer_counts(server: SimMetadata) -> None:
    old_owner, next_owner = Readiness(SimMetadataStore(server)), Readiness(SimMetadataStore(server))
    async with old_owner.watching(BUNDLE) as watch:
        waiting = asyncio.create_task(old_owner.answer(watch, BUNDLE, 7))
        await next_owner.announce(BUNDLE, 6, {"nativeUrl": "pulsar://b:1"})
        await asyncio.sleep(0.01)
        assert not waiting.done()
        await next_owner.announce(BUNDLE, 7, {"nativeUrl": "pulsar://c:1"})
        assert (await waiting)["nativeUrl"] == "pulsar://c:1"


async def test_an_answer_is_withdrawn_by_the_broker_that_gave_it_only(server: SimMetadata) -> None:
    first, second = Readiness(SimMetadataStore(server)), Readiness(SimMetadataStore(server))
    await first.announce(BUNDLE, 1, {})
    await second.withdraw(BUNDLE)
    assert f"{READY}/{BUNDLE}" in server.nodes
    await first.withdraw(BUNDLE)
    await first.withdraw(BUNDLE)
    assert not server.nodes
