"""The brokers that a proxy knows."""

import asyncio
import random

import pytest

from quire_broker.ownership.listeners import Listener
from quire_broker.ownership.owners import BrokerUrls
from quire_broker.ownership.registration import BROKERS, broker_data
from quire_broker.policies.store import encode_json
from quire_broker.proxy.broker_book import RegisteredBrokers, StaticBrokers, known_broker
from quire_broker.proxy.targets import Address
from tests.sim.metadata import SimMetadata, SimMetadataStore

URLS = BrokerUrls(
    "pulsar://a:6650",
    "http://a:8080",
    "pulsar+ssl://a:6651",
    "https://a:8443",
    (Listener("outside", "pulsar://out:7000", "pulsar+ssl://out:7001"),),
)


def test_a_registration_names_the_addresses_of_the_kind_that_is_used() -> None:
    data = broker_data(URLS, "1", 0)
    plain = known_broker(data, tls=False)
    assert (plain.native, plain.web) == (Address("a", 6650), "http://a:8080")
    assert plain.addresses == {Address("a", 6650), Address("out", 7000)}
    secured = known_broker(data, tls=True)
    assert (secured.native, secured.web) == (Address("a", 6651), "https://a:8443")
    assert secured.addresses == {Address("a", 6651), Address("out", 7001)}
    assert known_broker({}, tls=False).native is None


def test_configured_brokers_are_used_in_turns() -> None:
    book = StaticBrokers("pulsar://a:1,b:2", "http://a:8080,b:8080")
    first = [book.brokers()[0] for _ in range(4)]
    assert first[:2] == first[2:] and len(set(first)) == 2
    assert book.has(Address("a", 1)) and not book.has(Address("a", 8080))
    assert StaticBrokers("", "").brokers() == []


@pytest.mark.parametrize("wrong", [b"no json", b"[]", b'{"pulsarServiceUrl": "ftp://a:1"}', b'{"pulsarServiceUrl": 5}'])
async def test_registered_brokers_are_followed_and_invalid_ones_left_out(wrong: bytes) -> None:
    store = SimMetadataStore(SimMetadata(random.Random(1), delay_s=(0.0, 0.0)))
    await store.put(f"{BROKERS}/a:8080", encode_json(broker_data(URLS, "1", 0)))
    await store.put(f"{BROKERS}/wrong:8080", wrong)
    book = RegisteredBrokers(store, tls=False)
    following = asyncio.create_task(book.follow())
    try:
        async with asyncio.timeout(20):
            await book.ready.wait()
            assert [broker.native for broker in book.brokers()] == [Address("a", 6650)]
            other = BrokerUrls("pulsar://b:6650", "http://b:8080")
            await store.put(f"{BROKERS}/b:8080", encode_json(broker_data(other, "1", 0)))
            while not book.has(Address("b", 6650)):  # noqa: ASYNC110  the book follows the store
                await asyncio.sleep(0)
            await store.delete(f"{BROKERS}/a:8080")
            while book.has(Address("a", 6650)):  # noqa: ASYNC110  the book follows the store
                await asyncio.sleep(0)
            assert len(book.brokers()) == 1
    finally:
        following.cancel()
