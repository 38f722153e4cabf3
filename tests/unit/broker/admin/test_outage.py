"""Admin requests while the metadata store does not respond."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from quire_bookie.env.background import Background
from quire_bookie.errors import MetadataUnavailableError
from quire_broker.admin import outage
from quire_broker.admin.answers import answer_in_pieces, errors_as_json
from quire_broker.admin.context import BROKER
from quire_broker.admin.outage import LEFT_RUNNING, answered_without_metadata

Client = TestClient[web.Request, web.Application]


class Store:
    """A metadata store that responds, or not; and how a slow handler ended."""

    def __init__(self) -> None:
        self.responds = False
        self.go_on = asyncio.Event()
        self.ended: list[str] = []

    async def get(self, _: str) -> None:
        if not self.responds:
            raise MetadataUnavailableError("no etcd member can be reached")

    async def slow(self, request: web.Request) -> web.Response:
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        self.ended.append("done")
        return web.json_response(request.method)

    async def begun(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first ")
        await self.go_on.wait()
        await response.write_eof(b"second")
        return response

    async def fast(self, request: web.Request) -> web.StreamResponse:
        return await answer_in_pieces(request, ["[", "]"])

    async def failing(self, _: web.Request) -> web.Response:
        raise MetadataUnavailableError("own reason")


@pytest.fixture
async def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(outage, "ADMIN_PATIENCE_S", 0.01)
    return Store()


@pytest.fixture
async def client(store: Store) -> AsyncIterator[Client]:
    app = web.Application(middlewares=[errors_as_json, answered_without_metadata])
    app[BROKER], app[LEFT_RUNNING] = cast(Any, SimpleNamespace(metadata=store)), Background()
    app.on_cleanup.append(lambda app: app[LEFT_RUNNING].close())
    for method in ("GET", "POST"):
        app.router.add_route(method, "/slow", store.slow)
    app.router.add_get("/begun", store.begun)
    app.router.add_get("/fast", store.fast)
    app.router.add_get("/failing", store.failing)
    async with TestClient(TestServer(app)) as found:
        yield found


async def test_a_read_that_waits_for_the_store_is_answered_and_cancelled(store: Store, client: Client) -> None:
    response = await client.get("/slow")
    assert response.status == 503
    assert (await response.json())["reason"] == "metadata store: no etcd member can be reached; try again later"
    assert store.ended == ["cancelled"]


async def test_a_change_is_answered_and_goes_on(store: Store, client: Client) -> None:
    response = await client.post("/slow")
    assert response.status == 503
    assert "the change may still be made: look before you repeat it" in (await response.json())["reason"]
    left = client.app[LEFT_RUNNING]
    assert len(left) == 1
    store.go_on.set()
    await left.drain()
    assert store.ended == ["done"]
    assert not left


async def test_changes_that_go_on_are_bounded(store: Store, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "ADMIN_LEFT_RUNNING_MAX", 1)
    assert (await client.post("/slow")).status == 503
    second = asyncio.create_task(client.post("/slow"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(second), 0.2)
    store.go_on.set()
    assert (await second).status == 200


async def test_a_slow_request_is_left_alone_while_the_store_responds(store: Store, client: Client) -> None:
    store.responds = True
    asked = asyncio.create_task(client.get("/slow"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(asked), 0.2)
    store.go_on.set()
    assert await (await asked).json() == "GET"


async def test_a_response_that_has_begun_is_finished(store: Store, client: Client) -> None:
    response = await client.get("/begun")
    assert await response.content.readexactly(6) == b"first "
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(response.content.read(1), 0.2)
    store.go_on.set()
    assert (response.status, await response.content.read()) == (200, b"second")


async def test_fast_responses_and_their_errors_pass(client: Client) -> None:
    assert await (await client.get("/fast")).json() == []
    failing = await client.get("/failing")
    assert (failing.status, (await failing.json())["reason"]) == (503, "own reason")


async def test_a_server_that_stops_ends_what_goes_on(store: Store, client: Client) -> None:
    assert (await client.post("/slow")).status == 503
    await client.close()
    assert store.ended == ["cancelled"]
