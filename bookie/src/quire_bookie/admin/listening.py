"""Takes the port of the admin server early, without what the server needs later: a taken port must be told before a
long replay, and loading the HTTP library (0.4 s of CPU) must not hold up the first add."""

import os
import socket

from quire_bookie.errors import StartupError

BACKLOG = 128


def listen(host: str, port: int) -> socket.socket:
    """A listening socket (port 0: a free one). Who connects waits until somebody serves it. StartupError when taken."""
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
    """The port that was taken."""
    return int(listening.getsockname()[1])
