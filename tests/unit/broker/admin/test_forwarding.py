"""Requests that a broker forwards to the owner of a topic: their headers and their bounds."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, make_mocked_request

from quire_bookie.admin.answers import RefusedError
from quire_bookie.admin.origin import PROXIED
from quire_bookie.env.bounded_body import read_body
from quire_broker.admin import forwarding
from quire_broker.admin.forwarding import FORWARDED, Call, Forwarding
from quire_broker.limits import FORWARD_SMALL_BYTES, FORWARDS_LARGE_MAX, FORWARDS_MAX
from quire_broker.security.settings import AccessSettings


class OwnerBroker:
    """A server that keeps what it got, and answers as told."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.status, self.body = 200, b'{"ok": true}'

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append((request.method, request.raw_path, dict(request.headers), await request.read()))
        return web.Response(status=self.status, body=self.body, content_type="application/json")


@pytest.fixture
async def owner() -> AsyncIterator[tuple[OwnerBroker, str]]:
    app, found = web.Application(), OwnerBroker()
    app.router.add_route("*", "/{any:.*}", found.handle)
    async with TestServer(app) as server:
        yield found, str(server.make_url("")).rstrip("/")


@pytest.fixture
async def forwarder() -> AsyncIterator[Forwarding]:
    settings = SimpleNamespace(access=AccessSettings())
    found = Forwarding(cast(Any, SimpleNamespace(broker_id="a:1", settings=settings)))
    yield found
    await found.close()


def from_client(**headers: str) -> web.Request:
    return make_mocked_request("POST", "/x", headers=headers)


async def test_the_owner_gets_the_clients_token_the_encoded_path_and_the_body(
    owner: tuple[OwnerBroker, str], forwarder: Forwarding
) -> None:
    found, base = owner
    request = from_client(Authorization="Bearer t", Cookie="c=1", **{PROXIED: "Bearer p"})
    answered = await forwarder.send(request, base, Call("POST", "/admin/v2/a%2Fb%20c?force=true", b"{}"))
    assert answered.result() == {"ok": True}
    method, path, headers, body = found.asked[0]
    assert (method, path, body) == ("POST", "/admin/v2/a%2Fb%20c?force=true", b"{}")
    assert (headers["Authorization"], headers[PROXIED], headers[FORWARDED]) == ("Bearer t", "Bearer p", "a:1")
    assert headers["Content-Type"] == "application/json" and "Cookie" not in headers


async def test_the_owners_refusal_is_passed_on(owner: tuple[OwnerBroker, str], forwarder: Forwarding) -> None:
    found, base = owner
    found.status, found.body = 409, b'{"reason": "it exists"}'
    with pytest.raises(RefusedError, match="it exists") as refused:
        (await forwarder.send(from_client(), base, Call("PUT", "/x"))).result()
    assert refused.value.status == 409
    found.status, found.body = 401, b"who?"
    with pytest.raises(RefusedError, match=r"who\? .*never its certificate"):
        (await forwarder.send(from_client(), base, Call("PUT", "/x"))).result()


async def test_a_response_that_is_too_large_is_refused(
    owner: tuple[OwnerBroker, str], forwarder: Forwarding, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, base = owner
    monkeypatch.setattr(forwarding, "FORWARD_ANSWER_BYTES_MAX", 1000)
    monkeypatch.setattr(forwarding, "FORWARD_SMALL_BYTES", 100)
    found.body = b'"' + b"x" * 998 + b'"'
    assert (await forwarder.send(from_client(), base, Call("GET", "/x"))).result() == "x" * 998
    found.body += b" "
    with pytest.raises(RefusedError, match="1000 bytes"):
        await forwarder.send(from_client(), base, Call("GET", "/x"))


async def test_a_broker_that_hangs_stops_no_request_to_another_one(
    owner: tuple[OwnerBroker, str], forwarder: Forwarding
) -> None:
    async def hang(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError("not reached")

    app = web.Application()
    app.router.add_get("/x", hang)
    async with TestServer(app) as hanging:
        base = str(hanging.make_url("")).rstrip("/")
        stuck = [
            asyncio.create_task(forwarder.send(from_client(), base, Call("GET", "/x"))) for _ in range(FORWARDS_MAX + 1)
        ]
        await asyncio.sleep(0)
        assert (await forwarder.send(from_client(), owner[1], Call("GET", "/x"))).result() == {"ok": True}
        assert not any(one.done() for one in stuck)
        for one in stuck:
            one.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)


async def test_few_large_responses_are_received_at_once(
    owner: tuple[OwnerBroker, str], forwarder: Forwarding, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, most = 0, 0

    async def slowly(answer: aiohttp.ClientResponse, bytes_max: int) -> bytes:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        for _ in range(20):
            await asyncio.sleep(0)
        reading -= 1
        return await read_body(answer, bytes_max)

    monkeypatch.setattr(forwarding, "read_body", slowly)
    owner[0].body = b'"' + b"x" * FORWARD_SMALL_BYTES + b'"'
    calls = [forwarder.send(from_client(), owner[1], Call("GET", "/x")) for _ in range(FORWARDS_LARGE_MAX + 4)]
    assert len(await asyncio.gather(*calls)) == FORWARDS_LARGE_MAX + 4
    assert 0 < most <= FORWARDS_LARGE_MAX


async def test_a_silent_owner_is_named(forwarder: Forwarding, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "FORWARD_S", 0.0)
    with pytest.raises(RefusedError, match=r"the broker at http://127\.0\.0\.1:9 did not answer: no response in 0 s"):
        await forwarder.send(from_client(), "http://127.0.0.1:9", Call("GET", "/x"))
