"""Declares the limits of connections to an HTTP port."""

from quire_bookie import limits
from quire_bookie.dataclass import dataclass
from quire_bookie.settings.declared import MILLISECONDS, setting


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits; 0: no limit."""

    header_timeout_s: float = setting(
        limits.HTTP_HEADER_TIMEOUT_S,
        "httpServerHeaderTimeoutMs",
        "an HTTP connection without a complete request header after this time is closed, in ms; 0: never",
        short="http_header_timeout_ms",
        unit=MILLISECONDS,
        ge=0,
    )
    connections_per_address_max: int = setting(
        limits.HTTP_CONNECTIONS_PER_ADDRESS_MAX,
        "httpServerMaxConnectionsPerAddress",
        "HTTP connections at once of one client address; 0: no limit",
        short="http_connections_per_address",
        ge=0,
    )
    connections_max: int = 0
    """Connections of all addresses."""
