"""What is asked of the operating system for sockets that listen. Never reads or writes one."""

import socket
from typing import Protocol

from quire_bookie.limits import KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES


class ListeningSocket(Protocol):
    """As a server of asyncio has it."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None:
        """See `socket.setsockopt`."""
        ...


def notice_dead_peers(listening: ListeningSocket) -> None:
    """Have idle connections that it accepts probed, and ended when nobody answers: they inherit its options.

    A client whose machine or network vanished sends nothing that would end its connection.
    """
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
