"""Connections of which both ends are in this process: a standalone's client and its bookies.

Owns the addresses of the client's ends, and the memory that the bookies' ends count in: one without a bound. Such an
end is no peer that could hold memory back, since the loop that serves it also reads the other end. Counted with the
peers, it could be closed for them; and its read would wait in line behind the broker's read that asked for it, for
memory that only the end of that one frees.
"""

import asyncio
from typing import Any, Final

from quire_bookie.env.connection_memory import ConnectionMemory, MemorySettings

Ends = tuple[tuple[Any, ...], tuple[Any, ...]]
"""Host and port of the client's end, and of the server's."""
_UNBOUNDED: Final = MemorySettings(1 << 62, stalled_s=0.0, slow_s=0.0, pressure_s=0.0)


class OwnLinks:
    """See the module's text. The client announces each socket before it sends anything on it."""

    def __init__(self) -> None:
        self.memory = ConnectionMemory(_UNBOUNDED)
        self._ends: set[Ends] = set()

    def opened(self, transport: asyncio.BaseTransport) -> Ends | None:
        """Note a new socket of the client. Pass the returned ends to `closed` when the socket is gone."""
        ends = _ends_of(transport, "sockname", "peername")
        if ends is not None:
            self._ends.add(ends)
        return ends

    def closed(self, ends: Ends) -> None:
        """The socket is gone."""
        self._ends.discard(ends)

    def has(self, transport: asyncio.BaseTransport) -> bool:
        """Whether that socket of a server leads to the client of this process."""
        ends = _ends_of(transport, "peername", "sockname")
        return ends is not None and ends in self._ends


def _ends_of(transport: asyncio.BaseTransport, near: str, far: str) -> Ends | None:
    """Both addresses, the client's first. Host and port of each: IPv6 has more, which the two sides see otherwise."""
    client, server = transport.get_extra_info(near), transport.get_extra_info(far)
    if not isinstance(client, tuple) or not isinstance(server, tuple):
        return None
    return client[:2], server[:2]
