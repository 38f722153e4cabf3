"""Opens the port of the admin server early, without the server's imports: a port in use must be reported before a long
replay, and importing the HTTP library (0.4 s of CPU) must not delay the first add."""

import os
import socket

from quire_bookie.errors import StartupError

BACKLOG = 128


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket (port 0: a free one). Clients wait until it is served. StartupError if it is in use."""
    found: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(BACKLOG)
        found.setblocking(False)
    except OSError as error:
        if found is not None:
            found.close()
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise StartupError(
            f"port {port} on {host} cannot be listened on: {reason}; "
            "stop the other process or choose another --http-port"
        ) from error
    return found


def port_of(listening: socket.socket) -> int:
    """Return the port of the socket."""
    return int(listening.getsockname()[1])
