"""Answers requests that are not valid HTTP with a short error and one log line, without a byte of the request.

aiohttp logs a traceback with the line that it could not parse, which is often a header with a token.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from aiohttp import http_exceptions, web

from quire_bookie.admin.answers import failure

_log = logging.getLogger("quire.admin")
LINE_BYTES_MAX = 8190
"""Limit of the request line and of each header."""
_TOO_LONG = (
    f"the request line or a header is longer than {LINE_BYTES_MAX} bytes: "
    "send a shorter path or token (an RS256 token of a few claims has about 700 bytes)"
)
_NO_HTTP = "the request is not valid HTTP/1.1: check its request line, headers and body encoding"


class PlainConnection(web.RequestHandler):
    """A connection of aiohttp that answers an invalid request with a short error."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the response; the connection is closed after it."""
        if not isinstance(exc, http_exceptions.HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        too_long = isinstance(exc, http_exceptions.LineTooLong)
        status, reason = (431, _TOO_LONG) if too_long else (400, _NO_HTTP)
        _log.warning("a request of %s is refused: HTTP %d, %s", request.remote, status, type(exc).__name__)
        answer = failure(status, reason)
        answer.force_close()
        return answer


def connections(runner: web.AppRunner) -> Callable[[], asyncio.Protocol]:
    """Return the protocol factory of a runner that is set up, for `create_server`."""
    server = runner.server
    assert server is not None, "the runner is not set up"
    loop = asyncio.get_running_loop()
    options: dict[str, Any] = {
        "access_log": None,
        "max_line_size": LINE_BYTES_MAX,
        "max_field_size": LINE_BYTES_MAX,
        "auto_decompress": False,  # `origin` refuses such bodies; decoding a damaged one would block until a timeout
    }
    return lambda: PlainConnection(server, loop=loop, **options)
