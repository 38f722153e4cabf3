"""Admin calls for topics that are spread over three brokers, sent to each of them: everyone answers the same."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from quire_broker.admin.forwarding import FORWARDED
from quire_broker.names import parse_topic
from tests.support.broker_world import BrokerWorld, running_brokers

PARTITIONS = 8
NAME = parse_topic("persistent://public/default/spread")
PATH = "/admin/v2/persistent/public/default/spread"
NAMESPACE = "/admin/v2/namespaces/public/default"


@dataclass
class Spread:
    """Three brokers, a topic whose partitions all three own, and a client."""

    world: BrokerWorld
    session: aiohttp.ClientSession

    async def call(
        self, number: int, method: str, path: str, body: Any = None, *, redirects: bool = True, sender: str = ""
    ) -> tuple[int, Any]:
        """Status and JSON of a request to one broker."""
        url = self.world.brokers[number].urls.http + path
        headers = {FORWARDED: sender} if sender else {}
        async with self.session.request(
            method, url, json=body, headers=headers, allow_redirects=redirects, max_redirects=5
        ) as answer:
            text = await answer.text()
            return answer.status, await answer.json() if text else None

    def owners(self) -> dict[str, int]:
        """The broker that has each partition loaded."""
        return {
            str(topic.name): number
            for number, broker in enumerate(self.world.brokers)
            for topic in broker.topics.loaded
            if topic.name.partitioned == NAME
        }

    def free_bundle_of(self, number: int) -> str:
        """A bundle of the namespace that the broker owns."""
        return next(iter(self.world.brokers[number].owners.held)).range


@pytest.fixture
async def spread(tmp_path: Path) -> AsyncIterator[Spread]:
    async with running_brokers(tmp_path, 3) as world, aiohttp.ClientSession() as session:
        found = Spread(world, session)
        assert await found.call(0, "PUT", PATH + "/partitions", PARTITIONS) == (204, None)
        for index in range(PARTITIONS):
            await world.brokers[index % 3].parts.lookups.find(NAME.partition_of(index))
        assert await found.call(0, "POST", PATH + "/createMissedPartitions") == (204, None)
        assert set(found.owners().values()) == {0, 1, 2}, "the partitions are spread"
        assert len(found.owners()) == PARTITIONS
        yield found


@pytest.mark.parametrize("asked", [0, 1, 2])
async def test_every_broker_serves_the_subscriptions_of_all_partitions(spread: Spread, asked: int) -> None:
    one = PATH + "/subscription/s"
    assert await spread.call(asked, "PUT", one) == (204, None)
    assert (await spread.call(asked, "PUT", one))[0] == 409
    for number in range(3):
        assert await spread.call(number, "GET", PATH + "/subscriptions") == (200, ["s"])
    for path in ("/skip_all", "/resetcursor/0", "/expireMessages/10"):
        assert await spread.call(asked, "POST", one + path) == (204, None)
    assert await spread.call(asked, "POST", PATH + "/all_subscription/expireMessages/10") == (204, None)
    status, stats = await spread.call(asked, "GET", PATH + "/partitioned-stats")
    assert status == 200 and set(stats["subscriptions"]) == {"s"}
    assert len(stats["partitions"]) == PARTITIONS
    assert len({found["ownerBroker"] for found in stats["partitions"].values()}) == 3
    assert (await spread.call(asked, "GET", PATH + "/partitioned-stats?perPartition=false"))[1]["partitions"] == {}
    status, internal = await spread.call(asked, "GET", PATH + "/partitioned-internalStats")
    assert status == 200 and len(internal["partitions"]) == PARTITIONS
    assert await spread.call(asked, "POST", NAMESPACE + "/clearBacklog") == (204, None)
    assert await spread.call(asked, "POST", NAMESPACE + "/clearBacklog/s") == (204, None)
    assert await spread.call(asked, "DELETE", PATH + "/truncate") == (204, None)
    assert await spread.call(asked, "DELETE", one) == (204, None)
    assert (await spread.call(asked, "DELETE", one))[0] == 404
    assert await spread.call(asked, "GET", PATH + "/subscriptions") == (200, [])


@pytest.mark.parametrize("asked", [0, 1, 2])
async def test_every_broker_unloads_all_partitions(spread: Spread, asked: int) -> None:
    assert await spread.call(asked, "PUT", PATH + "/unload") == (204, None)
    assert spread.owners() == {}


@pytest.mark.parametrize("asked", [0, 1, 2])
async def test_every_broker_unloads_all_bundles_of_a_namespace(spread: Spread, asked: int) -> None:
    before = [broker.owners.held for broker in spread.world.brokers]
    assert await spread.call(asked, "PUT", NAMESPACE + "/unload") == (204, None)
    assert spread.owners() == {}
    after = [broker.owners.held for broker in spread.world.brokers]
    assert set().union(*before) == set().union(*after), "each has another owner now"
    assert not any(old & new for old, new in zip(before, after, strict=True))
    assert await spread.call(asked, "PUT", NAMESPACE + "/unload?destinationBroker=") == (204, None)
    assert not any(broker.owners.held for broker in spread.world.brokers), "they are free"


async def test_every_broker_unloads_one_bundle_of_another(spread: Spread) -> None:
    for owner in range(3):
        bundle = spread.free_bundle_of(owner)
        assert await spread.call((owner + 1) % 3, "PUT", f"{NAMESPACE}/{bundle}/unload") == (204, None)
        assert bundle not in {held.range for held in spread.world.brokers[owner].owners.held}
    assert (await spread.call(0, "PUT", f"{NAMESPACE}/0x00000000_0x00000001/unload"))[0] == 404
    chosen, bundle = spread.world.brokers[2], spread.free_bundle_of(0)
    path = f"{NAMESPACE}/{bundle}/unload?destinationBroker="
    assert (await spread.call(1, "PUT", path + "nowhere:1"))[0] == 404
    assert await spread.call(1, "PUT", path + chosen.broker_id) == (204, None)
    assert bundle in {held.range for held in chosen.owners.held}


@pytest.mark.parametrize("asked", [0, 1, 2])
async def test_every_broker_terminates_and_deletes_all_partitions(spread: Spread, asked: int) -> None:
    status, ends = await spread.call(asked, "POST", PATH + "/terminate/partitions")
    assert status == 200 and set(ends) == {str(index) for index in range(PARTITIONS)}
    assert await spread.call(asked, "DELETE", PATH + "/partitions") == (204, None)
    assert spread.owners() == {}
    assert (await spread.call(asked, "GET", PATH + "/partitioned-stats"))[0] == 404
    assert await spread.call(asked, "GET", "/admin/v2/persistent/public/default") == (200, [])


@pytest.mark.parametrize("asked", [0, 1, 2])
async def test_every_broker_deletes_a_namespace_by_force(spread: Spread, asked: int) -> None:
    assert (await spread.call(asked, "DELETE", NAMESPACE))[0] == 409
    assert await spread.call(asked, "DELETE", NAMESPACE + "?force=true") == (204, None)
    assert spread.owners() == {}
    assert not any(broker.owners.held for broker in spread.world.brokers)


async def test_a_partial_failure_names_the_partition(spread: Spread) -> None:
    failing = spread.world.brokers[1].topics.loaded[0]
    await failing.terminate()
    status, refused = await spread.call(0, "DELETE", PATH + "/truncate")
    assert status == 412
    assert refused["reason"].startswith(f"1 of 8 partitions failed; the others are done: {failing.name}: ")


async def test_a_broker_that_is_gone_is_named(spread: Spread) -> None:
    gone = spread.world.brokers[2]
    assert gone._http is not None
    await gone._http.close()
    status, refused = await spread.call(0, "GET", PATH + "/partitioned-stats")
    assert status == 503
    assert gone.urls.http in refused["reason"] and "did not answer" in refused["reason"]


async def test_a_redirect_says_that_it_is_the_last_and_the_next_broker_forwards(spread: Spread) -> None:
    partition, owner = next(iter(sorted(spread.owners().items())))
    path = f"/admin/v2/persistent/public/default/{partition.rsplit('/', 1)[1]}/stats"
    asked, third = (owner + 1) % 3, (owner + 2) % 3
    url = spread.world.brokers[asked].urls.http + path
    async with spread.session.get(url, allow_redirects=False) as answer:
        assert answer.status == 307
        assert answer.headers["Location"] == f"{spread.world.brokers[owner].urls.http}{path}?authoritative=true"
    for number in range(3):
        for query in ("", "?authoritative=true"):
            status, stats = await spread.call(number, "GET", path + query, redirects=not query)
            assert (status, stats["ownerBroker"]) == (200, spread.world.brokers[owner].broker_id)
    status, refused = await spread.call(third, "GET", path, sender="another")
    assert status == 421 and spread.world.brokers[owner].urls.http in refused["reason"]


async def test_an_unload_while_clients_ask_ends_in_an_answer(spread: Spread) -> None:
    async def ask(number: int) -> int:
        return (await spread.call(number, "GET", PATH + "/partitioned-stats"))[0]

    async def unload(number: int) -> int:
        return (await spread.call(number, "PUT", NAMESPACE + "/unload"))[0]

    found = await asyncio.gather(*(ask(number) for number in range(3)), *(unload(number) for number in range(3)))
    assert set(found) <= {200, 204}


async def test_every_broker_lists_the_non_persistent_topics_of_all(spread: Spread) -> None:
    root, unstored = "/admin/v2/non-persistent/public/default", parse_topic("non-persistent://public/default/spread")
    assert await spread.call(0, "PUT", f"{root}/spread/partitions", PARTITIONS) == (204, None)
    names = sorted(str(name) for name in unstored.partitions(PARTITIONS))
    for number, name in enumerate(unstored.partitions(PARTITIONS)):
        assert (await spread.call(number % 3, "GET", f"{root}/{name.local}/stats"))[0] == 200
    for number in range(3):
        assert await spread.call(number, "GET", root) == (200, names)
        status, stats = await spread.call(number, "GET", f"{root}/spread/partitioned-stats")
        assert (status, sorted(stats["partitions"])) == (200, names)
        assert await spread.call(number, "GET", f"{NAMESPACE}/topics?mode=NON_PERSISTENT") == (200, names)


async def test_a_bundle_that_moves_takes_its_non_persistent_topics_away(spread: Spread) -> None:
    root, name = "/admin/v2/non-persistent/public/default", parse_topic("non-persistent://public/default/moves")
    assert await spread.call(0, "PUT", f"{root}/moves") == (204, None)
    (owner,) = [broker for broker in spread.world.brokers if broker.topics.non_persistent.find(name)]
    topic = owner.topics.non_persistent.find(name)
    bundle = await owner.owners.bundle_of(name)
    assert await spread.call(0, "PUT", f"{NAMESPACE}/{bundle.range}/unload") == (204, None)
    assert topic is not None and topic.closing
    assert not any(broker.topics.non_persistent.find(name) for broker in spread.world.brokers)
