"""What a new connection to a bookie goes through before its first request: TLS, then authentication.

Owns the order (START_TLS in V3 and in clear, the handshake on the same socket, then the token in the generation of what
follows) and what counts as a refusal. Never logs or repeats a token. Errors are OSErrors: the bookie cannot be reached
by us.
"""

import asyncio
import ssl
from dataclasses import dataclass, field
from functools import partial

from quire_bookie.env.clock import WallClock
from quire_bookie.env.secret_file import read_secret
from quire_bookie.env.tls import TlsContext, TlsFiles, client_context
from quire_bookie.errors import ConfigError, PeerProtocolError
from quire_bookie.limits import TLS_REFRESH_S
from quire_bookie.wire.client_codec import ClientCodec, v2_auth, v3_auth, v3_start_tls
from quire_bookie.wire.messages import AUTH_DISABLED_PLUGIN, AuthResponse, Response, Status, StatusResponse

TOKEN_PLUGIN = "token"
"""The plugin name that our bookies' token authentication goes by."""
_TRANSACTION = 0


@dataclass(frozen=True, slots=True)
class ClientSecuritySettings:
    """How bookies are spoken to. The default: in clear and without a name.

    `tls`: files for TLS; None: none. `token`, or the file `token_path` that is read for each connection: sent under the
    plugin name `plugin`; both empty: none.
    """

    tls: TlsFiles | None = None
    check_host_name: bool = True
    refresh_s: float = TLS_REFRESH_S
    token: str = field(default="", repr=False)
    token_path: str = ""
    plugin: str = TOKEN_PLUGIN

    def __post_init__(self) -> None:
        """ConfigError for parts that contradict each other."""
        if self.token and self.token_path:
            raise ConfigError("ledger client: give the token or the file with it, not both")


class Greeting:
    """The answers of a socket during the handshake, one at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._codec = ClientCodec(3)
        self._answers: list[Response] = []
        self._waiting: asyncio.Future[None] | None = None
        self._failure: Exception | None = None

    def expect(self, generation: int) -> None:
        """What comes from now on is of this generation."""
        self._codec = ClientCodec(generation)

    def received(self, data: bytes) -> None:
        """Bytes of the socket."""
        try:
            self._answers += self._codec.feed(data)
        except PeerProtocolError as error:
            self._failure = OSError(f"it broke the protocol: {error}")
        self._wake()

    def lost(self, error: BaseException | None) -> None:
        """The socket ended."""
        self._failure = OSError(str(error) if error else "it hung up")
        self._wake()

    async def answer(self) -> Response:
        """The next one. OSError when the socket ends first."""
        while not self._answers:
            if self._failure is not None:
                raise self._failure
            self._waiting = self._loop.create_future()
            await self._waiting
        return self._answers.pop(0)

    def end_clear(self) -> None:
        """What comes from now on comes through TLS. OSError when there is more: it would pass for protected."""
        if self._answers:
            raise OSError("it sent bytes in clear behind its answer to START_TLS")
        self._codec = ClientCodec(3)

    def end(self) -> None:
        """Nothing more is expected. OSError when there is more: a role is refused behind the handshake."""
        if self._answers or self._failure is not None:
            raise OSError("it refuses our certificate or its role")

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class ClientSecurity:
    """Takes new connections through what the settings ask for. Made by `open`."""

    def __init__(self, settings: ClientSecuritySettings, tls: TlsContext | None) -> None:
        self._settings = settings
        self._tls = tls

    async def tls_context(self) -> ssl.SSLContext | None:
        """For a connection that speaks TLS from its first byte; None where TLS is not configured."""
        return None if self._tls is None else await self._tls.current()

    async def http_token(self, *, secure: bool) -> str:
        """For a bookie's HTTP port; empty: none, or we speak TLS with bookies and that port does not. OSError."""
        settings = self._settings
        if settings.tls is not None and not secure:
            return ""
        return settings.token or (await read_secret(settings.token_path)).decode() if self._has_token else ""

    @property
    def _has_token(self) -> bool:
        return bool(self._settings.token or self._settings.token_path)

    @classmethod
    async def open(cls, settings: ClientSecuritySettings, clock: WallClock) -> "ClientSecurity | None":
        """With its certificates loaded; None when nothing is asked for. ConfigError."""
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
        """The transport to go on with, in that generation. OSError with the reason; the socket is closed then."""
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
            raise OSError("it does not offer TLS, which our settings ask for")
        greeting.end_clear()
        secured = await asyncio.get_running_loop().start_tls(
            transport, protocol, context, server_hostname=host, ssl_handshake_timeout=timeout_s
        )
        if secured is None:
            raise OSError("it hung up during the TLS handshake")
        return secured

    async def _authenticate(self, transport: asyncio.Transport, greeting: Greeting, generation: int) -> None:
        settings = self._settings
        token = settings.token.encode() or await read_secret(settings.token_path)
        greeting.expect(generation)
        # A bookie takes nothing of V3 any more on a connection that spoke V2.
        auth = v2_auth(settings.plugin, token) if generation == 2 else v3_auth(_TRANSACTION, settings.plugin, token)
        transport.write(auth)
        try:
            answer = await greeting.answer()
        except OSError as error:
            raise OSError(f"it refused our token, or asks for something else ({error})") from error
        if answer.status is Status.UNAUTHORIZED:
            raise OSError("it refused our token, or asks for something else")
        if not isinstance(answer, AuthResponse) or answer.plugin not in (settings.plugin, AUTH_DISABLED_PLUGIN):
            raise OSError("it answered our token with something else")
