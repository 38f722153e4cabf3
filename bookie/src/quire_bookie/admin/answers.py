"""Creates responses of the admin HTTP server, and maps errors to HTTP codes in one place. Knows no route.

Errors are `{"reason": "..."}`: 400 for invalid requests, 404 for missing objects, 409 if the bookie's state forbids the
request, 503 while the bookie or the metadata is unavailable, 500 for damage and failed disks.
"""

import json
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from quire_bookie.errors import (
    ConfigError,
    DamagedError,
    LedgerError,
    MetadataError,
    NodeMissingError,
    NoSuchEntryError,
    NoSuchLedgerError,
    QuireError,
    StorageError,
    UnauthorizedError,
)

_log = logging.getLogger("quire.admin")
_SHOWN_CHARACTERS = 40
"""Characters of an invalid number that an error shows."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_CODES: tuple[tuple[type[QuireError], int], ...] = (
    (NoSuchLedgerError, 404),
    (NoSuchEntryError, 404),
    (NodeMissingError, 404),
    (UnauthorizedError, 403),
    (ConfigError, 400),
    (DamagedError, 500),
    (StorageError, 500),
    (MetadataError, 503),
    (LedgerError, 503),
)


class RefusedError(QuireError):
    """A request is refused as it is; `status` is the HTTP code, the text contains the remedy."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def failure(status: int, reason: str) -> web.Response:
    """Return an error response with its reason."""
    return web.json_response({"reason": reason}, status=status)


@web.middleware
async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn exceptions of handlers into responses; unexpected ones are logged with a traceback."""
    try:
        return await handler(request)
    except web.HTTPException as refused:
        if refused.status in (404, 405):
            return failure(refused.status, f"{request.method} {request.path}: {refused.reason.lower()}")
        raise
    except RefusedError as refused:
        return failure(refused.status, str(refused))
    except QuireError as error:
        status = next((code for kind, code in _CODES if isinstance(error, kind)), 500)
        return failure(status, str(error))
    except Exception as error:  # noqa: BLE001 - root of one request
        _log.error("%s %s failed", request.method, request.path, exc_info=error)
        return failure(500, f"unexpected {type(error).__name__}: {error}")


LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_WHOLE = re.compile("-?[0-9]{1,19}")


def whole_number(name: str, text: str, low: int = LONG_MIN, high: int = LONG_MAX) -> int:
    """Parse an integer of a path or query, in [low, high]. RefusedError 400 names the parameter and the limits."""
    if _WHOLE.fullmatch(text) is not None and low <= int(text) <= high:
        return int(text)
    raise RefusedError(400, f"{name}={text[:_SHOWN_CHARACTERS]} is not an integer from {low} to {high}")


def integer(request: web.Request, name: str, default: int | None = None) -> int:
    """Parse a 64-bit integer of the query. RefusedError 400 if it is missing without a default, or invalid."""
    text = request.query.get(name)
    if text is not None:
        return whole_number(name, text)
    if default is None:
        raise RefusedError(400, f"the query parameter {name} is missing, e.g. ?{name}=1")
    return default


def flag(request: web.Request, name: str) -> bool:
    """Parse a switch of the query; false if it is missing."""
    return request.query.get(name, "false").lower() in ("true", "1", "yes", "")


async def text_of(request: web.Request) -> str:
    """Read the body. RefusedError 400 if it is incomplete, or not text in a known encoding."""
    try:
        return await request.text()
    except (web.RequestPayloadError, UnicodeDecodeError, LookupError):  # without the cause: it quotes the body
        raise RefusedError(400, "the body cannot be read: send all of it, in UTF-8") from None
    except ConnectionError:  # the client has disconnected and receives no response
        raise RefusedError(400, "the connection ended before the body") from None


def json_of(text: str) -> Any:
    """Decode a JSON body. RefusedError 400 if it is not JSON, or a text in it is not valid Unicode."""
    try:
        value = json.loads(text)
        if _SURROGATE.search(text) is not None:  # a lone surrogate: the metadata store cannot encode it
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"the body is not JSON: {str(error)[:200]}") from None
    return value


async def json_object(request: web.Request) -> dict[str, Any]:
    """Read a body that is a JSON object or empty. RefusedError 400."""
    text = await text_of(request)
    if not text.strip():
        return {}
    value = json_of(text)
    if not isinstance(value, dict):
        raise RefusedError(400, f'the body must be a JSON object like {{"key": value}}, not {type(value).__name__}')
    return value


def truth(body: dict[str, Any], key: str, default: bool | None = None) -> bool:
    """Return a boolean of the body, also if quoted, as BookKeeper's own tools send it. RefusedError 400."""
    value = body.get(key, default)
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise RefusedError(400, f'the body needs "{key}": true or false')
