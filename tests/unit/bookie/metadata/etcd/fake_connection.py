"""A fake etcd that a test controls: scripts answer calls and streams, in virtual or real time."""

import asyncio
from collections.abc import Callable
from typing import Any

from quire_bookie.env.backoff import Backoff
from quire_bookie.errors import MetadataUnavailableError
from quire_bookie.limits import METADATA_RETRY_BACKOFF_S
from quire_bookie.metadata.etcd.connection import Method


class FakeStream:
    """A stream whose other end the test controls."""

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
        """Send a response, or an exception that ends the stream."""
        self.answers.put_nowait(message)


class FakeConnection:
    """Replaces `EtcdConnection`."""

    def __init__(self) -> None:
        self.opened: asyncio.Queue[FakeStream] = asyncio.Queue()
        self.away = False
        self.on_call: Callable[[Method, Any], Any] = lambda method, request: None
        self.on_stream: Callable[[FakeStream], None] = lambda stream: None
        self.calls: list[tuple[str, Any]] = []

    def backoff(self, longest_s: float = METADATA_RETRY_BACKOFF_S[1]) -> Backoff:
        """Return pauses without variation."""
        return Backoff((METADATA_RETRY_BACKOFF_S[0], max(METADATA_RETRY_BACKOFF_S[0], longest_s)))

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
