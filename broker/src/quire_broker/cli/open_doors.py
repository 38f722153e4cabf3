"""Tells which ports of a process let in more peers than its authentication suggests. Pure, but for resolving names."""

from quire_bookie.cli.own_address import reaches_others
from quire_broker.cli.broker_settings import shares_metadata
from quire_broker.config import StandaloneConfig


def open_doors(config: StandaloneConfig) -> list[str]:
    """Warnings of a standalone's start, one for each open door."""
    found = []
    if not config.authentication_enabled and reaches_others(config.listen, "bindAddress"):
        found.append(
            f"broker and HTTP listen on {config.listen or '0.0.0.0'} without authentication: everybody who reaches "
            "their ports may read and write all topics; set authenticationEnabled, or leave --host out"
        )
    if reaches_others(config.bookie_host, "bookieBindAddress"):
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
