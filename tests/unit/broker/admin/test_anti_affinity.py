"""Anti-affinity groups and failure domains, over HTTP, and what the leader makes of them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp

from quire_broker.settings.balancing import BalancingSettings
from tests.support.broker_world import BrokerWorld, running_brokers

NAMESPACES = "/admin/v2/namespaces/public"
DOMAINS = "/admin/v2/clusters/standalone/failureDomains"


async def ask(world: BrokerWorld, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, world.brokers[0].urls.http + path, json=body) as answer,
    ):
        text = await answer.text()
        return answer.status, json.loads(text) if text.startswith(("{", "[")) else text or None


async def test_groups_and_domains_are_stored_shown_and_deleted(tmp_path: Path) -> None:
    async with running_brokers(tmp_path, 1) as world:
        assert await ask(world, "GET", f"{NAMESPACES}/default/antiAffinity") == (204, None)
        assert (await ask(world, "POST", f"{NAMESPACES}/default/antiAffinity", "shop"))[0] == 204
        assert await ask(world, "GET", f"{NAMESPACES}/default/antiAffinity") == (200, "shop")
        assert await world.brokers[0].policies.anti_affinity_groups() == {"public/default": "shop"}
        members = "antiAffinity/shop?property"
        for root in (NAMESPACES.removesuffix("/public"), "/admin/namespaces"):
            assert await ask(world, "GET", f"{root}/standalone/{members}=public") == (200, ["public/default"])
            assert await ask(world, "GET", f"{root}/standalone/{members}=other") == (200, [])
        assert (await ask(world, "DELETE", f"{NAMESPACES}/default/antiAffinity"))[0] == 204
        assert await ask(world, "GET", f"{NAMESPACES}/default/antiAffinity") == (204, None)

        assert (await ask(world, "POST", f"{DOMAINS}/zone-1", {"brokers": ["a:1"]}))[0] == 204
        assert await ask(world, "GET", DOMAINS) == (200, {"zone-1": {"brokers": ["a:1"]}})
        assert await ask(world, "GET", f"{DOMAINS}/zone-1") == (200, {"brokers": ["a:1"]})
        assert (await ask(world, "DELETE", f"{DOMAINS}/zone-1"))[0] == 204
        assert (await ask(world, "GET", f"{DOMAINS}/zone-1"))[0] == 404
        assert (await ask(world, "DELETE", f"{DOMAINS}/zone-1"))[0] == 404


async def test_invalid_groups_and_domains_are_refused(tmp_path: Path) -> None:
    async with running_brokers(tmp_path, 1) as world:
        for wrong in ("", ["shop"], "x" * 1025, "two\nlines"):
            status, refused = await ask(world, "POST", f"{NAMESPACES}/default/antiAffinity", wrong)
            assert (status, "name of 1 to 1024 characters" in refused["reason"]) == (412, True)
        assert (await ask(world, "POST", f"{NAMESPACES}/gone/antiAffinity", "shop"))[0] == 404
        for brokers in (None, "a:1", [1], ["a:1"] * 1001):
            assert (await ask(world, "POST", f"{DOMAINS}/zone-1", {"brokers": brokers}))[0] == 412
        assert (await ask(world, "POST", "/admin/v2/clusters/other/failureDomains/x", {"brokers": []}))[0] == 404


async def test_namespaces_of_a_group_get_different_brokers(tmp_path: Path) -> None:
    async with running_brokers(tmp_path, 2, BalancingSettings()) as world:
        policies = world.brokers[0].policies
        for name in ("left", "right"):
            assert (await ask(world, "PUT", f"{NAMESPACES}/{name}", {"bundles": {"numBundles": 1}}))[0] == 204
            noticed = policies.changes
            assert (await ask(world, "POST", f"{NAMESPACES}/{name}/antiAffinity", "apart"))[0] == 204
            while policies.changes < noticed + 1:  # noqa: ASYNC110  no event tells
                await asyncio.sleep(0)
            assert (await ask(world, "PUT", f"/admin/v2/persistent/public/{name}/topic"))[0] == 204
        held = [{str(bundle.namespace) for bundle in broker.owners.held} for broker in world.brokers]
        assert sorted(held, key=sorted) == [{"public/left"}, {"public/right"}]
