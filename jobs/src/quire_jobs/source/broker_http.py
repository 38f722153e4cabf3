"""Requests to the HTTP endpoints of brokers. Follows redirects to the owner and classifies error responses.

The token is sent after a redirect too, but never from TLS to plaintext. `quire_bookie.cli.client_access` supplies the
credentials. The HTTP client is imported on use: Spark starts many Python processes, and most of them need no broker.
"""

import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urljoin

from quire_bookie.cli.client_access import ClientAccess, client_access
from quire_bookie.env.bounded_body import IDENTITY, read_body
from quire_bookie.errors import PeerProtocolError
from quire_bookie.limits import HTTP_ANSWER_BYTES_MAX
from quire_broker.names import TopicName
from quire_jobs.errors import JobOptionsError, NotFoundError, QuireJobError, SourceUnavailableError

if TYPE_CHECKING:
    import aiohttp

REDIRECTS_MAX = 5
TIMEOUT_S = 60.0
_REDIRECTS = (301, 302, 307, 308)
_WORTH_A_RETRY = (429, 500, 502, 503, 504)


class BrokerHttp:
    """Sends requests to the brokers of one cluster, starting at the address of one. Use it with `async with`."""

    def __init__(self, http: str, access: ClientAccess | None = None) -> None:
        """Raise JobOptionsError unless `http` is http://host:port or https://host:port."""
        require_http_address(http)
        self._base = http.rstrip("/")
        self._access = access or client_access()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        import aiohttp

        context: ssl.SSLContext | bool = True
        if self._base.startswith("https://"):
            context = self._access.context()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context),
            headers=IDENTITY,
            auto_decompress=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return the status and the decoded body (text if it is not JSON) of the responsible broker.

        Raises SourceUnavailableError if no broker responds or the redirects do not end; QuireJobError if the response
        is larger than HTTP_ANSWER_BYTES_MAX.
        """
        async with self._answer(method, path, body) as answer:
            text = (await read_body(answer, HTTP_ANSWER_BYTES_MAX)).decode(errors="replace")
            return answer.status, _decoded(text)

    async def lines(self, path: str, line_bytes_max: int) -> AsyncGenerator[Any, None]:
        """Yield the decoded lines of a response of any length.

        Raises the errors of `ask` and of `require_success`; QuireJobError also for a line that is too long.
        """
        async with self._answer("GET", path, pause_s=TIMEOUT_S) as answer:
            if answer.status != 200:
                text = (await read_body(answer, HTTP_ANSWER_BYTES_MAX)).decode(errors="replace")
                require_success(answer.status, _decoded(text), path)
            rest = bytearray()
            async for part in answer.content.iter_any():
                rest += part
                *whole, last = rest.split(b"\n")
                if max(map(len, (*whole, last))) > line_bytes_max:
                    raise QuireJobError(f"{answer.url} has a line of more than {line_bytes_max} bytes")
                for line in whole:
                    yield json.loads(line)
                rest = last

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, body: Any = None, pause_s: float | None = None
    ) -> "AsyncIterator[aiohttp.ClientResponse]":
        """Yield the response of the responsible broker. `pause_s`: bounds each wait for a part, not the whole."""
        import aiohttp

        assert self._session is not None
        url = self._base + path
        limit = aiohttp.ClientTimeout(total=TIMEOUT_S) if pause_s is None else aiohttp.ClientTimeout(sock_read=pause_s)
        try:
            for _ in range(REDIRECTS_MAX):
                async with self._session.request(
                    method, url, json=body, headers=self._access.headers, allow_redirects=False, timeout=limit
                ) as answer:
                    if answer.status not in _REDIRECTS:
                        yield answer
                        return
                    url = _next(url, answer.headers.get("Location", ""))
        except TimeoutError as error:
            raise SourceUnavailableError(f"{url} did not answer within {TIMEOUT_S:.0f} s") from error
        except (aiohttp.ClientError, ValueError) as error:
            raise SourceUnavailableError(f"{url} does not answer: {error}") from error
        except PeerProtocolError as error:
            raise QuireJobError(f"{url}: {error}") from error
        raise SourceUnavailableError(f"{path}: redirected {REDIRECTS_MAX} times; the brokers do not agree on the owner")


def is_http_address(url: str) -> bool:
    """Return whether a URL is an HTTP address, such as that of a broker that reads metadata."""
    return url.startswith(("http://", "https://"))


def require_http_address(http: str) -> None:
    """Raise JobOptionsError unless `http` is the address of a broker. It is shown in errors, so it has no password."""
    if "@" in http:
        raise JobOptionsError("http: an address without user and password; QUIRE_TOKEN holds the token")
    if not is_http_address(http):
        raise JobOptionsError(f"http = {http!r}: expected http://host:port or https://host:port of a broker")


def topic_path(topic: TopicName) -> str:
    """Return the path of a topic's admin requests, percent-encoded as brokers decode it: `+` in a path stays a plus."""
    parts = (topic.namespace.tenant, topic.namespace.namespace, topic.local)
    return f"/admin/v2/{topic.domain}/" + "/".join(quote(part, safe="") for part in parts)


def reason_of(value: Any) -> str:
    """Return the reason of an error response."""
    return str(value.get("reason", value)) if isinstance(value, dict) else str(value)


def require_success(status: int, value: Any, what: str) -> Any:
    """Return the value of a successful response. Raises NotFoundError, SourceUnavailableError, else QuireJobError."""
    if status < 300:
        return value
    text = f"{what}: HTTP {status}: {reason_of(value)}"
    if status in (401, 403):
        raise QuireJobError(f"{text}; set QUIRE_TOKEN to a token with the permission for it")
    if status == 404:
        raise NotFoundError(text)
    raise SourceUnavailableError(text) if status in _WORTH_A_RETRY else QuireJobError(text)


def _next(url: str, location: str) -> str:
    following = urljoin(url, location)
    if not is_http_address(following):
        raise SourceUnavailableError(f"{url} redirects to {location!r}, which is not an HTTP address")
    if url.startswith("https:") and not following.startswith("https:"):
        raise QuireJobError(f"{url} redirects to {following}, which is plaintext: the token would be sent unencrypted")
    return following


def _decoded(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text
