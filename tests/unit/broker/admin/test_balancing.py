"""The admin API of load balancing, over HTTP, on two brokers."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from quire_broker.admin import answers, balancing
from quire_broker.admin.stats import topic_stats
from quire_broker.balancing.history import BUNDLE_DATA
from quire_broker.settings.balancing import BalancingSettings
from tests.support.broker_world import BrokerWorld, running_brokers

NAMESPACE = "/admin/v2/namespaces/public/default"


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[BrokerWorld]:
    async with running_brokers(tmp_path, 2, BalancingSettings()) as world:
        yield world


async def ask(world: BrokerWorld, number: int, path: str, method: str = "GET") -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, world.brokers[number].urls.http + path) as answer,
    ):
        return answer.status, await answer.json() if answer.content_type == "application/json" else None


async def test_both_brokers_name_the_leader_and_show_all_loads(pair: BrokerWorld) -> None:
    first, second = pair.brokers
    for number in range(2):
        status, leader = await ask(pair, number, "/admin/v2/brokers/leaderBroker")
        assert (status, leader) == (200, {"brokerId": first.broker_id, "serviceUrl": first.urls.http})
        _, state = await ask(pair, number, "/admin/quire/balancing")
        assert {each["broker"] for each in state["brokers"]} == {first.broker_id, second.broker_id}
        assert (state["leader"]["brokerId"], state["moves"], state["enabled"]) == (first.broker_id, [], True)
    _, state = await ask(pair, 0, "/admin/quire/balancing")
    assert state["events"][0]["text"] == f"{first.broker_id} leads"


async def test_only_the_leader_moves_bundles(pair: BrokerWorld) -> None:
    status, plan = await ask(pair, 0, "/admin/quire/balancing", "POST")
    assert (status, plan["moves"]) == (200, [])
    status, refused = await ask(pair, 1, "/admin/quire/balancing", "POST")
    assert (status, refused["reason"]) == (
        503,
        f"only the leader moves bundles; the leader is {pair.brokers[0].urls.http}",
    )


async def test_a_bundle_is_split_whichever_broker_is_asked(pair: BrokerWorld) -> None:
    for name in ("a", "b", "c", "d"):
        status, _ = await ask(pair, 0, f"/admin/v2/persistent/public/default/{name}", "PUT")
        assert status == 204
    _, ring = await ask(pair, 0, f"{NAMESPACE}/bundles")
    names = {bundle.range for broker in pair.brokers for bundle in broker.owners.held}
    wanted = sorted(names)[0]
    status, _ = await ask(pair, 0, f"{NAMESPACE}/{wanted}/split", "PUT")
    assert status == 204
    other = sorted(names)[1]
    status, _ = await ask(pair, 1, f"{NAMESPACE}/{other}/split?splitAlgorithmName=range_equally_divide", "PUT")
    assert status == 204
    _, after = await ask(pair, 0, f"{NAMESPACE}/bundles")
    while after["numBundles"] != ring["numBundles"] + 2:  # the broker notices the split of the other a little later
        _, after = await ask(pair, 0, f"{NAMESPACE}/bundles")
    status, refused = await ask(pair, 0, f"{NAMESPACE}/{wanted}/split", "PUT")
    assert (status, refused["reason"]) == (404, f"public/default has no bundle {wanted}")
    status, refused = await ask(pair, 0, f"{NAMESPACE}/{other}/split?splitAlgorithmName=by_moon", "PUT")
    assert status == 412
    assert "by_moon" in refused["reason"]
    topics = [await ask(pair, number, "/admin/v2/broker-stats/topics") for number in range(2)]
    listed = [
        topic
        for _, found in topics
        for bundle in found.get("public/default", {}).values()
        for topic in bundle["persistent"]
    ]
    assert sorted(listed) == [f"persistent://public/default/{name}" for name in ("a", "b", "c", "d")]


async def test_other_tasks_run_while_the_stats_of_topics_are_listed(
    pair: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "SLICE_S", 0.0)
    seen: list[int] = []
    turns = 0

    def recorded(*given: Any) -> dict[str, Any]:
        seen.append(turns)
        return topic_stats(*given)

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    monkeypatch.setattr(balancing, "topic_stats", recorded)
    names = [f"persistent://public/default/topic-{number}" for number in range(12)]
    for name in names:
        assert (await ask(pair, 0, f"/admin/v2/{name.replace('://', '/')}", "PUT"))[0] == 204
    counting = asyncio.create_task(count())
    listed = []
    for number, broker in enumerate(pair.brokers):
        status, found = await ask(pair, number, "/admin/v2/broker-stats/topics")
        assert status == 200
        for bundle, kinds in found.get("public/default", {}).items():
            assert bundle in {held.range for held in broker.owners.held}
            listed += list(kinds["persistent"])
    counting.cancel()
    assert sorted(listed) == sorted(names)
    assert len(set(seen)) == len(names), "the event loop went round between any two topics"


async def test_free_bundles_are_taken_and_split_by_brokers_of_the_leaders_choice(pair: BrokerWorld) -> None:
    _, before = await ask(pair, 0, f"{NAMESPACE}/bundles")
    bounds = before["boundaries"]
    for low, high in pairwise(bounds):
        status, answer = await ask(pair, 0, f"{NAMESPACE}/{low}_{high}/split", "PUT")
        assert status == 204, answer
    assert all(broker.owners.held for broker in pair.brokers)
    _, after = await ask(pair, 0, f"{NAMESPACE}/bundles")
    while after["numBundles"] != 2 * before["numBundles"]:  # the broker notices splits of the other a little later
        _, after = await ask(pair, 0, f"{NAMESPACE}/bundles")
    assert set(bounds) < set(after["boundaries"])


async def test_the_load_report_is_that_of_the_broker(pair: BrokerWorld) -> None:
    reporter = pair.brokers[1].balancing.reporter
    assert reporter is not None
    await reporter.measure_and_publish(always=True)
    _, report = await ask(pair, 1, "/admin/v2/broker-stats/load-report")
    assert report["webServiceUrl"] == pair.brokers[1].urls.http
    assert report["memory"]["usage"] > 1
    assert report["loadReportType"] == "LocalBrokerData"
    async with aiohttp.ClientSession() as session, session.get(pair.brokers[0].urls.http + "/metrics") as answer:
        text = await answer.text()
    assert 'quire_broker_leader{cluster="standalone"} 1.0' in text
    assert "pulsar_lb_memory_usage" in text
    assert "quire_broker_load_reports_total" in text


async def test_without_balancing_a_broker_names_itself(tmp_path: Path) -> None:
    async with running_brokers(tmp_path, 2) as world:
        for number, broker in enumerate(world.brokers):
            _, leader = await ask(world, number, "/admin/v2/brokers/leaderBroker")
            assert leader["brokerId"] == broker.broker_id


async def test_the_averages_of_a_namespace_end_with_it(pair: BrokerWorld) -> None:
    store = pair.sessions[0]
    for name in ("gone", "gone-2"):
        assert (await ask(pair, 0, f"/admin/v2/namespaces/public/{name}", "PUT"))[0] == 204
        await store.put(f"{BUNDLE_DATA}/public/{name}/0x00000000_0xffffffff", b"{}")
    assert (await ask(pair, 0, "/admin/v2/namespaces/public/gone", "DELETE"))[0] == 204
    assert await store.get(f"{BUNDLE_DATA}/public/gone/0x00000000_0xffffffff") is None
    assert await store.get(f"{BUNDLE_DATA}/public/gone-2/0x00000000_0xffffffff") is not None


async def test_a_failed_task_of_load_balancing_is_counted(pair: BrokerWorld) -> None:
    broker = pair.brokers[0]

    async def fail() -> None:
        raise ValueError("a defect")

    before = broker.background_failures
    await asyncio.wait([broker.balancing._tasks.spawn(fail(), "leader")])
    assert broker.background_failures == before + 1
    async with aiohttp.ClientSession() as session, session.get(broker.urls.http + "/metrics") as answer:
        text = await answer.text()
    line = next(line for line in text.splitlines() if line.startswith("quire_broker_background_failures_total{"))
    assert float(line.rsplit(" ", 1)[1]) == before + 1
