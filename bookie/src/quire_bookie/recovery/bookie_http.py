"""Sends a bookie one JSON request over its admin HTTP, on a connection of its own. Hand-written; never retries.

The admin library belongs to servers. The paths are BookKeeper's where it has one, so that Java bookies understand them.
"""

import asyncio
import json
import ssl
from collections.abc import Mapping

from quire_bookie.client.security import ClientSecurity
from quire_bookie.errors import BookieUnavailableError
from quire_bookie.metadata.registration import BookieRegistry
from quire_bookie.metadata.service_info import TLS
from quire_bookie.model import BookieId, LedgerId

_ANSWER_BYTES_MAX = 64 * 1024
_TIMEOUT_S = 30.0
LIMBO_END_PATH = "/api/v1/quire/limbo/end"
READ_ONLY_PATH = "/api/v1/bookie/state/readonly"


class BookieHttp:
    """Sends requests to the HTTP endpoints that bookies registered."""

    def __init__(self, registry: BookieRegistry, security: ClientSecurity | None = None) -> None:
        self._registry = registry
        self._security = security

    async def end_limbo(self, bookie: BookieId, ledger: LedgerId) -> None:
        """End the limbo of a ledger that is whole on this bookie. Durable on return. Raises BookieUnavailableError."""
        await self._ask(bookie, LIMBO_END_PATH, {"ledger": ledger}, "end limbo")

    async def set_read_only(self, bookie: BookieId, on: bool) -> None:
        """Make a bookie read-only or writable; the setting survives restarts.

        Raises BookieUnavailableError if it has no HTTP port or refuses.
        """
        await self._ask(bookie, READ_ONLY_PATH, {"readOnly": on}, "become read-only" if on else "become writable")

    async def _ask(self, bookie: BookieId, path: str, body: Mapping[str, int | bool], what: str) -> None:
        info = self._registry.service_info(bookie)
        endpoint = None if info is None else info.http_endpoint
        if endpoint is None:
            raise BookieUnavailableError(
                f"bookie {bookie} has no HTTP port; set httpServerPort there so that it can be asked to {what}"
            )
        host, port, secure = endpoint.host, endpoint.port, TLS in endpoint.extensions
        where = f"bookie {bookie} at {'https' if secure else 'http'}://{host}:{port}"
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                tls = await self._tls() if secure else None
                token = "" if self._security is None else await self._security.http_token(secure=secure)
                status, text = await _put(host, port, path, body, tls, token)
        except (OSError, TimeoutError, ValueError) as error:
            raise BookieUnavailableError(f"{where} did not {what}: {error}") from error
        if status != 200:
            raise BookieUnavailableError(f"{where} was asked to {what} and answered {status}: {text[:200]}")

    async def _tls(self) -> ssl.SSLContext:
        """Return the TLS context of connections to bookie ports: same trust, and our certificate."""
        found = None if self._security is None else await self._security.tls_context()
        if found is None:
            raise OSError("it requires TLS, and no trusted certificates for bookies are configured here")
        return found


async def _put(
    host: str, port: int, path: str, body: Mapping[str, int | bool], tls: ssl.SSLContext | None, token: str
) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection(host, port, ssl=tls)
    try:
        data = json.dumps(body).encode()
        shown = f"Authorization: Bearer {token}\r\n" if token else ""
        head = (
            f"PUT {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n{shown}"
            f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + data)
        answer = bytearray()
        while len(answer) < _ANSWER_BYTES_MAX and (part := await reader.read(_ANSWER_BYTES_MAX)):
            answer += part
    finally:
        writer.close()
    first, _, rest = bytes(answer).partition(b"\r\n")
    fields = first.split()
    if len(fields) < 2 or not fields[0].startswith(b"HTTP/"):
        raise ValueError("the answer is not HTTP")
    return int(fields[1]), rest.partition(b"\r\n\r\n")[2].decode("utf-8", "replace")
