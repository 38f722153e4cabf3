"""Finds ports of a process that admit more peers than its authentication suggests. Only resolves names."""

from quire_bookie.cli.own_address import reaches_others
from quire_bookie.config.client_security import TOKEN_PLUGINS
from quire_bookie.errors import ConfigError
from quire_broker.cli.broker_settings import shares_metadata
from quire_broker.config.broker import BrokerConfig, StandaloneConfig


def missing_bookie_credentials(config: BrokerConfig) -> str | None:
    """Return a warning for a broker with authentication that reaches bookies without any; None if there is none."""
    proves = config.bookkeeper_tls_client_authentication or config.bookkeeper_auth_plugin in TOKEN_PLUGINS
    if not config.authentication_enabled or proves:
        return None
    return (
        "authenticationEnabled is on, but bookies are reached without a certificate or token: clients that reach a "
        "bookie's port can read every topic; require tokens or certificates on bookies, and set "
        "bookkeeperClientAuthenticationPlugin or bookkeeperTLSClientAuthentication"
    )


def open_port_warnings(config: StandaloneConfig) -> list[str]:
    """Return a warning for each open port of a standalone. ConfigError for a port that must not be open."""
    found = []
    bookies_open = reaches_others(config.bookie_host, "bookieBindAddress")
    if bookies_open and config.authentication_enabled:
        raise ConfigError(
            f"--bookie-host (bookieBindAddress) {config.bookie_host}: the bookies of a standalone accept every "
            "connection, which bypasses authenticationEnabled; leave it at 127.0.0.1, or run separate bookies"
        )
    if not config.authentication_enabled and reaches_others(config.listen, "bindAddress"):
        found.append(
            f"broker and HTTP listen on {config.listen or '0.0.0.0'} without authentication: every client that reaches "
            "their ports may read and write all topics; set authenticationEnabled, or omit --host"
        )
    if bookies_open:
        found.append(
            f"the bookies listen on {config.bookie_host or '0.0.0.0'} and accept every connection: every client that "
            "reaches their ports may read all entries; omit --bookie-host, or run separate bookies with tokens"
        )
    elif shares_metadata(config):
        found.append(
            f"the bookies listen on {config.bookie_host}, which is also their address in the metadata: "
            "only processes of this machine reach them; give --bookie-host if other machines must"
        )
    return found
