"""Fits the limits of connections of bookies and HTTP ports to the files that the process may open. Starts nothing."""

from dataclasses import replace
from typing import TYPE_CHECKING

from quire_bookie.env.open_files import Shares, at_most, open_files_max
from quire_bookie.server.settings import BookieSettings

if TYPE_CHECKING:
    from quire_bookie.admin.access import AdminAccess
    from quire_bookie.admin.http_limits import HttpLimits


def fit_bookie(settings: BookieSettings) -> BookieSettings:
    """The settings with no more connections than the share of clients."""
    wanted = settings.security.limits
    fitted = replace(wanted, connections_max=at_most(wanted.connections_max, Shares.of(open_files_max()).clients))
    return replace(settings, security=replace(settings.security, limits=fitted))


def fit_http(bounds: "HttpLimits") -> "HttpLimits":
    """The bounds with no more connections than the share of HTTP; one address takes half of them at most."""
    share = Shares.of(open_files_max()).http
    per_address = at_most(bounds.connections_per_address_max, max(1, share // 2))
    return replace(
        bounds, connections_per_address_max=per_address, connections_max=at_most(bounds.connections_max, share)
    )


def fit_access(access: "AdminAccess") -> "AdminAccess":
    """The rules of an HTTP port with bounds that fit."""
    return replace(access, bounds=fit_http(access.bounds))
