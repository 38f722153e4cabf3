"""Limits of one client's connections on an HTTP port. Separate from `bounded_http`, which imports the HTTP library."""

from dataclasses import dataclass

from quire_bookie import limits


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits; 0: no limit."""

    header_timeout_s: float = limits.HTTP_HEADER_TIMEOUT_S
    connections_per_address_max: int = limits.HTTP_CONNECTIONS_PER_ADDRESS_MAX
    connections_max: int = 0
    """Connections of all addresses."""
