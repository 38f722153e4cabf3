"""JSON responses of the admin API, and the only mapping of errors to HTTP codes: {"reason": "..."}."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from aiohttp import web

from quire_bookie.admin.answers import RefusedError, json_of, text_of
from quire_bookie.errors import (
    MetadataError,
    NoSuchEntryError,
    NoSuchLedgerError,
    PeerProtocolError,
    QuireError,
)
from quire_broker.errors import (
    AuthenticationError,
    AuthorizationError,
    ConflictError,
    ConsumerBusyError,
    InvalidTopicNameError,
    NotAllowedError,
    NotFoundError,
    ServiceNotReadyError,
    SubscriptionNotFoundError,
    TooManyOperationsError,
    TopicNotFoundError,
    TopicTerminatedError,
)

log = logging.getLogger("quire.broker.admin")
BODY_BYTES_MAX = 1024 * 1024
SLICE_S = 0.002
"""How long a large response is created at a time, until other tasks run. See `answer_in_pieces`."""

_CODES: tuple[tuple[type[QuireError], int], ...] = (
    (AuthenticationError, 401),
    (AuthorizationError, 403),
    (NotFoundError, 404),
    (TopicNotFoundError, 404),
    (SubscriptionNotFoundError, 404),
    (NoSuchLedgerError, 404),
    (NoSuchEntryError, 404),
    (ConflictError, 409),
    (InvalidTopicNameError, 412),
    (ConsumerBusyError, 412),
    (NotAllowedError, 412),
    (TopicTerminatedError, 412),
    (PeerProtocolError, 400),
    (TooManyOperationsError, 429),
    (ServiceNotReadyError, 503),
    (MetadataError, 503),
)


def code_of(error: QuireError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, RefusedError):
        return error.status
    return next((code for kind, code in _CODES if isinstance(error, kind)), 500)


def failure(status: int, reason: str) -> web.Response:
    """Return an error in the form that Pulsar's admin tools read."""
    return web.json_response({"reason": reason}, status=status)


def answer(value: Any, status: int = 200) -> web.Response:
    """Return a JSON response."""
    return web.json_response(value, status=status)


def answer_text(text: str | None) -> web.Response:
    """Return a text without quotes, as Pulsar's tools read a name; no content for None."""
    return done() if text is None else web.Response(text=text, content_type="application/json")


async def answer_in_pieces(request: web.Request, pieces: Iterable[str]) -> web.StreamResponse:
    """Send a JSON response whose text is created piece by piece: a large one neither stops the others nor fills memory.

    A piece must not fail: the status has been sent.
    """
    response, loop = web.StreamResponse(), asyncio.get_running_loop()
    response.content_type, response.charset = "application/json", "utf-8"
    await response.prepare(request)
    if request.method == "HEAD":
        return response
    found, began_s = bytearray(), loop.time()
    with suppress(ConnectionError):  # the client has disconnected
        for piece in pieces:
            found += piece.encode()
            if loop.time() - began_s >= SLICE_S:
                await response.write(bytes(found))
                await asyncio.sleep(0)
                found, began_s = bytearray(), loop.time()
        await response.write_eof(bytes(found))
    return response


async def answer_list(request: web.Request, values: Iterable[Any]) -> web.StreamResponse:
    """Send a JSON list of any length; its values are created one by one. See `answer_in_pieces`."""
    return await answer_in_pieces(request, _list_pieces(values))


def _list_pieces(values: Iterable[Any]) -> Iterator[str]:
    yield "["
    for number, value in enumerate(values):
        yield f"{', ' if number else ''}{json.dumps(value)}"
    yield "]"


def object_pieces(fields: Iterable[tuple[str, Any]]) -> Iterator[str]:
    """Yield the JSON text of an object of any size, field by field."""
    yield "{"
    for number, (name, value) in enumerate(fields):
        yield f"{', ' if number else ''}{json.dumps(name)}: {json.dumps(value)}"
    yield "}"


def done() -> web.Response:
    """Return 204, no content."""
    return web.Response(status=204)


async def body_of(request: web.Request) -> Any:
    """Return the JSON of a request, None if it has no body. 400 if it is not JSON."""
    text = await text_of(request)
    if not text.strip():
        return None
    return json_of(text)


async def object_of(request: web.Request) -> dict[str, Any]:
    """Return a JSON object, empty if there is no body."""
    value = await body_of(request)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise web.HTTPBadRequest(
            text=json.dumps({"reason": "the body must be a JSON object"}), content_type="application/json"
        )
    return value


def flag(request: web.Request, name: str) -> bool:
    """Return a boolean query parameter."""
    return request.query.get(name, "").lower() == "true"


@web.middleware
async def errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Turn every failure into a JSON response with a reason."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400 or error.content_type == "application/json":
            raise
        return failure(error.status, error.reason)
    except QuireError as error:
        return failure(code_of(error), str(error))
    except Exception:
        log.exception("%s %s failed", request.method, request.rel_url.raw_path)
        return failure(500, "internal error; the broker's log has the details")
