"""Ports that nothing listens on at the moment, for servers that a test starts."""

import socket


def free_port() -> int:
    """One."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Several, each another one."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def free_port_range(count: int) -> int:
    """The first of `count` in a row."""
    while True:
        first = free_port()
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            continue
        return first
