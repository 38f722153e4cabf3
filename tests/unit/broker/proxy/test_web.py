"""HTTP of a proxy: who may ask, what brokers get, what clients get back."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
from aiohttp import web

from quire_bookie.settings.tokens import TokenSettings
from quire_broker.proxy.proxy import RunningProxy
from quire_broker.proxy.towards_brokers import TowardsBrokers
from quire_broker.security.settings import AccessSettings, AuthenticationSettings
from quire_broker.settings.proxy import ProxyLimits
from tests.support.own_address import own_address
from tests.support.proxy_world import PORTS, eventually, running_proxy, served

SECRET = b"a secret of tests that is long enough for HS256"


class PlayedRest:
    """A broker that answers each request as the test says."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.answer: Callable[[], web.StreamResponse] = lambda: web.json_response("done")
        self.waits: asyncio.Event | None = None
        self.port = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Record the request."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append((request.method, request.path_qs, headers, await request.read()))
        if self.waits is not None:
            await self.waits.wait()
        return self.answer()


@asynccontextmanager
async def played() -> AsyncIterator[PlayedRest]:
    rest = PlayedRest()
    async with served(rest.handle) as rest.port:
        yield rest


@asynccontextmanager
async def scene(**settings: Any) -> AsyncIterator[tuple[PlayedRest, RunningProxy, aiohttp.ClientSession]]:
    async with played() as rest:
        given = {"native": "pulsar://127.0.0.1:1", "web": f"http://127.0.0.1:{rest.port}"} | settings
        async with running_proxy(**given) as proxy, aiohttp.ClientSession(proxy.ports.urls.http) as session:
            yield rest, proxy, session


async def status_of(session: aiohttp.ClientSession, path: str) -> int:
    """Return the status of a GET."""
    async with session.get(path) as answer:
        await answer.read()
        return answer.status


def secured(folder: Path, **more: Any) -> dict[str, Any]:
    key = folder / "secret.key"
    key.write_bytes(SECRET)
    checks = AuthenticationSettings(TokenSettings(secret_key=f"file://{key}"), **more)
    own = TowardsBrokers(method="token", secret="the token of the proxy")
    return {"access": AccessSettings(authentication=checks), "towards": own}


def bearer(role: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {jwt.encode({'sub': role}, SECRET, 'HS256')}"}


async def test_a_request_and_its_response_pass_unchanged() -> None:
    async with scene() as (rest, proxy, session):
        rest.answer = lambda: web.Response(status=418, text="so", headers={"X-Broker": "b"})
        path = "/admin/v2/persistent/public/default/a%2Fb/stats?x=1&y=%20"
        async with session.post(path, json={"a": 1}, headers={"X-Mine": "m"}) as answer:
            assert (answer.status, await answer.text(), answer.headers["X-Broker"]) == (418, "so", "b")
        method, got, headers, body = rest.requests[0]
        assert (method, got, body, headers["x-mine"]) == ("POST", path, b'{"a": 1}', "m")
        assert headers["host"] == f"127.0.0.1:{rest.port}"
        assert headers["x-forwarded-for"] == "127.0.0.1"
        assert proxy.parts.stats.http_requests == 1


async def test_headers_that_name_another_role_or_belong_to_one_connection_are_dropped(tmp_path: Path) -> None:
    async with scene(**secured(tmp_path)) as (rest, _, session):
        forged = {"X-Original-Principal": "admin", "Quire-Forwarded": "b"}
        forged |= {"Connection": "X-Hop", "X-Hop": "1", "Cookie": "c=d"}
        async with session.get("/admin/v2/tenants", headers=bearer("app") | forged) as answer:
            assert answer.status == 200
        headers = rest.requests[0][2]
        assert headers["x-original-principal"] == "app"
        assert headers["authorization"] == bearer("app")["Authorization"]
        assert not {"quire-forwarded", "x-hop", "cookie"} & headers.keys()


@pytest.mark.parametrize(
    ("own", "header"),
    [
        (TowardsBrokers(method="token", secret="the token of the proxy"), "Bearer the token of the proxy"),
        (TowardsBrokers(method="basic", secret='{"userId": "p", "password": "q:r"}'), "Basic cDpxOnI="),
    ],
)
async def test_a_client_without_token_is_represented_by_the_proxy(
    tmp_path: Path, own: TowardsBrokers, header: str
) -> None:
    async with scene(**(secured(tmp_path, anonymous_role="guest") | {"towards": own})) as (rest, _, session):
        async with session.get("/admin/v2/tenants") as answer:
            assert answer.status == 200
        headers = rest.requests[0][2]
        assert headers["authorization"] == header
        assert headers["x-original-principal"] == "guest"


async def test_a_client_with_a_wrong_token_reaches_no_broker(tmp_path: Path) -> None:
    async with scene(**secured(tmp_path)) as (rest, _, session):
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Basic eDp5"}):
            for path in ("/admin/v2/tenants", "/lookup/v2/topic/persistent/public/default/t"):
                async with session.get(path, headers=headers) as answer:
                    assert answer.status == 401
        for path in ("/healthz", "/readyz", "/metrics", "/status.html"):
            async with session.get(path) as answer:
                assert answer.status == 200
        assert not rest.requests


async def test_without_authentication_other_machines_get_what_clients_look_up() -> None:
    where = own_address()
    ports = replace(PORTS, listen=where, advertise=where)
    async with scene(ports=ports) as (rest, _, session):
        async with session.get("/lookup/v2/topic/persistent/public/default/t") as answer:
            assert answer.status == 200
        for path in ("/admin/v2/tenants", "/admin/quire/drain", "/lookup/v2/other"):
            async with session.get(path) as answer:
                assert answer.status == 403
        assert len(rest.requests) == 1
    open_access = AccessSettings(admin_remote=True)
    async with scene(ports=ports, access=open_access) as (rest, _, session), session.get("/admin/v2/tenants") as answer:
        assert answer.status == 200


async def test_requests_of_other_sites_are_refused() -> None:
    async with scene() as (rest, _, session):
        for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            async with session.get("/admin/v2/tenants", headers=headers) as answer:
                assert answer.status == 403
        assert not rest.requests


async def test_redirects_are_followed_to_known_brokers_only() -> None:
    async with played() as other, scene() as (rest, _, session):
        rest.answer = lambda: web.Response(status=307, headers={"Location": f"http://127.0.0.1:{other.port}/admin/x"})
        async with session.get("/admin/v2/tenants") as answer:
            assert answer.status == 502
            assert "no registered broker" in await answer.text()
        assert not other.requests
        rest.answer = lambda: web.Response(status=307, headers={"Location": "/admin/round"})
        async with session.put("/admin/v2/tenants/a", json=1) as answer:
            assert answer.status == 502
            assert "redirected 5 times" in await answer.text()
        assert [body for _, _, _, body in rest.requests[-2:]] == [b"1", b"1"], "the body goes along"


async def test_redirects_go_to_permitted_hosts_at_the_port_of_a_broker() -> None:
    async with scene(allowed_hosts=("localhost",)) as (rest, _, session):

        def redirected() -> web.Response:
            host = rest.requests[-1][2]["host"]
            if host.startswith("localhost"):
                return web.json_response("done")
            return web.Response(status=307, headers={"Location": f"http://localhost:{rest.port}/admin/x"})

        rest.answer = redirected
        assert await status_of(session, "/admin/v2/tenants") == 200
        assert rest.requests[-1][1] == "/admin/x"
        for url in ("http://localhost:22/admin", f"https://localhost:{rest.port}/admin", f"http://[::1]:{rest.port}/"):
            rest.answer = lambda url=url: web.Response(status=307, headers={"Location": url})  # type: ignore[misc]
            assert await status_of(session, "/admin/v2/tenants") == 502


async def test_a_dead_broker_is_passed_over_and_none_is_an_error() -> None:
    async with played() as rest:
        webs = f"http://127.0.0.1:1,127.0.0.1:{rest.port}"
        async with scene(web=webs) as (_, _, session):
            for _ in range(3):
                assert await status_of(session, "/admin/v2/tenants") == 200
        async with scene(web="http://127.0.0.1:1") as (_, proxy, session):
            assert await status_of(session, "/admin/v2/tenants") == 502
            assert proxy.parts.stats.http_failures == 1


async def test_requests_are_bounded() -> None:
    bounds = ProxyLimits(http_body_bytes_max=1024, http_requests_max=1)
    async with scene(limits=bounds) as (rest, proxy, session):
        async with session.put("/admin/v2/tenants/a", json="x" * 2000) as answer:
            assert answer.status == 413
        rest.waits = asyncio.Event()
        first = asyncio.create_task(status_of(session, "/admin/v2/first"))
        await eventually(lambda: len(rest.requests) == 1)
        assert await status_of(session, "/admin/v2/second") == 503
        rest.waits.set()
        assert await first == 200
        assert await status_of(session, "/admin/v2/third") == 200
        assert proxy.parts.stats.http_failures == 1


async def test_a_broker_that_does_not_answer_in_time_is_an_error() -> None:
    async with scene(limits=ProxyLimits(http_timeout_s=0.2)) as (rest, _, session):
        rest.waits = asyncio.Event()
        assert await status_of(session, "/admin/v2/tenants") == 502
        rest.waits.set()


async def test_a_response_that_breaks_off_does_not_look_complete() -> None:
    async def half(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(half, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with scene(web=f"http://127.0.0.1:{port}") as (_, _, session):
        with pytest.raises(aiohttp.ClientError):
            await status_of(session, "/admin/v2/tenants")
    server.close()
