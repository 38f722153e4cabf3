"""Ports that nothing listens on at the moment, for servers that a test starts.

A port that was just free is another's a moment later when all who look take what the system offers: each process goes
through a stretch of its own instead, below those that the system gives to connections, and takes none twice in a row.
Several test runs, and the workers of one, hence stay out of each other's way.
"""

import os
import socket

LOWEST, HIGHEST = 10_000, 32_000
_STRETCH = 211

_next = LOWEST + os.getpid() * _STRETCH % (HIGHEST - LOWEST)


def free_port() -> int:
    """One."""
    return free_port_range(1)


def free_ports(count: int) -> list[int]:
    """Several, each another one."""
    return [free_port() for _ in range(count)]


def free_port_range(count: int) -> int:
    """The first of `count` in a row."""
    global _next
    for _ in range(HIGHEST - LOWEST):
        first = _next if _next + count <= HIGHEST else LOWEST
        _next = first + 1
        if all(_is_free(port) for port in range(first, first + count)):
            _next = first + count
            return first
    raise AssertionError(f"no {count} free ports in a row between {LOWEST} and {HIGHEST}")


def _is_free(port: int) -> bool:
    for host in ("127.0.0.1", ""):
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                return False
    return True
