"""Tracks connections with both ends in this process: a standalone's client and its bookies.

Owns the addresses of the client's ends, and the unlimited memory account of the bookies' ends. Such an end is not a
peer that could hold memory: the loop that serves it also reads the other end. If it counted with the peers, it could be
closed because of them; and its read would wait behind the broker's read that caused it, for memory that only the end of
that read frees.
"""

import asyncio
from typing import Any, Final

from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.settings.memory import MemorySettings

Ends = tuple[tuple[Any, ...], tuple[Any, ...]]
"""Host and port of the client's end and of the server's."""
_UNBOUNDED: Final = MemorySettings(1 << 62, stalled_s=0.0, slow_s=0.0, pressure_s=0.0)


class OwnLinks:
    """Owns the set of links; see the module's docstring. The client announces each socket before it sends anything."""

    def __init__(self) -> None:
        self.memory = ConnectionMemory(_UNBOUNDED)
        self._ends: set[Ends] = set()

    def opened(self, transport: asyncio.BaseTransport) -> Ends | None:
        """Record a new socket of the client. Pass the returned ends to `closed` when the socket is closed."""
        ends = _ends_of(transport, "sockname", "peername")
        if ends is not None:
            self._ends.add(ends)
        return ends

    def closed(self, ends: Ends) -> None:
        """Forget a closed socket."""
        self._ends.discard(ends)

    def has(self, transport: asyncio.BaseTransport) -> bool:
        """Return whether this socket of a server leads to the client of this process."""
        ends = _ends_of(transport, "peername", "sockname")
        return ends is not None and ends in self._ends


def _ends_of(transport: asyncio.BaseTransport, near: str, far: str) -> Ends | None:
    """Return both addresses, the client's first, as host and port: further fields of IPv6 differ between the ends."""
    client, server = transport.get_extra_info(near), transport.get_extra_info(far)
    if not isinstance(client, tuple) or not isinstance(server, tuple):
        return None
    return client[:2], server[:2]
