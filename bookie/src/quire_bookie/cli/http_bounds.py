"""Maps the settings of an HTTP port to the bounds of its connections. Pure."""

from quire_bookie.admin.http_limits import HttpLimits
from quire_bookie.config.http_server import HttpAccessConfig


def http_limits(config: HttpAccessConfig) -> HttpLimits:
    """Map the configured bounds."""
    return HttpLimits(config.http_header_timeout_ms / 1000, config.http_connections_per_address)
