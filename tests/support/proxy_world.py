"""Proxies of this process, and a broker that a test plays: what it is asked, and what it answers, the test decides."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from aiohttp import web

from quire_bookie.env.clock import SystemClock
from quire_bookie.metadata.store import MetadataStore
from quire_broker.admin.web import WebServer
from quire_broker.proxy.proxy import ProxySettings, RunningProxy
from quire_broker.proxy.web import make_app
from quire_broker.server.ports import PortSettings
from quire_broker.settings.proxy import ProxyLimits
from quire_broker.wire.frames import FrameDecoder, encode
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb

PORTS = PortSettings("127.0.0.1", "127.0.0.1", 0, None, 0, None)


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds: TimeoutError."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  sockets and watches have no event for it
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running_proxy(
    metadata: MetadataStore | None = None, *, drain_s: float = 0.0, **settings: Any
) -> AsyncIterator[RunningProxy]:
    """A proxy on free ports that knows its brokers; `settings` of `ProxySettings`."""
    bounds = replace(settings.pop("limits", ProxyLimits()), drain_s=drain_s)
    proxy = RunningProxy(ProxySettings(**({"ports": PORTS} | settings), limits=bounds), metadata, SystemClock())
    try:
        await proxy.start(WebServer(make_app(proxy), proxy.settings.access.http))
        await eventually(lambda: not proxy.not_ready)
        yield proxy
    finally:
        await proxy.stop()


@asynccontextmanager
async def served(handle: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[int]:
    """Serve all HTTP requests of a played broker with `handle`. Yields the port."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


class PlayedBroker:
    """Accepts every CONNECT, unless `refuses`; passes other commands to `answer`, which returns bytes for the proxy."""

    def __init__(self, answer: Callable[[pb.BaseCommand], bytes] = lambda _: b"") -> None:
        self.answer = answer
        self.connects: list[pb.CommandConnect] = []
        self.commands: list[pb.BaseCommand] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.refuses = ""
        self.after_connected = b""
        """Bytes in the same write as CONNECTED."""
        self.port = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "PlayedBroker":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self.writers:
            writer.close()

    @property
    def url(self) -> str:
        """For proxies."""
        return f"pulsar://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        decoder = FrameDecoder(1 << 20)
        while data := await reader.read(1 << 16):
            for frame in decoder.feed(data):
                assert isinstance(frame, pb.BaseCommand)
                if frame.type == Kind.CONNECT:
                    self.connects.append(frame.connect)
                    writer.write(self._greeting() + self.after_connected)
                else:
                    self.commands.append(frame)
                    writer.write(self.answer(frame))

    def _greeting(self) -> bytes:
        if self.refuses:
            error = pb.CommandError(request_id=0, error=4, message=self.refuses)
            return encode(pb.BaseCommand(type=Kind.ERROR, error=error))
        connected = pb.CommandConnected(server_version="played", protocol_version=19, max_message_size=4321)
        return encode(pb.BaseCommand(type=Kind.CONNECTED, connected=connected))


class ProxyClient:
    """A client that sends what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._decoder = FrameDecoder(6_000_000)
        self._frames: list[Any] = []

    @classmethod
    async def open(cls, proxy: RunningProxy, *, tls: Any = None) -> "ProxyClient":
        """Connect, and send nothing yet."""
        port = proxy.ports.port if tls is None else proxy.ports.port_tls
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=tls, limit=1 << 16))

    async def connect(self, target: str = "", **more: Any) -> pb.BaseCommand:
        """Send CONNECT; the answer."""
        hello = pb.CommandConnect(client_version="t", protocol_version=19, **more)
        if target:
            hello.proxy_to_broker_url = target
        return await self.ask(pb.BaseCommand(type=Kind.CONNECT, connect=hello))

    def send(self, command: pb.BaseCommand) -> None:
        """Without waiting for an answer."""
        self.writer.write(encode(command))

    async def ask(self, command: pb.BaseCommand) -> pb.BaseCommand:
        """Send it; the next frame."""
        self.send(command)
        return await self.next()

    async def next(self) -> pb.BaseCommand:
        """The next frame; EOFError."""
        while not self._frames:
            data = await asyncio.wait_for(self.reader.read(1 << 16), 20)
            if not data:
                raise EOFError
            self._frames += self._decoder.feed(data)
        frame = self._frames.pop(0)
        assert isinstance(frame, pb.BaseCommand)
        return frame

    async def rest(self) -> list[int]:
        """The types of all further frames, until the proxy closes the connection."""
        found = []
        try:
            while True:
                found.append((await self.next()).type)
        except (EOFError, ConnectionError):
            return found


def lookup(request_id: int = 1, topic: str = "persistent://public/default/t") -> pb.BaseCommand:
    """Return a LOOKUP."""
    return pb.BaseCommand(type=Kind.LOOKUP, lookup=pb.CommandLookupTopic(topic=topic, request_id=request_id))
