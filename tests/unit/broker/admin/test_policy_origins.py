"""The policies in force with their origins over HTTP, of running brokers."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from quire_broker.admin.policy_origins import OF_NAMESPACES
from quire_broker.names import parse_topic
from quire_broker.policies.of_topics import PATHS
from tests.support.broker_world import BrokerWorld, running_brokers

TOPIC = "persistent/public/default/orders"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[BrokerWorld]:
    """Two brokers; the first one owns the topic."""
    async with running_brokers(tmp_path, 2) as found:
        name = parse_topic("public/default/orders")
        assert await found.brokers[0].parts.lookups.find(name) is not None
        await found.brokers[0].topics.get(name, create=True)
        yield found


async def ask(world: BrokerWorld, method: str, path: str, body: Any = None, at: int = 0) -> tuple[int, Any]:
    """Return status and content of a response."""
    url = f"http://127.0.0.1:{world.brokers[at].http_port}/admin/{path}"
    async with aiohttp.ClientSession() as session, session.request(method, url, json=body) as answer:
        return answer.status, await answer.json() if answer.content_type == "application/json" else None


async def test_a_policy_moves_from_level_to_level(world: BrokerWorld) -> None:
    async def origin(of: str) -> Any:
        status, found = await ask(world, "GET", f"quire/policies/{of}", at=1)
        assert status == 200
        return found["policies"]["retention"]

    of_namespace, of_topic = ({"retentionTimeInMinutes": n, "retentionSizeInMB": n} for n in (1, 2))
    for of in (TOPIC, "public/default"):
        assert ((await origin(of))["from"], (await origin(of))["set"]) == ("broker", {})
    assert (await ask(world, "POST", "v2/namespaces/public/default/retention", of_namespace))[0] == 204
    assert await origin(TOPIC) == {"value": of_namespace, "from": "namespace", "set": {"namespace": of_namespace}}
    assert (await ask(world, "POST", f"v2/{TOPIC}/retention", of_topic))[0] == 204
    assert (await origin(TOPIC))["value"] == of_topic
    assert (await origin(TOPIC))["set"] == {"topic": of_topic, "namespace": of_namespace}
    assert (await ask(world, "DELETE", f"v2/{TOPIC}/retention"))[0] == 204
    assert (await origin(TOPIC))["from"] == "namespace"


async def test_every_policy_is_shown(world: BrokerWorld) -> None:
    for root, names in ((TOPIC, PATHS), ("public/default", OF_NAMESPACES)):
        _, found = await ask(world, "GET", f"quire/policies/{root}")
        shown = {name for name in found["policies"] if not name.startswith("backlogQuota?")}
        assert shown == set(names) and len(found["policies"]) == len(names) + 2


async def test_nothing_is_shown_of_what_does_not_exist(world: BrokerWorld) -> None:
    for path in ("public/none", "persistent/public/default/none"):
        assert (await ask(world, "GET", f"quire/policies/{path}"))[0] == 404
