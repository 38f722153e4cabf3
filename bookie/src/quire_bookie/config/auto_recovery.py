"""Defines the settings of auto-recovery, under BookKeeper's key names if it has one."""

from pydantic import Field

from quire_bookie import limits
from quire_bookie.config.client_security import ClientSecurityConfig
from quire_bookie.config.http_server import HttpServerConfig
from quire_bookie.config.ledger_client import LedgerClientConfig
from quire_bookie.config.metadata_access import MetadataAccessConfig
from quire_bookie.config.recovery import AutoRecoveryConfig
from quire_bookie.config.roles import RolesConfig


class AutoRecoveryProcessConfig(
    RolesConfig, HttpServerConfig, MetadataAccessConfig, ClientSecurityConfig, LedgerClientConfig, AutoRecoveryConfig
):
    """Settings of `quire autorecovery`."""

    metadata: str = Field(
        "", alias="metadataServiceUri", description="etcd://host:port,host:port: the cluster's metadata store"
    )
    name: str = Field(
        "", alias="autoRecoveryName", description="name of this process in locks and elections; default: host name"
    )
    listen: str = Field("0.0.0.0", alias="listeningAddress", description="address of the HTTP port")
    http_port: int = Field(
        -1, alias="httpServerPort", ge=-1, le=65535, description="health, metrics and admin; -1 turns it off"
    )
    metadata_session_timeout_ms: int = Field(
        int(limits.METADATA_SESSION_TIMEOUT_S * 1000),
        alias="zkTimeout",
        ge=1000,
        description="lease of locks and election in the metadata store, in ms",
    )
