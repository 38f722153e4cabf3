"""An etcd that a test plays by hand: calls and streams are answered by scripts, in virtual or real time."""

import asyncio
from collections.abc import Callable
from typing import Any

from quire_bookie.errors import MetadataUnavailableError
from quire_bookie.metadata.etcd.connection import Method


class FakeStream:
    """A stream of which the test holds the other end."""

    def __init__(self) -> None:
        self.sent: asyncio.Queue[Any] = asyncio.Queue()
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.cancelled = False
        self.gave_up = False

    async def send(self, request: Any) -> None:
        await self.sent.put(request)

    async def receive(self) -> Any:
        answer = await self.answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def cancel(self) -> None:
        self.cancelled = True

    def timed_out(self) -> None:
        self.cancelled = self.gave_up = True

    def answer(self, message: Any) -> None:
        """An answer, or an exception that ends the stream."""
        self.answers.put_nowait(message)


class FakeConnection:
    """Stands where `EtcdConnection` stands."""

    def __init__(self) -> None:
        self.opened: asyncio.Queue[FakeStream] = asyncio.Queue()
        self.away = False
        self.on_call: Callable[[Method, Any], Any] = lambda method, request: None
        self.on_stream: Callable[[FakeStream], None] = lambda stream: None
        self.calls: list[tuple[str, Any]] = []

    async def call(self, method: Method, request: Any, *, timeout_s: float | None = None) -> Any:
        await asyncio.sleep(0)
        if self.away:
            raise MetadataUnavailableError("away")
        self.calls.append((method.path.rpartition("/")[2], request))
        return self.on_call(method, request)

    async def stream(self, method: Method, *, timeout_s: float) -> FakeStream:
        await asyncio.sleep(0)
        if self.away:
            raise MetadataUnavailableError("away")
        stream = FakeStream()
        self.on_stream(stream)
        self.opened.put_nowait(stream)
        return stream
