"""Decides to which addresses a proxy connects: those of brokers, on permitted ports. Pure.

A client names the broker that it wants (`proxy_to_broker_url`). Without this check a proxy would connect any client to
any server that it reaches itself.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from quire_bookie.control_characters import has_control_characters
from quire_bookie.dataclass import dataclass
from quire_broker.errors import ServiceNotReadyError

ANY = "*"
_SHOWN_MAX = 200
"""Characters of a refused address in errors."""


class Address(NamedTuple):
    """Host and port of a broker; the host in lower case."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address_of(url: str) -> Address:
    """Parse `host:port`, with or without the scheme of Pulsar or of HTTP. ValueError."""
    scheme, found, rest = url.partition("://")
    if found and scheme not in ("pulsar", "pulsar+ssl", "http", "https"):
        raise ValueError("the scheme is unknown")
    if " " in url or has_control_characters(url):
        raise ValueError("not host:port")  # `urlsplit` would remove some of them
    parts = urlsplit(f"//{rest if found else url}")
    if not parts.hostname or not parts.port or parts.username is not None or parts.path.strip("/") or parts.query:
        raise ValueError("not host:port")
    return Address(parts.hostname.lower(), parts.port)


def addresses_of(text: str) -> list[Address]:
    """Parse `pulsar://host:port,host:port`; empty: none. ValueError."""
    scheme, found, hosts = text.partition("://")
    if text and not found:
        raise ValueError(f"{text}: not a URL; use pulsar://host:port,host:port, or http:// for REST")
    try:
        return [address_of(f"{scheme}://{host.strip()}") for host in hosts.split(",")] if text else []
    except ValueError as error:
        raise ValueError(f"{text}: {error}; use pulsar://host:port,host:port, or http:// for REST") from error


@dataclass(frozen=True, slots=True)
class Targets:
    """Checks addresses. `is_broker`: whether a broker has registered this address, or the configuration names it.

    `hosts`: further hosts, such as `broker-1` or `*.example.com`; `ports`: permitted ports, `*` for any.
    """

    is_broker: Callable[[Address], bool]
    hosts: Sequence[str] = ()
    ports: Sequence[str] = (ANY,)

    def check(self, url: str) -> Address:
        """Return the address of a broker. ServiceNotReadyError: the client looks its topic up again."""
        try:
            address = address_of(url)
        except ValueError as error:
            raise ServiceNotReadyError(f"{url[:_SHOWN_MAX]!r} is not an address of a broker: {error}") from error
        if not self.is_broker(address) and not self.names(address.host):
            raise ServiceNotReadyError(
                f"{str(address)[:_SHOWN_MAX]} is no registered broker: look the topic up again; further brokers are "
                "named in brokerProxyAllowedHostNames"
            )
        if ANY not in self.ports and str(address.port) not in self.ports:
            raise ServiceNotReadyError(
                f"{str(address)[:_SHOWN_MAX]}: the proxy does not connect to this port; add it to "
                "brokerProxyAllowedTargetPorts"
            )
        return address

    def names(self, host: str) -> bool:
        """Return whether this host is one of the further hosts."""
        return any(_matches(host.lower(), allowed.lower()) for allowed in self.hosts)


def _matches(host: str, allowed: str) -> bool:
    return allowed == host or (allowed.startswith("*.") and host.endswith(allowed[1:]))
