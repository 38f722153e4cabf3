"""Requests that a broker forwards to the owner of a topic: their headers and their bounds."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, make_mocked_request

from quire_bookie.admin.answers import RefusedError
from quire_bookie.admin.origin import PROXIED
from quire_broker.admin import forwarding
from quire_broker.admin.forwarding import FORWARDED, Call, Forwarding
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
    found.body = b'"' + b"x" * 998 + b'"'
    assert (await forwarder.send(from_client(), base, Call("GET", "/x"))).result() == "x" * 998
    found.body += b" "
    with pytest.raises(RefusedError, match="1000 bytes"):
        await forwarder.send(from_client(), base, Call("GET", "/x"))


async def test_a_silent_owner_is_named(forwarder: Forwarding, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "FORWARD_S", 0.0)
    with pytest.raises(RefusedError, match=r"the broker at http://127\.0\.0\.1:9 did not answer: no response in 0 s"):
        await forwarder.send(from_client(), "http://127.0.0.1:9", Call("GET", "/x"))
