"""Messages of a topic over HTTP: published and read at its owner, and through another broker."""

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from quire_broker.admin import browsing
from quire_broker.admin.publishing import PUBLISHING
from quire_broker.names import parse_topic
from tests.support.broker_world import BrokerWorld, running_brokers

TOPIC = "/admin/quire/topics/persistent/public/default/orders/messages"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[BrokerWorld]:
    """Two brokers; the first one owns the topic `orders`."""
    async with running_brokers(tmp_path, 2) as found:
        name = parse_topic("public/default/orders")
        assert await found.brokers[0].parts.lookups.find(name) is not None
        await found.brokers[0].topics.get(name, create=True)
        yield found


class Asked:
    """Requests to one broker, as the console sends them."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session, self._port = session, port

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Return status and JSON."""
        url = f"http://127.0.0.1:{self._port}{path}{'&' if '?' in path else '?'}authoritative=true"
        async with self._session.request(method, url, json=body, allow_redirects=False) as answer:
            return answer.status, await answer.json()

    async def publish(self, text: str, **more: object) -> str:
        """Return the id of a message."""
        body = {"payload": base64.b64encode(text.encode()).decode(), **more}
        status, found = await self.ask("POST", TOPIC, body)
        assert status == 200, found
        return f"{found['ledgerId']}:{found['entryId']}"

    async def page(self, query: str) -> Any:
        """Return one page of messages."""
        status, found = await self.ask("GET", f"{TOPIC}?{query}")
        assert status == 200, found
        return found


@pytest.fixture
async def owner(world: BrokerWorld) -> AsyncIterator[Asked]:
    async with aiohttp.ClientSession() as session:
        yield Asked(session, world.brokers[0].http_port)


@pytest.fixture
async def other(world: BrokerWorld) -> AsyncIterator[Asked]:
    async with aiohttp.ClientSession() as session:
        yield Asked(session, world.brokers[1].http_port)


def texts(page: Any) -> list[str]:
    return [base64.b64decode(one["payload"]).decode() for one in page["messages"]]


async def test_what_is_published_is_read_in_pages_also_through_another_broker(owner: Asked, other: Asked) -> None:
    await owner.publish("one", key="k", properties={"a": "b"})
    await other.publish("two")
    third = await owner.publish("three", key="k")
    first = await other.page("count=2")
    assert texts(first) == ["one", "two"] and first["next"] == third
    assert first["messages"][0]["key"] == "k" and first["messages"][0]["properties"] == {"a": "b"}
    rest = await other.page(f"from={first['next']}")
    assert texts(rest) == ["three"] and rest["next"] is None
    assert texts(await owner.page("from=latest&count=2")) == ["two", "three"]


async def test_a_search_by_key_reads_a_bounded_number_of_entries_and_goes_on(
    owner: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browsing, "BROWSED_ENTRIES_MAX", 3)
    for number in range(5):
        await owner.publish(str(number), key="k" if number == 4 else "other")
    first = await owner.page("key=k")
    assert texts(first) == [] and first["entriesRead"] == 3
    second = await owner.page(f"key=k&from={first['next']}")
    assert texts(second) == ["4"] and second["next"] is None


async def test_a_page_ends_at_its_bytes(owner: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsing, "PEEK_BYTES_MAX", 100)
    ids = [await owner.publish(str(number) * 80) for number in range(3)]
    found = await owner.page("count=3")
    assert texts(found) == ["0" * 80] and found["next"] == ids[1]


async def test_an_empty_topic_has_no_messages(owner: Asked) -> None:
    for start in ("earliest", "latest"):
        assert await owner.page(f"from={start}") == {"messages": [], "next": None, "entriesRead": 0}


@pytest.mark.parametrize(
    ("query", "part"),
    [("from=x", "give earliest, latest or ledger:entry"), ("from=1:x", "from"), ("count=201", "count")],
)
async def test_a_wrong_query_is_refused(owner: Asked, query: str, part: str) -> None:
    status, found = await owner.ask("GET", f"{TOPIC}?{query}")
    assert status == 400 and part in found["reason"]


@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
        ({"payload": "%"}, 400, "payload is not base64"),
        ({"payload": 1}, 400, "payload must be a text"),
        ({"properties": {"a": 1}}, 400, "properties must be an object of texts"),
        ({"schemaVersion": -1}, 400, "must be the number of a version"),
        ({"schemaVersion": 3}, 404, "has no schema of version 3"),
    ],
)
async def test_a_wrong_message_is_refused(owner: Asked, body: object, status: int, part: str) -> None:
    assert (await owner.ask("POST", TOPIC, body))[0] == status
    assert part in (await owner.ask("POST", TOPIC, body))[1]["reason"]
    assert (await owner.page(""))["messages"] == []


async def test_a_message_leaves_no_producer(owner: Asked, world: BrokerWorld) -> None:
    await owner.publish("one")
    topic = world.brokers[0].topics.find(parse_topic("public/default/orders"))
    assert topic is not None and len(topic.producers) == 0


async def test_a_topic_that_does_not_exist_is_not_created(owner: Asked) -> None:
    path = TOPIC.replace("orders", "none")
    for method, body in (("GET", None), ("POST", {"payload": ""})):
        assert (await owner.ask(method, path, body))[0] == 404


async def test_messages_that_are_published_at_once_have_a_bound(owner: Asked, world: BrokerWorld) -> None:
    http: Any = world.brokers[0]._http
    gate: asyncio.Semaphore = http._runner.app[PUBLISHING]
    while not gate.locked():
        await gate.acquire()
    status, found = await owner.ask("POST", TOPIC, {"payload": ""})
    assert status == 429 and "are being published by HTTP" in found["reason"]
