"""WebSockets through a proxy, before a broker that the test plays and before real ones."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
from aiohttp import WSMsgType, web

from quire_bookie.settings.tokens import TokenSettings
from quire_broker import limits
from quire_broker.proxy.proxy import RunningProxy
from quire_broker.proxy.towards_brokers import TowardsBrokers
from quire_broker.security.settings import AccessSettings, AuthenticationSettings
from quire_broker.settings.proxy import ProxyLimits
from quire_broker.settings.websocket import WebSocketSettings
from tests.sim.metadata import SimMetadataStore
from tests.support.broker_world import running_brokers
from tests.support.proxy_world import eventually, running_proxy, served

SECRET = b"a secret of tests that is long enough for HS256"
PATH = "/ws/v2/producer/persistent/public/default/t"


class PlayedSockets:
    """A broker that serves each WebSocket as the test says, or refuses it with `refusal`."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.refusal: tuple[int, str] | None = None
        self.play: Callable[[web.WebSocketResponse], Awaitable[None]] = echo
        self.ended: list[int | None] = []
        self.port = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Record the request and play."""
        self.asked.append((request.path_qs, {name.lower(): value for name, value in request.headers.items()}))
        if self.refusal is not None:
            return web.json_response({"reason": self.refusal[1]}, status=self.refusal[0])
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        await self.play(socket)
        self.ended.append(socket.close_code)
        return socket


async def echo(socket: web.WebSocketResponse) -> None:
    """Send back what arrives, until the client closes."""
    async for frame in socket:
        if frame.type is WSMsgType.TEXT:
            await socket.send_str(frame.data)
        elif frame.type is WSMsgType.PING:
            await socket.pong(frame.data)


@asynccontextmanager
async def played() -> AsyncIterator[PlayedSockets]:
    broker = PlayedSockets()
    async with served(broker.handle) as broker.port:
        yield broker


@asynccontextmanager
async def scene(**settings: Any) -> AsyncIterator[tuple[PlayedSockets, RunningProxy, aiohttp.ClientSession]]:
    async with played() as broker:
        given = {"native": "pulsar://127.0.0.1:1", "web": f"http://127.0.0.1:{broker.port}"} | settings
        async with running_proxy(**given) as proxy, aiohttp.ClientSession(proxy.ports.urls.http) as session:
            yield broker, proxy, session


async def refusal(session: aiohttp.ClientSession, path: str = PATH, **headers: str) -> tuple[int, str]:
    """Return the status and the reason of a refused WebSocket."""
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    upgrade["Sec-WebSocket-Key"] = base64.b64encode(b"k" * 16).decode()
    async with session.get(path, headers=upgrade | headers) as answer:
        return answer.status, (await answer.json())["reason"]


def secured(folder: Path) -> dict[str, Any]:
    key = folder / "secret.key"
    key.write_bytes(SECRET)
    checks = AuthenticationSettings(TokenSettings(secret_key=f"file://{key}"))
    own = TowardsBrokers(method="token", secret="the token of the proxy")
    return {"access": AccessSettings(authentication=checks), "towards": own}


async def test_frames_pass_in_both_directions_in_order() -> None:
    async with scene() as (broker, proxy, session):
        async with session.ws_connect(f"{PATH}?ackTimeoutMillis=1&x=%25", autoping=False) as socket:
            texts = [f"{number} " * (number % 5000) for number in range(300)]

            async def send() -> None:
                for text in texts:
                    await socket.send_str(text)

            sending = asyncio.create_task(send())
            async with asyncio.timeout(20):
                assert [await socket.receive_str() for _ in texts] == texts
                await sending
                await socket.ping(b"are you there")
                frame = await socket.receive()
            assert (frame.type, frame.data) == (WSMsgType.PONG, b"are you there")
            assert proxy.parts.stats.websockets == 1
            await socket.close(code=4001, message=b"done")
        await eventually(lambda: broker.ended == [4001])
        assert broker.asked[0][0] == f"{PATH}?ackTimeoutMillis=1&x=%25"


async def test_the_code_and_the_reason_of_the_broker_reach_the_client() -> None:
    async def end(socket: web.WebSocketResponse) -> None:
        await socket.send_str("first")
        await socket.close(code=1011, message=b"the topic was deleted")

    async def vanish(socket: web.WebSocketResponse) -> None:
        assert socket._req is not None and socket._req.transport is not None
        socket._req.transport.abort()

    async with scene() as (broker, _, session):
        for play, seen in ((end, (1011, "the topic was deleted")), (vanish, (1001, "the connection broke"))):
            broker.play = play
            async with session.ws_connect(PATH) as socket, asyncio.timeout(20):
                if play is end:
                    assert await socket.receive_str() == "first"
                frame = await socket.receive()
                assert (frame.type, frame.data, frame.extra) == (WSMsgType.CLOSE, *seen)


async def test_a_refusal_of_the_broker_reaches_the_client_whole() -> None:
    async with scene() as (broker, proxy, session):
        broker.refusal = (409, "the subscription has another consumer")
        assert await refusal(session) == broker.refusal
        assert proxy.parts.stats.websockets == 0
    async with scene(web="http://127.0.0.1:1") as (_, proxy, session):
        status, reason = await refusal(session)
        assert status == 502 and reason.startswith("no broker answers: ")
        assert proxy.parts.stats.http_failures == 1


async def test_a_broker_that_does_not_listen_is_passed_over() -> None:
    async with played() as broker:
        web_url = f"http://127.0.0.1:1,127.0.0.1:{broker.port}"
        async with scene(web=web_url) as (_, _, session):
            for _ in range(4):
                async with session.ws_connect(PATH) as socket:
                    await socket.send_str("a")
                    assert await socket.receive_str() == "a"
            assert len(broker.asked) == 4


async def test_requests_that_open_no_socket_and_those_above_the_limit_are_refused() -> None:
    async with scene(limits=ProxyLimits(websockets_max=1)) as (broker, _, session):
        async with session.get(PATH) as answer:
            assert answer.status == 400 and "connect with a WebSocket client" in await answer.text()
        async with session.ws_connect(PATH):
            status, reason = await refusal(session)
            assert status == 503 and "webSocketMaxSessions" in reason
        await eventually(lambda: len(broker.ended) == 1)
        async with session.ws_connect(PATH) as socket:
            await socket.send_str("a free seat")
            assert await socket.receive_str() == "a free seat"


async def test_a_client_s_token_is_checked_here_and_passed_on(tmp_path: Path) -> None:
    token = jwt.encode({"sub": "writer"}, SECRET)
    async with scene(**secured(tmp_path)) as (broker, _, session):
        assert (await refusal(session))[0] == 401
        assert (await refusal(session, Authorization="Bearer wrong"))[0] == 401
        assert not broker.asked
        forged = {"Authorization": f"Bearer {token}", "X-Original-Principal": "admin"}
        async with session.ws_connect(PATH, headers=forged):
            pass
        async with session.ws_connect(f"{PATH}?token={token}"):
            pass
        (_, by_header), (path, by_query) = broker.asked
        assert by_header["authorization"] == f"Bearer {token}"
        assert path.endswith(f"?token={token}") and "authorization" not in by_query
        assert by_header["x-original-principal"] == by_query["x-original-principal"] == "writer"


async def test_a_page_opens_sockets_only_under_the_proxy_s_own_name() -> None:
    async with scene() as (broker, proxy, session):
        assert (await refusal(session, Origin="http://evil.example"))[0] == 403
        rebound = {"Host": "evil.example", "Origin": "http://evil.example"}
        assert (await refusal(session, **rebound))[0] == 403
        assert not broker.asked
        own = proxy.ports.urls.http
        async with session.ws_connect(PATH, headers={"Origin": own}):
            pass
        assert "origin" not in broker.asked[0][1], "the proxy has checked it, and the broker has another address"


async def test_a_text_above_the_limit_ends_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PROXY_SOCKET_TEXT_BYTES_MAX", 10_000)
    async with scene() as (broker, _, session):
        async with session.ws_connect(PATH) as socket, asyncio.timeout(20):
            await socket.send_str("x" * 20_000)
            await socket.receive()
            assert socket.close_code == 1009
        await eventually(lambda: len(broker.ended) == 1)


async def test_a_client_that_reads_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PROXY_SOCKET_SEND_S", 0.3)
    monkeypatch.setattr(limits, "CLOSE_FLUSH_S", 0.3)

    async def flood(socket: web.WebSocketResponse) -> None:
        while not socket.closed:
            await socket.send_str("x" * 500_000)

    async with scene() as (broker, proxy, session):
        broker.play = flood
        async with session.ws_connect(PATH) as socket:
            assert socket._response.connection is not None and socket._response.connection.transport is not None
            socket._response.connection.transport.pause_reading()
            await eventually(lambda: proxy.parts.stats.websockets == 1)
            status = 503
            async with asyncio.timeout(20):
                while status == 503:
                    proxy.parts.limits = replace(proxy.parts.limits, websockets_max=1)
                    broker.refusal = (404, "free")
                    status, _ = await refusal(session)
            assert status == 404, "its seat is free"


async def test_a_stopping_proxy_closes_the_sockets() -> None:
    async with played() as broker, aiohttp.ClientSession() as session:
        web_url = f"http://127.0.0.1:{broker.port}"
        async with running_proxy(native="pulsar://127.0.0.1:1", web=web_url) as proxy:
            socket = await session.ws_connect(proxy.ports.urls.http + PATH)
            await socket.send_str("a")
            assert await socket.receive_str() == "a"
            reading = asyncio.create_task(socket.receive())
        async with asyncio.timeout(20):
            frame = await reading
        assert (frame.type, frame.data, frame.extra) == (WSMsgType.CLOSE, 1001, "the proxy stops")
        await eventually(lambda: broker.ended == [1001])


async def test_a_message_passes_through_a_proxy_and_a_real_broker(tmp_path: Path) -> None:
    served = WebSocketSettings(enabled=True)
    async with (
        running_brokers(tmp_path, 2, websocket=served) as world,
        running_proxy(SimMetadataStore(world.server)) as proxy,
        aiohttp.ClientSession(proxy.ports.urls.http) as session,
        asyncio.timeout(60),
    ):
        topic = "persistent/public/default/t"
        async with (
            session.ws_connect(f"/ws/v2/consumer/{topic}/s") as consumer,
            session.ws_connect(f"/ws/v2/producer/{topic}") as producer,
        ):
            for number in range(20):
                payload = base64.b64encode(b"%d" % number).decode()
                await producer.send_json({"payload": payload})
                assert json.loads(await producer.receive_str())["result"] == "ok"
            for number in range(20):
                message = json.loads(await consumer.receive_str())
                assert base64.b64decode(message["payload"]) == b"%d" % number
                await consumer.send_json({"messageId": message["messageId"]})
        status, reason = await refusal(session, "/ws/v2/nothing/here")
        assert status == 404 and "serves no WebSockets" in reason
