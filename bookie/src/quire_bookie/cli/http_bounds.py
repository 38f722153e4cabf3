"""Maps what a person configured about connections of an HTTP port. Pure."""

from quire_bookie.admin.http_limits import HttpLimits
from quire_bookie.config.http_server import HttpAccessConfig


def http_limits(config: HttpAccessConfig) -> HttpLimits:
    """What one client may hold open."""
    return HttpLimits(config.http_header_timeout_ms / 1000, config.http_connections_per_address)
