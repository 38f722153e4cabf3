"""Whether other brokers accept connections, and lookups that wait while they do not."""

import asyncio
import random

import pytest

from quire_broker.names import NamespaceName, parse_topic
from quire_broker.ownership import reachability
from quire_broker.ownership.lookup import Lookups
from quire_broker.ownership.owners import BrokerUrls, Bundle, Owners
from quire_broker.ownership.reachability import Reachability
from quire_broker.policies.bundles import Bundles
from quire_broker.policies.store import PolicyStore
from tests.sim.metadata import SimMetadata, SimMetadataStore

A, B = BrokerUrls("pulsar://a:1", "http://a:2"), BrokerUrls("pulsar://b:1", "http://b:2")
TOPIC = parse_topic("persistent://public/default/t")


class Connecting:
    """Connections that are accepted or not, and their number."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.accepted = True

    async def __call__(self, host: str, port: int) -> None:
        self.asked.append((host, port))
        await asyncio.sleep(0)
        if not self.accepted:
            raise ConnectionRefusedError


async def test_a_broker_is_asked_once_for_many_lookups_and_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    connecting = Connecting()
    checks = Reachability(connecting)
    assert await asyncio.gather(*(checks.is_reachable(A) for _ in range(5))) == [True] * 5
    assert connecting.asked == [("a", 1)]
    monkeypatch.setattr(reachability, "REACHABLE_S", 0.0)
    await checks.is_reachable(B)
    connecting.accepted = False
    assert not await checks.is_reachable(B)
    assert not await checks.is_reachable(B), "a refusal is not remembered"
    assert len(connecting.asked) == 4


async def checked() -> None:
    """Wait for the checks that run in the background."""
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))


async def test_no_lookup_waits_for_a_trusted_broker_until_it_is_reached_again(monkeypatch: pytest.MonkeyPatch) -> None:
    connecting = Connecting()
    connecting.accepted = False
    checks = Reachability(connecting)
    checks.trust(B)
    assert await checks.is_reachable(B)
    await checked()
    assert not connecting.asked
    monkeypatch.setattr(reachability, "UNREACHABLE_CHECK_S", 0.0)
    monkeypatch.setattr(reachability, "REACHABLE_S", 0.0)
    for _ in range(2):
        assert await checks.is_reachable(B), "a check that fails changes nothing"
        await checked()
    assert len(connecting.asked) == 2
    connecting.accepted = True
    assert await checks.is_reachable(B)
    await checked()
    connecting.accepted = False
    assert not await checks.is_reachable(B)


async def bundle_of_a(server: SimMetadata) -> tuple[SimMetadataStore, Owners]:
    """Broker a owns the topic's bundle; broker b and its session."""
    first, second = SimMetadataStore(server), SimMetadataStore(server)
    policies = PolicyStore(first, "c1")
    namespace = NamespaceName("public", "default")
    await policies.create_tenant_with_namespace(namespace, {"allowedClusters": ["c1"]}, Bundles.even(1))
    owner = await Owners(first, policies, A).owner_of(Bundle(namespace, "0x00000000_0xffffffff"))
    assert owner is not None and owner.ours
    return first, Owners(second, PolicyStore(second, "c1"), B)


async def test_a_lookup_waits_until_the_lease_of_a_dead_owner_ends() -> None:
    server = SimMetadata(random.Random(1), delay_s=(0.0, 0.0))
    session, owners = await bundle_of_a(server)
    following = asyncio.create_task(owners.follow())
    connecting = Connecting()
    connecting.accepted = False
    lookup = asyncio.create_task(Lookups(owners, None, Reachability(connecting)).find(TOPIC))
    while not connecting.asked:  # noqa: ASYNC110  no event tells
        await asyncio.sleep(0)
    assert not lookup.done()
    session.lose_session()
    owner = await lookup
    assert owner is not None and owner.ours
    following.cancel()


async def test_an_owner_that_keeps_its_lease_is_named_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire_broker.ownership.lookup.LOOKUP_HOLD_S", 0.05)
    monkeypatch.setattr("quire_broker.ownership.lookup.LOOKUP_RECHECK_S", 0.01)
    server = SimMetadata(random.Random(1), delay_s=(0.0, 0.0))
    _, owners = await bundle_of_a(server)
    connecting = Connecting()
    connecting.accepted = False
    lookups = Lookups(owners, None, Reachability(connecting))
    found = await lookups.find(TOPIC)
    assert found is not None and (found.ours, found.urls) == (False, A)
    asked = len(connecting.asked)
    assert asked > 1
    await lookups.find(TOPIC)
    assert len(connecting.asked) == asked, "it is trusted for a while"
