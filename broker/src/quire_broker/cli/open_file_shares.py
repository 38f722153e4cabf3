"""Limits the connections of a broker, a proxy and a standalone to the files that the process may open."""

from dataclasses import replace

from quire_bookie.cli.open_file_shares import fit_http
from quire_bookie.env.open_files import Shares, at_most, open_files_max
from quire_broker.proxy.proxy import ProxySettings
from quire_broker.server.broker import BrokerSettings
from quire_broker.standalone import StandaloneSettings


def fit_broker(settings: BrokerSettings, of_bookies: int = 0) -> BrokerSettings:
    """Return the settings with at most the clients' share of connections, less those `of_bookies`."""
    clients = max(1, Shares.of(open_files_max()).clients - of_bookies)
    return replace(
        settings,
        clients=replace(settings.clients, connections_max=at_most(settings.clients.connections_max, clients)),
        access=replace(settings.access, http=fit_http(settings.access.http)),
    )


def fit_proxy(settings: ProxySettings) -> ProxySettings:
    """Return the settings with at most half of the clients' share of connections: each has one to a broker."""
    clients = max(1, Shares.of(open_files_max()).clients // 2)
    return replace(
        settings,
        limits=replace(settings.limits, connections_max=at_most(settings.limits.connections_max, clients)),
        access=replace(settings.access, http=fit_http(settings.access.http)),
    )


def fit_standalone(settings: StandaloneSettings) -> StandaloneSettings:
    """Do the same for all parts; the bookies together take a quarter of the clients' share."""
    of_bookies = Shares.of(open_files_max()).clients // 4
    return replace(
        settings,
        bookie_connections_max=max(1, of_bookies // settings.bookies),
        broker=fit_broker(settings.broker, of_bookies),
    )
