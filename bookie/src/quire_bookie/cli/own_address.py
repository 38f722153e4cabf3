"""Checks the address that a process listens on, before it opens anything. Occupies no port."""

import ipaddress
import os
import socket
from typing import Any

from quire_bookie.errors import ConfigError

ANY_ADDRESS = ("", "0.0.0.0", "::")
_REMEDY = "give an address of this machine, 127.0.0.1 for this machine alone, or 0.0.0.0 for all its IPv4 addresses"


def require_own_address(host: str, key: str) -> None:
    """Raise ConfigError if `host` does not resolve or is not an address of this machine. `key` names the setting."""
    for family, address in _resolved(host, key):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind(address)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise ConfigError(f"{key} {host} is not an address of this machine ({reason}); {_REMEDY}") from error


def reaches_others(host: str, key: str) -> bool:
    """Return whether other machines may reach a server on `host`. ConfigError if it does not resolve."""
    if host in ANY_ADDRESS:
        return True
    return not all(ipaddress.ip_address(address[0]).is_loopback for _, address in _resolved(host, key))


def _resolved(host: str, key: str) -> list[tuple[socket.AddressFamily, Any]]:
    """Resolve a host to socket addresses with port 0."""
    try:
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{key} {host!r} does not resolve ({reason}); {_REMEDY}") from error
    return [(family, address) for family, _, _, _, address in found]
