"""Declares the settings of the connection to the metadata store."""

from dataclasses import field

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ConfigError
from quire_bookie.limits import (
    METADATA_CONNECT_TIMEOUT_S,
    METADATA_OPERATION_TIMEOUT_S,
    METADATA_SESSION_TIMEOUT_S,
    TLS_REFRESH_S,
)


@dataclass(frozen=True, slots=True)
class MetadataSettings:
    """Settings of the connection to a metadata store.

    Certificates are paths of PEM files; one of them, or an https endpoint, turns on TLS. User and password are literal
    values, or `file:///path` of a file that is read at each login.
    """

    session_timeout_s: float = METADATA_SESSION_TIMEOUT_S
    operation_timeout_s: float = METADATA_OPERATION_TIMEOUT_S
    connect_timeout_s: float = METADATA_CONNECT_TIMEOUT_S
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_path: str | None = None
    cert_path: str | None = None
    key_path: str | None = None
    tls_refresh_s: float = TLS_REFRESH_S
    members_refresh_s: float = 0.0
    """Time between reads of etcd's list of members, whose addresses are then used too; 0: never."""

    def __post_init__(self) -> None:
        """Check the settings that depend on each other. ConfigError."""
        if self.session_timeout_s < 1:
            raise ConfigError(f"metadata session timeout of {self.session_timeout_s} s: give 1 s or more, for etcd")
        for name in ("operation_timeout_s", "connect_timeout_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"metadata {name} of {getattr(self, name)} s: give more than 0 s")
        if (self.username is None) != (self.password is None):
            raise ConfigError("metadata user and password: give both or neither")
        if (self.cert_path is None) != (self.key_path is None):
            raise ConfigError("metadata TLS certificate and key: give both or neither")
