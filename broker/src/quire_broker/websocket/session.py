"""One WebSocket session: its producers or consumers at the brokers, and the frames of its client.

    open      attach; a refusal is the answer to the client's HTTP request
    run       until the client closes, is silent for the idle time, sends a text that is unreadable or too large, or a
              broker refuses
    close     the brokers remove its producers and consumers

A text that is not a JSON object ends a consumer with 1007, as its acknowledgements are not known then.
"""

import asyncio
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from typing import Any

from aiohttp import WSMsgType, web

from quire_bookie.control_characters import escaped
from quire_bookie.errors import PeerProtocolError, QuireError
from quire_broker.errors import AuthenticationError, AuthorizationError, BrokerError, ServerError
from quire_broker.server.broker_link import code_of
from quire_broker.settings.websocket import WebSocketSettings
from quire_broker.websocket.attachment import Attachment, Links
from quire_broker.websocket.stats import SessionStats
from quire_broker.websocket.text_socket import TOO_BIG

log = logging.getLogger("quire.broker.websocket")
NORMAL, GOING_AWAY, UNSUPPORTED, INVALID, REFUSED, FAILED = 1000, 1001, 1003, 1007, 1008, 1011
_REASON_BYTES_MAX = 120
"""A control frame has at most 125 bytes, two of which are the code."""


class EndedError(Exception):
    """The session ends with this close code and reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Session(ABC):
    """A producer, a consumer or a reader."""

    def __init__(self, settings: WebSocketSettings, links: Links, stats: SessionStats) -> None:
        self._settings = settings
        self._links = links
        self._stats = stats
        self._socket: web.WebSocketResponse
        self._active_s = 0.0
        """Loop time of the last frame, of either side."""
        self._ending: asyncio.Future[EndedError] = asyncio.get_running_loop().create_future()

    @property
    @abstractmethod
    def attachments(self) -> Sequence[Attachment]:
        """The producers or consumers."""

    async def open(self) -> None:
        """Attach all of them. QuireError."""
        found = await asyncio.gather(*(one.attach() for one in self.attachments), return_exceptions=True)
        for error in found:
            if error is not None:
                raise error

    async def run(self, socket: web.WebSocketResponse) -> None:
        """Serve the client until the session ends; then close the socket with the reason."""
        self._socket = socket
        self._active_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.TaskGroup() as group:
                for one in self.attachments:
                    group.create_task(one.stay())
                for work in self._works():
                    group.create_task(work)
                group.create_task(self._receive())
                group.create_task(self._watch())
                raise await self._ending
        except BaseExceptionGroup as group_error:
            ended = _end_of(group_error)
        finally:
            self.close()
        if not socket.closed:
            reason = escaped(ended.args[0]).encode()[:_REASON_BYTES_MAX].decode(errors="ignore").encode()
            await socket.close(code=ended.code, message=reason)

    def end(self, code: int, reason: str) -> None:
        """Let the session end."""
        if not self._ending.done():
            self._ending.set_result(EndedError(code, reason))

    def close(self) -> None:
        """Leave the brokers."""
        self._links.close()

    @abstractmethod
    def _works(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Return what runs beside the receiving of texts."""

    @abstractmethod
    async def _received(self, text: str) -> None:
        """Handle a text of the client. PeerProtocolError, EndedError."""

    async def _send(self, value: dict[str, Any]) -> None:
        """Send an object; waits while the client reads slowly."""
        self._active_s = asyncio.get_running_loop().time()
        try:
            await self._socket.send_str(json.dumps(value, separators=(",", ":")))
        except (ConnectionError, RuntimeError) as error:
            raise EndedError(GOING_AWAY, "the client is gone") from error

    async def _receive(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            frame = await self._socket.receive()
            self._active_s = loop.time()
            if frame.type is WSMsgType.TEXT:
                await self._received(frame.data)
            elif frame.type is WSMsgType.PING:
                await self._socket.pong(frame.data)
            elif frame.type is WSMsgType.ERROR and self._socket.close_code == TOO_BIG:
                raise EndedError(
                    TOO_BIG, f"a text of more than {self._settings.text_bytes_max} bytes (webSocketMaxTextFrameSize)"
                )
            elif frame.type is WSMsgType.BINARY:
                raise EndedError(UNSUPPORTED, "a binary frame: send texts of JSON")
            elif frame.type is not WSMsgType.PONG:
                raise EndedError(NORMAL, "")

    async def _watch(self) -> None:
        """Ping the client, and end a session that is idle."""
        loop, settings = asyncio.get_running_loop(), self._settings
        ping_s = settings.ping_s if settings.ping_s > 0 else float("inf")
        pinged_s = loop.time()
        while True:
            idle_at_s = self._active_s + settings.idle_s
            await asyncio.sleep(max(0.0, min(idle_at_s, pinged_s + ping_s) - loop.time()))
            if loop.time() >= self._active_s + settings.idle_s:
                raise EndedError(GOING_AWAY, f"no frame for {settings.idle_s:g} s (webSocketSessionIdleTimeoutMillis)")
            if loop.time() >= pinged_s + ping_s:
                pinged_s = loop.time()
                try:
                    await self._socket.ping(b"PING")
                except (ConnectionError, RuntimeError) as error:
                    raise EndedError(GOING_AWAY, "the client is gone") from error


def object_in(text: str) -> dict[str, Any]:
    """Return the JSON object of a text. PeerProtocolError."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PeerProtocolError(f"not JSON: {error}") from error
    if not isinstance(found, dict):
        raise PeerProtocolError("not a JSON object")
    return found


def _end_of(group: BaseExceptionGroup[BaseException]) -> EndedError:
    """Return how the session ends: by the first error that tells."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            return _end_of(error)
        if isinstance(error, EndedError):
            return error
        if isinstance(error, PeerProtocolError):
            return EndedError(INVALID, str(error))
        if isinstance(error, QuireError):
            log.info("a WebSocket session ends: %s", error)
            return EndedError(REFUSED if _is_refusal(error) else FAILED, str(error))
    log.error("a WebSocket session failed", exc_info=group)
    return EndedError(FAILED, "internal error; the broker's log has the details")


def _is_refusal(error: QuireError) -> bool:
    if isinstance(error, (AuthenticationError, AuthorizationError)):
        return True
    return isinstance(error, BrokerError) and code_of(error) in (ServerError.AUTHENTICATION, ServerError.AUTHORIZATION)
