"""Sends a bookie JSON requests over its admin HTTP, for auto-recovery, backups and analyses. Never retries.

Commands have a blocking client of their own (`cli.rest`): importing this one's library takes longer than most commands
run. The paths are BookKeeper's where it has one, so that Java bookies understand them.
"""

import json
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quire_bookie.client.security import ClientSecurity
from quire_bookie.env.bounded_body import IDENTITY, read_body
from quire_bookie.errors import BookieUnavailableError, PeerProtocolError
from quire_bookie.limits import HTTP_ANSWER_BYTES_MAX
from quire_bookie.metadata.registration import BookieRegistry
from quire_bookie.metadata.service_info import TLS, Endpoint
from quire_bookie.model import BookieId, LedgerId

if TYPE_CHECKING:
    import aiohttp

TIMEOUT_S = 60.0
LIMBO_END_PATH = "/api/v1/quire/limbo/end"
READ_ONLY_PATH = "/api/v1/bookie/state/readonly"


class BookieHttp:
    """Sends requests to the HTTP endpoints that bookies registered. End it with `close`.

    `tls`: the context for HTTPS; None: that of `security`. Every method raises BookieUnavailableError if the bookie has
    no HTTP port, does not answer, refuses, or answers with more than `answer_bytes_max`.
    """

    def __init__(
        self,
        registry: BookieRegistry,
        security: ClientSecurity | None = None,
        tls: ssl.SSLContext | None = None,
        answer_bytes_max: int = HTTP_ANSWER_BYTES_MAX,
    ) -> None:
        self._registry = registry
        self._security = security
        self._tls = tls
        self._answer_bytes_max = answer_bytes_max
        self._session: aiohttp.ClientSession | None = None

    async def end_limbo(self, bookie: BookieId, ledger: LedgerId) -> None:
        """End the limbo of a ledger that is whole on this bookie. Durable on return."""
        await self._ask(bookie, "PUT", LIMBO_END_PATH, {"ledger": ledger}, "end limbo")

    async def set_read_only(self, bookie: BookieId, on: bool) -> None:
        """Make a bookie read-only or writable; the setting survives restarts."""
        what = "become read-only" if on else "become writable"
        await self._ask(bookie, "PUT", READ_ONLY_PATH, {"readOnly": on}, what)

    async def get(self, bookie: BookieId, path: str, what: str) -> Any:
        """Return the decoded JSON of `path`. `what`: what the bookie is asked to do, for errors."""
        text = await self._ask(bookie, "GET", path, None, what)
        try:
            return json.loads(text)
        except ValueError as error:
            raise BookieUnavailableError(f"bookie {bookie} did not {what}: no JSON in its response: {error}") from error

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _ask(
        self, bookie: BookieId, method: str, path: str, body: Mapping[str, int | bool] | None, what: str
    ) -> str:
        import aiohttp  # on the first request: a standalone starts without it

        endpoint = self._endpoint(bookie, what)
        secure = TLS in endpoint.extensions
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        base = f"{'https' if secure else 'http'}://{host}:{endpoint.port}"
        where = f"bookie {bookie} at {base}"
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_S), headers=IDENTITY, auto_decompress=False
            )
        try:
            tls = await self._context() if secure else True
            token = "" if self._security is None else await self._security.http_token(secure=secure)
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            request = self._session.request(
                method, base + path, json=body, headers=headers, ssl=tls, allow_redirects=False
            )
            async with request as answer:
                text = (await read_body(answer, self._answer_bytes_max)).decode("utf-8", "replace")
        except (aiohttp.ClientError, PeerProtocolError, TimeoutError, OSError, ValueError) as error:
            raise BookieUnavailableError(f"{where} did not {what}: {error or 'no response in time'}") from error
        if answer.status != 200:
            raise BookieUnavailableError(f"{where} was asked to {what} and answered {answer.status}: {text[:200]}")
        return text

    def _endpoint(self, bookie: BookieId, what: str) -> Endpoint:
        info = self._registry.service_info(bookie)
        endpoint = None if info is None else info.http_endpoint
        if endpoint is None:
            raise BookieUnavailableError(
                f"bookie {bookie} has no HTTP port; set httpServerPort there so that it can be asked to {what}"
            )
        return endpoint

    async def _context(self) -> ssl.SSLContext:
        """Return the TLS context: the one given, else the same trust and certificate as for the bookie protocol."""
        found = self._tls
        if found is None and self._security is not None:
            found = await self._security.tls_context()
        if found is None:
            raise OSError("it requires TLS, and no trusted certificates for bookies are configured here")
        return found
