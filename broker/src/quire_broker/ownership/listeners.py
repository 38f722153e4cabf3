"""Parses further addresses of a broker, by the names that clients use: `external:pulsar://host:port`. Pure.

A listener may have ports of its own, in the same format: their clients are known to use it. Clients of other ports name
a listener only in lookups, which they may send to another broker.
Nodes have them in the format of stock brokers: {"external": {"brokerServiceUrl": "pulsar://..."}}.
"""

from typing import Any
from urllib.parse import urlsplit

from quire_bookie.dataclass import dataclass

_SCHEMES = ("pulsar", "pulsar+ssl")


@dataclass(frozen=True, slots=True)
class Listener:
    """One listener. An empty address means that it has none of that kind."""

    name: str
    native: str = ""
    native_tls: str = ""


@dataclass(frozen=True, slots=True)
class Binding:
    """A port of a listener."""

    listener: str
    host: str
    port: int
    tls: bool


def parse_bindings(text: str) -> tuple[Binding, ...]:
    """Parse ports of listeners, in the format of listeners; port 0 takes a free one. ValueError."""
    return tuple(
        Binding(one.name, urlsplit(url).hostname or "", urlsplit(url).port or 0, tls)
        for one in parse_listeners(text)
        for url, tls in ((one.native, False), (one.native_tls, True))
        if url
    )


def listener_of_other_ports(listeners: tuple[Listener, ...], bindings: tuple[Binding, ...]) -> str | None:
    """Return "" if clients of ports without a listener use the default addresses; None if they may use a listener."""
    return "" if {one.name for one in listeners} <= {one.listener for one in bindings} else None


def parse_listeners(text: str) -> tuple[Listener, ...]:
    """Parse `name:pulsar://host:port,name:pulsar+ssl://host:port,...`; one name may have both. ValueError."""
    found: dict[str, dict[str, str]] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, url = entry.partition(":")
        parts = urlsplit(url)
        if not name or parts.scheme not in _SCHEMES or not parts.hostname or parts.port is None:
            raise ValueError(f"{entry!r}: not a listener; use name:pulsar://host:port or name:pulsar+ssl://host:port")
        urls = found.setdefault(name, {})
        if parts.scheme in urls:
            raise ValueError(f"listener {name} has two addresses of the scheme {parts.scheme}")
        urls[parts.scheme] = url
    return tuple(Listener(name, urls.get("pulsar", ""), urls.get("pulsar+ssl", "")) for name, urls in found.items())


def listeners_json(listeners: tuple[Listener, ...]) -> dict[str, Any]:
    """Encode listeners for a node."""
    found = {}
    for one in listeners:
        urls = {"brokerServiceUrl": one.native, "brokerServiceUrlTls": one.native_tls}
        found[one.name] = {key: url for key, url in urls.items() if url}
    return found


def listeners_of(value: Any) -> tuple[Listener, ...]:
    """Decode listeners of a node; invalid ones are omitted."""
    if not isinstance(value, dict):
        return ()
    return tuple(
        Listener(name, str(urls.get("brokerServiceUrl") or ""), str(urls.get("brokerServiceUrlTls") or ""))
        for name, urls in sorted(value.items())
        if isinstance(urls, dict)
    )
