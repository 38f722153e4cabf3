"""Parses further addresses of a broker, by the names that clients use: `external:pulsar://host:port`. Pure.

Nodes have them in the format of stock brokers: {"external": {"brokerServiceUrl": "pulsar://..."}}.
"""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

_SCHEMES = ("pulsar", "pulsar+ssl")


@dataclass(frozen=True, slots=True)
class Listener:
    """One listener. An empty address means that it has none of that kind."""

    name: str
    native: str = ""
    native_tls: str = ""


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
