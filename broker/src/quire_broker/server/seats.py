"""The open sessions of a broker and the handshakes of TLS that come before them, bounded in all and by address.

At a limit the oldest client that has not sent CONNECT makes room for the newest; where all have, the newest is dropped.
A client in a handshake has not sent it.
Must never drop a client that was let in.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Protocol

from quire_bookie.env.unproven import Unproven
from quire_bookie.limits import CONNECTION_REFUSED_LOG_S
from quire_broker import limits

if TYPE_CHECKING:
    from quire_broker.server.session import Session

_log = logging.getLogger("quire.broker")


class Seated(Protocol):
    """A session, or a connection whose handshake has not ended."""

    @property
    def is_ready(self) -> bool:
        """Whether its client was let in."""
        ...

    def give_way(self) -> None:
        """End it: another one needs its place."""
        ...


class Seats(Collection["Session"]):
    """See the module's text; a collection of the sessions. 0: no limit."""

    def __init__(
        self,
        connections_max: int = limits.CONNECTIONS_MAX,
        connections_per_address_max: int = limits.CONNECTIONS_PER_ADDRESS_MAX,
    ) -> None:
        self._max = connections_max
        self._per_address_max = connections_per_address_max
        self._sessions: dict[Session, str] = {}
        self._by_address: Counter[str] = Counter()
        self._shaking: dict[Seated, str] = {}
        self._unproven: Unproven[Seated] = Unproven()
        self._dropped = 0
        self._logged_s = float("-inf")

    def __contains__(self, session: object) -> bool:
        return session in self._sessions

    def __iter__(self) -> "Iterator[Session]":
        return iter(self._sessions)

    def __len__(self) -> int:
        return len(self._sessions)

    def take(self, session: "Session", address: str) -> None:
        """A connection was opened. Where it is one too many, it or an older one is closed soon."""
        dropped = self._one_too_many(session, address)
        self._sessions[session] = address
        self._by_address[address] += 1
        if dropped is not session:
            self._unproven.add(session, address)

    def leave(self, session: "Session") -> None:
        """It has ended."""
        self._left(session, self._sessions.pop(session))

    def begin_handshake(self, shaking: Seated, address: str) -> None:
        """A connection was opened that becomes a session when its handshake has ended. As `take`."""
        dropped = self._one_too_many(shaking, address)
        self._shaking[shaking] = address
        self._by_address[address] += 1
        if dropped is not shaking:
            self._unproven.add(shaking, address)

    def end_handshake(self, shaking: Seated) -> None:
        """It has ended in any way. Called again it does nothing."""
        address = self._shaking.pop(shaking, None)
        if address is not None:
            self._left(shaking, address)

    def _left(self, one: Seated, address: str) -> None:
        self._unproven.discard(one)
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def _one_too_many(self, newest: Seated, address: str) -> Seated | None:
        """Close one soon where a limit is reached; that one."""
        count, reason, crowded = len(self) + len(self._shaking), "", None
        if 0 < self._max <= count:
            reason = f"there are {count} connections (brokerMaxConnections, or a share of `ulimit -n`)"
        elif 0 < self._per_address_max <= self._by_address.get(address, 0):
            reason, crowded = f"it has {self._by_address[address]} connections (brokerMaxConnectionsPerIp)", address
        if not reason:
            return None
        dropped = self._oldest_unproven(crowded) or newest
        self._report(address, reason)
        asyncio.get_running_loop().call_soon(dropped.give_way)  # one that begins is not open yet
        return dropped

    def _oldest_unproven(self, address: str | None) -> Seated | None:
        # Those that were let in since are met here once.
        while (oldest := self._unproven.pop_oldest(address)) is not None and oldest.is_ready:
            continue
        return oldest

    def _report(self, address: str, reason: str) -> None:
        self._dropped += 1
        now_s = asyncio.get_running_loop().time()
        if now_s - self._logged_s >= CONNECTION_REFUSED_LOG_S:
            self._logged_s = now_s
            _log.warning(
                "%s connects, and %s: one that has not sent CONNECT is dropped, else the newest; %d dropped so far",
                *(address, reason, self._dropped),
            )
