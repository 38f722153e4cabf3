"""Security of one bookie's port, shared by its connections: TLS context, authentication, limits, counters.

Owns the tasks that run TLS handshakes. Never answers a request, and never logs what a client sent.
"""

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from quire_bookie.env.background import Background
from quire_bookie.env.tls import TlsContext, TlsStats
from quire_bookie.env.unproven import Unproven
from quire_bookie.limits import CONNECTION_REFUSED_LOG_S, TOKENS_PER_TURN
from quire_bookie.server.security.auth import AuthProvider, Peer
from quire_bookie.server.security.gate import Gate
from quire_bookie.server.security.settings import ConnectionLimitSettings

if TYPE_CHECKING:
    from quire_bookie.tokens.files import TokenFile, TokenFileStats

_log = logging.getLogger("quire.server.security")


@dataclass(slots=True)
class SecurityStats:
    """Counters since the start, for a collector to read. `tls`: of the server's certificate, None without TLS."""

    connections_refused: int = 0
    tls_connections_open: int = 0
    tls_handshakes: int = 0
    tls_handshakes_failed: int = 0
    authenticated: int = 0
    authentication_failures: int = 0
    requests_unauthorized: int = 0
    unauthenticated_timeouts: int = 0
    withdrawn: int = 0
    tls: TlsStats | None = None


class Watched(Protocol):
    """A connection that was let in."""

    def withdraw(self) -> None:
        """It is not any more: end it."""
        ...


class Waiting(Protocol):
    """A connection that has not passed its gate yet."""

    def give_way(self) -> None:
        """End it: another one needs its place."""
        ...


class Guard:
    """See the module's text. Without arguments: limits on connections, no TLS, no authentication."""

    def __init__(
        self,
        limits: ConnectionLimitSettings | None = None,
        *,
        tls: TlsContext | None = None,
        tls_required: bool = False,
        provider: AuthProvider | None = None,
    ) -> None:
        self.limits = limits or ConnectionLimitSettings()
        self.stats = SecurityStats(tls=None if tls is None else tls.stats)
        self._tls = tls
        self._tls_required = tls_required
        self._provider = provider
        self._handshakes = Background(_log)
        self._watched: dict[Watched, Gate] | None = None
        self.token_stats: TokenFileStats | None = None
        self._by_address: Counter[str] = Counter()
        self._open = 0
        self._refusal_logged_s = float("-inf")
        self.unproven: Unproven[Waiting] = Unproven()
        """Connections that have not passed their gate; they say so."""

    @property
    def offers_tls(self) -> bool:
        """Whether START_TLS is taken."""
        return self._tls is not None

    @property
    def provider(self) -> AuthProvider | None:
        """How clients prove who they are; None: not at all."""
        return self._provider

    def gate(self, peer: Peer) -> Gate | None:
        """What a new connection has to pass; None when everybody may do everything."""
        if self._provider is None and not self._tls_required:
            return None
        return Gate(self._provider, peer, tls_required=self._tls_required)

    def admits(self, address: str) -> bool:
        """Count a new connection, unless there are too many. `left` must follow when it ends.

        One that has not passed its gate gives way: it cannot keep a client out that will.
        """
        limits = self.limits
        reason, crowded = "", None
        if 0 < limits.connections_max <= self._open:
            reason = f"there are {self._open} connections (maxConnections)"
        elif 0 < limits.connections_per_address_max <= self._by_address[address]:
            reason = f"it has {self._by_address[address]} connections (maxConnectionsPerAddress)"
            crowded = address
        if reason:
            self._refuse(address, reason)
            oldest = self.unproven.pop_oldest(crowded)
            if oldest is None:
                return False
            oldest.give_way()
        self._open += 1
        self._by_address[address] += 1
        return True

    def left(self, address: str) -> None:
        """A connection that was admitted has ended."""
        self._open -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def is_crowded(self, address: str) -> bool:
        """Whether more than half of the connections are open that there may be, in all or of that address."""
        limits = self.limits
        return (
            0 < limits.connections_max < 2 * self._open
            or 0 < limits.connections_per_address_max < 2 * self._by_address[address]
        )

    # ---- tokens that are withdrawn
    def follow(self, tokens: "TokenFile", refresh_s: float) -> None:
        """From now on: look at the file every `refresh_s`, and end the connections whose token is not good any more."""
        self._watched = {}
        self.token_stats = tokens.stats
        self._handshakes.start(self._follow(tokens, refresh_s), "looks at the token file")

    def watch(self, connection: Watched, gate: Gate) -> None:
        """A connection was let in. `unwatch` must follow when it ends."""
        if self._watched is not None:
            self._watched[connection] = gate

    def unwatch(self, connection: Watched) -> None:
        """It has ended."""
        if self._watched is not None:
            self._watched.pop(connection, None)

    async def _follow(self, tokens: "TokenFile", refresh_s: float) -> None:
        while True:
            await asyncio.sleep(refresh_s)
            if await tokens.refresh():
                await self._recheck()

    async def _recheck(self) -> None:
        watched = self._watched or {}
        for at, (connection, gate) in enumerate(list(watched.items())):
            if at % TOKENS_PER_TURN == TOKENS_PER_TURN - 1:
                await asyncio.sleep(0)
            if connection in watched and gate.is_withdrawn():
                self.stats.withdrawn += 1
                connection.withdraw()

    def _refuse(self, address: str, reason: str) -> None:
        self.stats.connections_refused += 1
        if not self._by_address[address]:
            del self._by_address[address]  # looked up, not counted
        now_s = asyncio.get_running_loop().time()
        if now_s - self._refusal_logged_s >= CONNECTION_REFUSED_LOG_S:
            self._refusal_logged_s = now_s
            _log.warning(
                "refused a connection of %s: %s; %d refused so far", address, reason, self.stats.connections_refused
            )

    async def begin_tls(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> asyncio.Transport | None:
        """Run the server's side of a handshake; the transport that is protected, or None when it failed."""
        assert self._tls is not None
        self.stats.tls_handshakes += 1
        context = await self._tls.current()
        try:
            if transport.is_closing():
                raise ConnectionResetError("the client has gone")
            secured = await asyncio.get_running_loop().start_tls(
                transport,
                protocol,
                context,
                server_side=True,
                ssl_handshake_timeout=self.limits.handshake_timeout_s,
            )
        except (OSError, ssl.CertificateError) as error:
            self.stats.tls_handshakes_failed += 1
            _log.info("TLS handshake with %s failed: %s", transport.get_extra_info("peername"), error)
            return None
        return secured

    def start(self, work: Coroutine[Any, Any, None], what: str) -> None:
        """Run a handshake in a task of ours; nothing after `close`."""
        self._handshakes.start(work, what)

    async def close(self) -> None:
        """End the handshakes that are under way."""
        await self._handshakes.close()
