"""Fits the connection limits of bookies and HTTP ports to the process's limit of open files. Starts nothing."""

from dataclasses import replace
from typing import TYPE_CHECKING

from quire_bookie.env.open_files import Shares, at_most, open_files_max
from quire_bookie.server.settings import BookieSettings

if TYPE_CHECKING:
    from quire_bookie.admin.access import AdminAccess
    from quire_bookie.settings.http import HttpLimits


def fit_bookie(settings: BookieSettings) -> BookieSettings:
    """Limit connections to the clients' share of open files."""
    wanted = settings.security.limits
    fitted = replace(wanted, connections_max=at_most(wanted.connections_max, Shares.of(open_files_max()).clients))
    return replace(settings, security=replace(settings.security, limits=fitted))


def fit_http(bounds: "HttpLimits") -> "HttpLimits":
    """Limit connections to the HTTP share of open files, and one address to half of them."""
    share = Shares.of(open_files_max()).http
    per_address = at_most(bounds.connections_per_address_max, max(1, share // 2))
    return replace(
        bounds, connections_per_address_max=per_address, connections_max=at_most(bounds.connections_max, share)
    )


def fit_access(access: "AdminAccess") -> "AdminAccess":
    """Return the access rules with fitted bounds."""
    return replace(access, bounds=fit_http(access.bounds))
