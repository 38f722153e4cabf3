"""The open sessions of a broker, bounded in all and by address.

At a limit the oldest client that has not sent CONNECT makes room for the newest; where all have, the newest is dropped.
Must never drop a client that was let in.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from quire_bookie.env.unproven import Unproven
from quire_bookie.limits import CONNECTION_REFUSED_LOG_S
from quire_broker import limits

if TYPE_CHECKING:
    from quire_broker.server.session import Session

_log = logging.getLogger("quire.broker")


class Seats(Collection["Session"]):
    """See the module's text. 0: no limit."""

    def __init__(
        self,
        connections_max: int = limits.CONNECTIONS_MAX,
        connections_per_address_max: int = limits.CONNECTIONS_PER_ADDRESS_MAX,
    ) -> None:
        self._max = connections_max
        self._per_address_max = connections_per_address_max
        self._sessions: dict[Session, str] = {}
        self._by_address: Counter[str] = Counter()
        self._unproven: Unproven[Session] = Unproven()
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
        reason, crowded = "", None
        if 0 < self._max <= len(self):
            reason = f"there are {len(self)} connections (brokerMaxConnections)"
        elif 0 < self._per_address_max <= self._by_address[address]:
            reason, crowded = f"it has {self._by_address[address]} connections (brokerMaxConnectionsPerIp)", address
        self._sessions[session] = address
        self._by_address[address] += 1
        if reason:
            dropped = self._oldest_unproven(crowded) or session
            self._report(address, reason)
            asyncio.get_running_loop().call_soon(dropped.close)  # one that begins is not open yet
            if dropped is session:
                return
        self._unproven.add(session, address)

    def leave(self, session: "Session") -> None:
        """It has ended."""
        address = self._sessions.pop(session)
        self._unproven.discard(session)
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def _oldest_unproven(self, address: str | None) -> "Session | None":
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
