"""A bookie's port with a handler that answers OK to every request, and a client that sends raw frames."""

import asyncio
import itertools
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from quire_bookie.model import EntryId, LedgerId
from quire_bookie.server.requests.connections import Connection, OpenConnections
from quire_bookie.server.security.guard import Guard
from quire_bookie.server.settings import BookieStats
from quire_bookie.settings.service import ServiceSettings
from quire_bookie.wire import client_codec, client_v3, server_codec, server_v3
from quire_bookie.wire.messages import (
    AddBatch,
    AddRequest,
    AuthRequest,
    BookieInfoRequest,
    BookieInfoResponse,
    ReadRequest,
    RefusedRequest,
    Request,
    Response,
    Status,
)
from quire_bookie.wire.proto import bookkeeper_pb2 as pb

LEDGER = LedgerId(7)
FIRST = EntryId(0)
ENTRY = bytes(7) + b"\x07" + bytes(8) + b"\xff" * 8 + bytes(8) + b"payload"


class Agreeable:
    """Answers adds and reads with OK, in the loop iteration of their arrival, and records all requests."""

    def __init__(self) -> None:
        self.stats = BookieStats()
        self.requests: list[Request] = []

    def handle(self, connection: Connection, requests: list[Request]) -> None:
        """Answer the requests."""
        apart = (each.requests() if isinstance(each, AddBatch) else [each] for each in requests)
        for request in itertools.chain.from_iterable(apart):
            self.requests.append(request)
            if isinstance(request, AddRequest):
                connection.unanswered += len(request.run.entries)
                connection.send((server_codec.encode_adds(request, Status.OK),), len(request.run.entries))
                continue
            connection.unanswered += 1
            if isinstance(request, ReadRequest):
                connection.send(server_codec.encode_read(request, Status.OK, ENTRY))
            elif isinstance(request, BookieInfoRequest):
                info = BookieInfoResponse(Status.OK, 30, 20, request.origin.transaction)
                connection.send((server_v3.encode_info(info),))
            elif isinstance(request, AuthRequest):
                connection.send((server_codec.encode_auth_disabled(request),))
            elif isinstance(request, RefusedRequest):
                connection.send((request.answer,))
            else:
                raise AssertionError(request)

    def flush_soon(self, connection: Connection) -> None:
        """Flush in the next loop iteration."""
        asyncio.get_running_loop().call_soon(connection.flush)

    def leaving(self, connection: Connection) -> None:
        """Do nothing."""


class Port:
    """Holds the port's handler, guard and connections."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.handler = Agreeable()
        self.open = OpenConnections()
        self.number = 0

    async def client(self) -> "Client":
        """Open a new connection."""
        return Client(*await asyncio.open_connection("127.0.0.1", self.number))


class Client:
    """Sends frames and reads responses of one generation at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def frame(self) -> bytes:
        """Return the next frame without its length; b"" at the end."""
        try:
            head = await self.reader.readexactly(4)
            return await self.reader.readexactly(int.from_bytes(head, "big"))
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            return b""

    async def ask_v3(self, request: bytes) -> pb.Response:
        """Send a request; return the response as a message."""
        self.writer.write(request)
        return pb.Response.FromString(await self.frame())

    async def ask_v2(self, *request: bytes) -> Response | None:
        """Send a request; return the response, or None if the connection ends instead."""
        self.writer.write(b"".join(request))
        body = await self.frame()
        if not body:
            return None
        (response,) = client_codec.ClientCodec(2).feed(len(body).to_bytes(4, "big") + body)
        return response

    async def start_tls(self, context: ssl.SSLContext, transaction: int = 1) -> None:
        """Request TLS, and begin it."""
        answer = await self.ask_v3(start_tls(transaction))
        assert answer.status == pb.EOK, answer
        assert answer.HasField("startTLSResponse")
        await self.writer.start_tls(context, server_hostname="localhost")

    async def is_closed(self) -> bool:
        """Wait for the next frame; return whether the other side closed instead."""
        return not await self.frame()

    def close(self) -> None:
        """Close at once."""
        self.writer.transport.abort()


def start_tls(transaction: int = 1) -> bytes:
    """Return a START_TLS request."""
    return client_v3.start_tls(transaction)


def v2_add(payload: bytes = b"payload") -> bytes:
    """Return an add of entry 0."""
    return b"".join(client_codec.v2_adds(bytes(20), [(ENTRY[:32], payload)]))


def v2_read() -> bytes:
    """Return a read of entry 0."""
    return client_codec.v2_read(LEDGER, FIRST)


@asynccontextmanager
async def served(guard: Guard, settings: ServiceSettings | None = None) -> AsyncIterator[Port]:
    """Listen on a free port; at the end close every connection and the guard, and check that none remains."""
    port = Port(guard)
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(port.handler, port.open, settings or ServiceSettings(), guard), "127.0.0.1", 0
    )
    port.number = server.sockets[0].getsockname()[1]
    try:
        yield port
    finally:
        server.close()
        for connection in list(port.open):
            connection.abort()
        async with asyncio.timeout(60):
            await port.open.wait_until_none()
        await guard.close()
        assert port.handler.stats.connections_open == 0
        assert guard.stats.tls_connections_open == 0
