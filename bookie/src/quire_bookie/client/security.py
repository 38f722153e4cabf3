"""Secures a new connection to a bookie before its first request: TLS, then authentication.

Owns the order (START_TLS as plaintext V3, the handshake on the same socket, then the token in the protocol generation
of the requests) and what counts as a refusal. Never logs or repeats a token. Errors are OSErrors, as for an unreachable
bookie.
"""

import asyncio
import ssl
from functools import partial

from quire_bookie.env.clock import WallClock
from quire_bookie.env.secret_file import read_secret
from quire_bookie.env.tls import TlsContext, client_context
from quire_bookie.errors import PeerProtocolError
from quire_bookie.settings.tls import ClientSecuritySettings
from quire_bookie.wire.client_codec import ClientCodec, v2_auth, v3_auth, v3_start_tls
from quire_bookie.wire.messages import AUTH_DISABLED_PLUGIN, AuthResponse, Response, Status, StatusResponse

_TRANSACTION = 0


class Greeting:
    """Collects the responses of a socket during the handshake and returns them one at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._codec = ClientCodec(3)
        self._answers: list[Response] = []
        self._waiting: asyncio.Future[None] | None = None
        self._failure: Exception | None = None

    def expect(self, generation: int) -> None:
        """Decode further responses as this protocol generation."""
        self._codec = ClientCodec(generation)

    def received(self, data: bytes) -> None:
        """Decode bytes from the socket."""
        try:
            self._answers += self._codec.feed(data)
        except PeerProtocolError as error:
            self._failure = OSError(f"it broke the protocol: {error}")
        self._wake()

    def lost(self, error: BaseException | None) -> None:
        """Record that the socket was closed."""
        self._failure = OSError(str(error) if error else "it closed the connection")
        self._wake()

    async def answer(self) -> Response:
        """Return the next response. OSError if the socket is closed first."""
        while not self._answers:
            if self._failure is not None:
                raise self._failure
            self._waiting = self._loop.create_future()
            await self._waiting
        return self._answers.pop(0)

    def end_plaintext(self) -> None:
        """Require that no plaintext response is left, because it would be taken as protected by TLS. OSError."""
        if self._answers:
            raise OSError("it sent plaintext bytes after its response to START_TLS")
        self._codec = ClientCodec(3)

    def end(self) -> None:
        """Require that no further response arrived: a bookie refuses a role after the handshake. OSError."""
        if self._answers or self._failure is not None:
            raise OSError("it refuses this client's certificate or its role")

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class ClientSecurity:
    """Secures new connections as the settings require. Created by `open`."""

    def __init__(self, settings: ClientSecuritySettings, tls: TlsContext | None) -> None:
        self._settings = settings
        self._tls = tls

    async def tls_context(self) -> ssl.SSLContext | None:
        """Return the context for a connection that uses TLS from its first byte; None if TLS is not configured."""
        return None if self._tls is None else await self._tls.current()

    async def http_token(self, *, secure: bool) -> str:
        """Return the token for a bookie's HTTP port. OSError.

        Empty if none is configured, or if TLS is configured but this port does not use it.
        """
        settings = self._settings
        if settings.tls is not None and not secure:
            return ""
        return settings.token or (await read_secret(settings.token_path)).decode() if self._has_token else ""

    @property
    def _has_token(self) -> bool:
        return bool(self._settings.token or self._settings.token_path)

    @classmethod
    async def open(cls, settings: ClientSecuritySettings, clock: WallClock) -> "ClientSecurity | None":
        """Load the certificates; returns None if neither TLS nor a token is configured. ConfigError."""
        if settings.tls is None and not settings.token and not settings.token_path:
            return None
        tls: TlsContext | None = None
        if settings.tls is not None:
            make = partial(client_context, check_host_name=settings.check_host_name)
            tls = TlsContext(settings.tls, make, settings.refresh_s, clock)
            await tls.open()
        return cls(settings, tls)

    async def secure(
        self,
        transport: asyncio.Transport,
        protocol: asyncio.Protocol,
        greeting: Greeting,
        host: str,
        timeout_s: float,
        generation: int = 2,
    ) -> asyncio.Transport:
        """Return the secured transport for requests of this generation. On OSError the socket is closed."""
        try:
            if self._tls is not None:
                transport = await self._begin_tls(self._tls, transport, protocol, greeting, host, timeout_s)
            if self._has_token:
                await self._authenticate(transport, greeting, generation)
            greeting.end()
        except BaseException:
            transport.abort()
            raise
        return transport

    async def _begin_tls(
        self,
        tls: TlsContext,
        transport: asyncio.Transport,
        protocol: asyncio.Protocol,
        greeting: Greeting,
        host: str,
        timeout_s: float,
    ) -> asyncio.Transport:
        context = await tls.current()
        transport.write(v3_start_tls(_TRANSACTION))
        answer = await greeting.answer()
        if not isinstance(answer, StatusResponse) or answer.status is not Status.OK:
            raise OSError("it does not offer TLS, which this client's settings require")
        greeting.end_plaintext()
        secured = await asyncio.get_running_loop().start_tls(
            transport, protocol, context, server_hostname=host, ssl_handshake_timeout=timeout_s
        )
        if secured is None:
            raise OSError("it closed the connection during the TLS handshake")
        return secured

    async def _authenticate(self, transport: asyncio.Transport, greeting: Greeting, generation: int) -> None:
        settings = self._settings
        token = settings.token.encode() or await read_secret(settings.token_path)
        greeting.expect(generation)
        # A bookie accepts no V3 requests on a connection that has used V2.
        auth = v2_auth(settings.plugin, token) if generation == 2 else v3_auth(_TRANSACTION, settings.plugin, token)
        transport.write(auth)
        try:
            answer = await greeting.answer()
        except OSError as error:
            raise OSError(f"it refused this client's token or requires another authentication ({error})") from error
        if answer.status is Status.UNAUTHORIZED:
            raise OSError("it refused this client's token or requires another authentication")
        if not isinstance(answer, AuthResponse) or answer.plugin not in (settings.plugin, AUTH_DISABLED_PLUGIN):
            raise OSError("it did not respond to this client's token as the protocol requires")
