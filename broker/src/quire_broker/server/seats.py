"""Bounds the open sessions of a broker and the TLS handshakes before them, in total and per address.

At a limit, the oldest client that has not sent CONNECT is closed for the newest; if all have sent it, the newest is
closed. A client in a handshake has not sent it. Must never close an admitted client.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Generic, Protocol, TypeVar

from quire_bookie.env.unproven import Unproven
from quire_bookie.limits import CONNECTION_REFUSED_LOG_S
from quire_broker import limits

_log = logging.getLogger("quire.broker")


class Seated(Protocol):
    """A session, or a connection in its handshake."""

    @property
    def is_ready(self) -> bool:
        """Whether its client was admitted."""
        ...

    def give_way(self) -> None:
        """Close it to make space for another one."""
        ...


S = TypeVar("S", bound=Seated)


class Seats(Collection[S], Generic[S]):
    """Holds the sessions, and enforces the limits that the module describes. 0: no limit."""

    def __init__(
        self,
        connections_max: int = limits.CONNECTIONS_MAX,
        connections_per_address_max: int = limits.CONNECTIONS_PER_ADDRESS_MAX,
        keys: tuple[str, str] = ("brokerMaxConnections", "brokerMaxConnectionsPerIp"),
    ) -> None:
        """`keys`: the settings of the two limits, for the log."""
        self._max = connections_max
        self._per_address_max = connections_per_address_max
        self._keys = keys
        self._sessions: dict[S, str] = {}
        self._by_address: Counter[str] = Counter()
        self._handshakes: dict[Seated, str] = {}
        self._unproven: Unproven[Seated] = Unproven()
        self.dropped = 0
        """How many connections the limits have closed."""
        self._logged_s = float("-inf")

    def __contains__(self, session: object) -> bool:
        return session in self._sessions

    def __iter__(self) -> Iterator[S]:
        return iter(self._sessions)

    def __len__(self) -> int:
        return len(self._sessions)

    def take(self, session: S, address: str) -> None:
        """Add an opened connection. If it exceeds a limit, it or an older one is closed soon."""
        dropped = self._choose_excess(session, address)
        self._sessions[session] = address
        self._by_address[address] += 1
        if dropped is not session:
            self._unproven.add(session, address)

    def leave(self, session: S) -> None:
        """Remove an ended session."""
        self._left(session, self._sessions.pop(session))

    def begin_handshake(self, connecting: Seated, address: str) -> None:
        """Add a connection that becomes a session when its handshake has ended. Limits as in `take`."""
        dropped = self._choose_excess(connecting, address)
        self._handshakes[connecting] = address
        self._by_address[address] += 1
        if dropped is not connecting:
            self._unproven.add(connecting, address)

    def end_handshake(self, connecting: Seated) -> None:
        """Remove a connection whose handshake ended in any way. A second call does nothing."""
        address = self._handshakes.pop(connecting, None)
        if address is not None:
            self._left(connecting, address)

    def _left(self, one: Seated, address: str) -> None:
        self._unproven.discard(one)
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def _choose_excess(self, newest: Seated, address: str) -> Seated | None:
        """If a limit is reached, choose one to close soon and return it."""
        count, reason, crowded = len(self) + len(self._handshakes), "", None
        if 0 < self._max <= count:
            reason = f"there are {count} connections ({self._keys[0]}, or a share of `ulimit -n`)"
        elif 0 < self._per_address_max <= self._by_address.get(address, 0):
            reason, crowded = f"it has {self._by_address[address]} connections ({self._keys[1]})", address
        if not reason:
            return None
        dropped = self._oldest_unproven(crowded) or newest
        self._report(address, reason)
        asyncio.get_running_loop().call_soon(dropped.give_way)  # a new connection is not open yet
        return dropped

    def _oldest_unproven(self, address: str | None) -> Seated | None:
        # The list still has clients that were admitted meanwhile: skip them, which removes them.
        while (oldest := self._unproven.pop_oldest(address)) is not None and oldest.is_ready:
            continue
        return oldest

    def _report(self, address: str, reason: str) -> None:
        self.dropped += 1
        now_s = asyncio.get_running_loop().time()
        if now_s - self._logged_s >= CONNECTION_REFUSED_LOG_S:
            self._logged_s = now_s
            _log.warning(
                "%s connects, and %s: closing one that has not sent CONNECT, else the newest; %d closed so far",
                address,
                reason,
                self.dropped,
            )
