"""Tells which ports of a process let in more peers than its authentication suggests. Pure, but for resolving names."""

from quire_bookie.cli.own_address import reaches_others
from quire_bookie.config.client_security import TOKEN_PLUGINS
from quire_bookie.errors import ConfigError
from quire_broker.cli.broker_settings import shares_metadata
from quire_broker.config.broker import BrokerConfig, StandaloneConfig


def unproved_towards_bookies(config: BrokerConfig) -> str | None:
    """The warning of a broker with authentication that reaches bookies without any; None: it has no need of one."""
    proves = config.bookkeeper_tls_client_authentication or config.bookkeeper_auth_plugin in TOKEN_PLUGINS
    if not config.authentication_enabled or proves:
        return None
    return (
        "authenticationEnabled is on, but bookies are reached without a certificate or token: who reaches a bookie's "
        "port reads every topic around the broker; have bookies ask for tokens or certificates, and set "
        "bookkeeperClientAuthenticationPlugin or bookkeeperTLSClientAuthentication"
    )


def open_doors(config: StandaloneConfig) -> list[str]:
    """Warnings of a standalone's start, one for each open door. ConfigError for one that may not be open."""
    found = []
    bookies_open = reaches_others(config.bookie_host, "bookieBindAddress")
    if bookies_open and config.authentication_enabled:
        raise ConfigError(
            f"--bookie-host (bookieBindAddress) {config.bookie_host}: the bookies of a standalone take every "
            "connection, which leads around authenticationEnabled; leave it at 127.0.0.1, or run bookies apart"
        )
    if not config.authentication_enabled and reaches_others(config.listen, "bindAddress"):
        found.append(
            f"broker and HTTP listen on {config.listen or '0.0.0.0'} without authentication: everybody who reaches "
            "their ports may read and write all topics; set authenticationEnabled, or leave --host out"
        )
    if bookies_open:
        found.append(
            f"the bookies listen on {config.bookie_host or '0.0.0.0'} and take every connection: everybody who reaches "
            "their ports may read all entries; leave --bookie-host out, or run bookies by themselves, with tokens"
        )
    elif shares_metadata(config):
        found.append(
            f"the bookies listen on {config.bookie_host}, and others find them in the metadata by that address: "
            "only processes of this machine reach them; give --bookie-host when others must"
        )
    return found
