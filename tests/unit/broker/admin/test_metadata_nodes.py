"""Metadata over HTTP: what a reader of ledgers needs, at one state, and nothing else of the store."""

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from quire_bookie.errors import MetadataUnavailableError
from quire_bookie.metadata import layout
from quire_bookie.metadata.store import Node
from quire_broker.admin import metadata_nodes
from quire_broker.limits import METADATA_NODES_MAX, METADATA_SCANS_MAX
from tests.sim.metadata import SimMetadataStore
from tests.support.broker_world import BrokerWorld, running_brokers

PATH = "/admin/quire/metadata"
FOLDER = f"{layout.ROOT}/00"


class Asked:
    """Requests to the only broker, whose store is `store`."""

    def __init__(self, world: BrokerWorld, session: aiohttp.ClientSession) -> None:
        self.store: SimMetadataStore = world.sessions[0]
        self._session = session
        self.url = f"http://127.0.0.1:{world.brokers[0].http_port}{PATH}"

    async def text(self, path: str, **query: str | list[str]) -> tuple[int, str]:
        """Return status and text."""
        pairs = [(key, each) for key, one in query.items() for each in ([one] if isinstance(one, str) else one)]
        async with self._session.get(f"{self.url}/{path}", params=pairs) as answer:
            return answer.status, await answer.text()

    async def json(self, path: str, **query: str | list[str]) -> Any:
        """Return the value of a successful response."""
        status, text = await self.text(path, **query)
        assert status == 200, text
        return json.loads(text)

    async def reason(self, path: str, **query: str | list[str]) -> tuple[int, str]:
        """Return status and reason of a refusal."""
        status, text = await self.text(path, **query)
        assert status >= 400, text
        return status, json.loads(text)["reason"]

    async def lines(self, **query: str) -> list[Any]:
        """Return the lines of a scan."""
        status, text = await self.text("scan", **query)
        assert status == 200, text
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
async def asked(tmp_path: Path) -> AsyncIterator[Asked]:
    """A broker whose store has 250 more nodes, more than two pages."""
    async with running_brokers(tmp_path, 1) as world, aiohttp.ClientSession() as session:
        for number in range(250):
            await world.sessions[0].put(f"{FOLDER}/{number:04d}", b"\xff%d" % number)
        await world.sessions[0].put(f"{FOLDER}/0007", b"again")
        yield Asked(world, session)


def stored(one: Any) -> Node:
    return Node(one["key"], b64decode(one["value"]), one["version"])


async def test_nodes_come_in_the_order_of_their_keys_and_null_for_a_missing_one(asked: Asked) -> None:
    found = await asked.json("nodes", key=[f"{FOLDER}/0007", f"{FOLDER}/none", f"{FOLDER}/0003"])
    assert stored(found[0]) == Node(f"{FOLDER}/0007", b"again", 1)
    assert found[1] is None
    assert stored(found[2]) == Node(f"{FOLDER}/0003", b"\xff3", 0)


async def test_a_scan_has_each_node_in_a_line_and_their_number_in_the_last(asked: Asked) -> None:
    *nodes, end = await asked.lines(prefix=f"{FOLDER}/")
    assert [one["key"] for one in nodes] == [f"{FOLDER}/{number:04d}" for number in range(250)]
    assert stored(nodes[7]).value == b"again" and end == {"nodes": 250}
    *keys, end = await asked.lines(prefix=f"{FOLDER}/", keysOnly="true")
    assert keys == [{"key": one["key"], "version": one["version"]} for one in nodes] and end == {"nodes": 250}
    assert await asked.lines(prefix=f"{layout.ROOT}/none/") == [{"nodes": 0}]


async def test_the_answer_to_head_has_no_body(asked: Asked) -> None:
    url = URL(asked.url)
    for path in (f"scan?prefix={FOLDER}/", f"children?key={FOLDER}", f"nodes?key={FOLDER}/0007"):
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(f"HEAD {url.path}/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        head, body = (await reader.read()).split(b"\r\n\r\n", 1)
        writer.close()
        assert head.startswith(b"HTTP/1.1 200 OK") and body == b""


async def test_children_are_the_names_below_a_key(asked: Asked) -> None:
    assert await asked.json("children", key=FOLDER) == [f"{number:04d}" for number in range(250)]
    assert "00" in await asked.json("children", key=layout.ROOT)
    assert await asked.json("children", key=f"{FOLDER}/none") == []


@pytest.mark.parametrize(
    "key", ["/quire/epoch", "/admin/policies/public", "/ledgersx", "/ledgers-other/1", "/loadbalance", "/"]
)
async def test_other_parts_of_the_store_are_refused(asked: Asked, key: str) -> None:
    if key != "/":
        await asked.store.put(key, b"secret")
        assert (await asked.reason("nodes", key=key))[0] == 403
        assert (await asked.reason("children", key=key))[0] == 403
    status, reason = await asked.reason("scan", prefix=f"{key.rstrip('/')}/")
    assert status in (400, 403) and "secret" not in reason


async def test_wrong_queries_are_refused_with_their_value(asked: Asked) -> None:
    assert await asked.reason("nodes") == (400, f"0 keys: give 1 to {METADATA_NODES_MAX} by key=")
    many = [f"{FOLDER}/{number}" for number in range(METADATA_NODES_MAX + 1)]
    assert (await asked.reason("nodes", key=many))[0] == 400
    assert "'ledgers'" in (await asked.reason("nodes", key="ledgers"))[1]
    assert (await asked.reason("children"))[0] == 400
    assert await asked.reason("scan", prefix=FOLDER) == (400, f"prefix={FOLDER!r}: must end with /")


async def test_a_scan_ends_with_the_reason_if_the_store_fails_in_the_middle(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = asked.store.scan

    async def failing(prefix: str, **given: Any) -> AsyncIterator[list[Node]]:
        async for page in scan(prefix, **given):
            yield page
            raise MetadataUnavailableError("the members are gone")

    monkeypatch.setattr(asked.store, "scan", failing)
    *nodes, end = await asked.lines(prefix=f"{FOLDER}/")
    assert 0 < len(nodes) < 250 and end == {"reason": "the members are gone"}


async def test_scans_are_few_at_a_time(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    scan, begun, go_on = asked.store.scan, asyncio.Semaphore(0), asyncio.Event()

    async def waiting(prefix: str, **given: Any) -> AsyncIterator[list[Node]]:
        begun.release()
        await go_on.wait()
        async for page in scan(prefix, **given):
            yield page

    monkeypatch.setattr(asked.store, "scan", waiting)
    running = [asyncio.create_task(asked.lines(prefix=f"{FOLDER}/")) for _ in range(METADATA_SCANS_MAX)]
    for _ in running:
        await begun.acquire()
    status, reason = await asked.reason("scan", prefix=f"{FOLDER}/")
    assert status == 429 and "try again" in reason
    go_on.set()
    assert [lines[-1] for lines in await asyncio.gather(*running)] == [{"nodes": 250}] * METADATA_SCANS_MAX
    assert (await asked.lines(prefix=f"{FOLDER}/"))[-1] == {"nodes": 250}


async def test_a_scan_ends_at_its_deadline(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    scan, never = asked.store.scan, asyncio.Event()

    async def stuck(prefix: str, **given: Any) -> AsyncIterator[list[Node]]:
        if given.get("keys_only"):
            await never.wait()
        async for page in scan(prefix, **given):
            yield page
            await never.wait()

    monkeypatch.setattr(asked.store, "scan", stuck)
    monkeypatch.setattr(metadata_nodes, "METADATA_SCAN_S", 0.5)
    status, reason = await asked.reason("scan", prefix=f"{FOLDER}/", keysOnly="true")
    assert status == 503 and "did not answer" in reason
    with pytest.raises(aiohttp.ClientError):  # closed in the middle: no client takes it for the whole
        await asked.lines(prefix=f"{FOLDER}/")
