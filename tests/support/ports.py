"""Free ports for servers that a test starts.

If all processes took the ports that the system offers, a free port could be in use a moment later. Instead, each
process goes through its own range, below the ephemeral ports of the system, and uses no port twice in a row. So
concurrent test runs, and the workers of one, do not conflict.
"""

import os
import socket

LOWEST, HIGHEST = 10_000, 32_000
_STRETCH = 211

_next = LOWEST + os.getpid() * _STRETCH % (HIGHEST - LOWEST)


def free_port() -> int:
    """Return a free port."""
    return free_port_range(1)


def free_ports(count: int) -> list[int]:
    """Return several distinct free ports."""
    return [free_port() for _ in range(count)]


def free_port_range(count: int) -> int:
    """Return the first of `count` consecutive free ports."""
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
