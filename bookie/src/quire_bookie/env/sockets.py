"""Sets options of listening sockets. Never reads or writes one."""

import socket
from typing import Protocol

from quire_bookie.limits import KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES


class ListeningSocket(Protocol):
    """A listening socket of an asyncio server."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None:
        """See `socket.setsockopt`."""
        ...


def notice_dead_peers(listening: ListeningSocket) -> None:
    """Enable keep-alive probes on accepted idle connections, which inherit the option: dead peers are disconnected.

    A client whose machine or network has failed sends nothing that would end its connection.
    """
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
