"""Security of one bookie's port, shared by its connections: TLS context, authentication, limits, counters.

Owns the tasks that run TLS handshakes. Never answers a request, and never logs payloads of clients.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from quire_bookie.dataclass import dataclass
from quire_bookie.env.background import Background
from quire_bookie.env.tls import TlsContext, TlsStats
from quire_bookie.env.tls_socket import TlsSocket
from quire_bookie.env.unproven import Unproven
from quire_bookie.limits import CONNECTION_REFUSED_LOG_S, TOKENS_PER_TURN
from quire_bookie.server.security.auth import AuthProvider, Peer
from quire_bookie.server.security.gate import Gate
from quire_bookie.settings.security import ConnectionLimitSettings

if TYPE_CHECKING:
    from quire_bookie.tokens.files import TokenFile, TokenFileStats

_log = logging.getLogger("quire.server.security")


@dataclass(slots=True)
class SecurityStats:
    """Holds counters since the start, for the metrics collector. `tls`: of the server's certificate, if any."""

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
    """An authenticated connection."""

    def withdraw(self) -> None:
        """Close the connection: its token is no longer valid."""
        ...


class Waiting(Protocol):
    """A connection that has not passed its gate yet."""

    def give_way(self) -> None:
        """Close the connection: another one needs its place."""
        ...


class Guard:
    """Guards one bookie's port. Without arguments: limits on connections, no TLS, no authentication."""

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
        """Connections that have not passed their gate; they register themselves."""

    @property
    def offers_tls(self) -> bool:
        """Whether START_TLS is accepted."""
        return self._tls is not None

    @property
    def provider(self) -> AuthProvider | None:
        """The provider that authenticates clients; None: no authentication."""
        return self._provider

    def gate(self, peer: Peer) -> Gate | None:
        """Return the gate of a new connection; None if neither authentication nor TLS is required."""
        if self._provider is None and not self._tls_required:
            return None
        return Gate(self._provider, peer, tls_required=self._tls_required)

    def admits(self, address: str) -> bool:
        """Count a new connection unless there are too many; return whether it was counted. Call `left` when it ends.

        At a limit the oldest connection that has not passed its gate is closed, so that such connections cannot keep
        out clients that will authenticate.
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
        """Count out an admitted connection that has ended."""
        self._open -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def is_crowded(self, address: str) -> bool:
        """Whether more than half of the allowed connections are open, in total or of that address."""
        limits = self.limits
        return (
            0 < limits.connections_max < 2 * self._open
            or 0 < limits.connections_per_address_max < 2 * self._by_address[address]
        )

    # ---- tokens that are withdrawn
    def follow(self, tokens: "TokenFile", refresh_s: float) -> None:
        """Read the file every `refresh_s` from now on, and end connections whose token is no longer valid."""
        self._watched = {}
        self.token_stats = tokens.stats
        self._handshakes.start(self._follow(tokens, refresh_s), "token file refresh")

    def watch(self, connection: Watched, gate: Gate) -> None:
        """Add an authenticated connection. Call `unwatch` when it ends."""
        if self._watched is not None:
            self._watched[connection] = gate

    def unwatch(self, connection: Watched) -> None:
        """Remove a connection that has ended."""
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
            del self._by_address[address]  # the lookup created it
        now_s = asyncio.get_running_loop().time()
        if now_s - self._refusal_logged_s >= CONNECTION_REFUSED_LOG_S:
            self._refusal_logged_s = now_s
            _log.warning(
                "refused a connection from %s: %s; %d refused so far", address, reason, self.stats.connections_refused
            )

    async def begin_tls(
        self, transport: asyncio.Transport, connection: asyncio.Protocol, on_failure: Callable[[], None]
    ) -> None:
        """Begin the server's side of a handshake on a socket whose reading is paused.

        `connection.connection_made` is called again after the handshake, with the protected transport. If the handshake
        fails, `on_failure` is called, unless the socket closes before the handshake begins.
        """
        assert self._tls is not None
        self.stats.tls_handshakes += 1
        context = await self._tls.current()

        def failed(reason: str) -> None:
            self.stats.tls_handshakes_failed += 1
            _log.info("TLS handshake with %s failed: %s", transport.get_extra_info("peername"), reason)
            on_failure()

        if transport.is_closing():
            self.stats.tls_handshakes_failed += 1
            return
        timeout_s = self.limits.handshake_timeout_s
        tls = TlsSocket(lambda: connection, context, handshake_timeout_s=timeout_s, on_failure=failed)
        transport.set_protocol(tls)
        tls.connection_made(transport)
        transport.resume_reading()

    def start(self, work: Coroutine[Any, Any, None], what: str) -> None:
        """Run a handshake in a background task; does nothing after `close`."""
        self._handshakes.start(work, what)

    async def close(self) -> None:
        """Cancel running handshakes."""
        await self._handshakes.close()
