"""Declares the settings of a bookie for TLS, authentication and limits on connections."""

from collections.abc import Sequence
from dataclasses import field
from enum import Enum

from quire_bookie import limits
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ConfigError
from quire_bookie.settings.declared import MILLISECONDS, setting
from quire_bookie.settings.tls import TlsFiles
from quire_bookie.settings.tokens import TokenSettings


class AuthKind(Enum):
    """The method by which clients authenticate."""

    NONE = "none"
    CERTIFICATE_ROLES = "certificate roles"
    TOKEN = "token"


@dataclass(frozen=True, slots=True)
class ServerTlsSettings:
    """TLS on the bookie's port. `required`: only START_TLS is answered in plaintext."""

    files: TlsFiles
    client_certificates: bool = False
    required: bool = False
    refresh_s: float = limits.TLS_REFRESH_S


@dataclass(frozen=True, slots=True)
class ConnectionLimitSettings:
    """Bounds on connections. 0 removes a bound, except those of the frame size and the handshake timeout."""

    connections_max: int = setting(
        limits.CONNECTIONS_MAX, "maxConnections", "connections at once; 0: no limit", short="max_connections", ge=0
    )
    connections_per_address_max: int = setting(
        limits.CONNECTIONS_PER_ADDRESS_MAX,
        "maxConnectionsPerAddress",
        "connections at once of one client address; 0: no limit",
        short="max_connections_per_address",
        ge=0,
    )
    unauthenticated_s: float = setting(
        limits.UNAUTHENTICATED_S,
        "unauthenticatedTimeoutMs",
        "time after which an unauthenticated connection is closed, in ms; 0: never",
        short="unauthenticated_timeout_ms",
        unit=MILLISECONDS,
        ge=0,
    )
    unauthenticated_frame_bytes_max: int = setting(
        limits.UNAUTHENTICATED_FRAME_BYTES_MAX,
        "unauthenticatedMaxFrameSizeBytes",
        "largest frame before authentication, in bytes",
        short="unauthenticated_frame_bytes",
        ge=1024,
    )
    handshake_timeout_s: float = setting(
        limits.TLS_HANDSHAKE_TIMEOUT_S,
        "tlsHandshakeTimeoutMs",
        "time limit of a TLS handshake, in ms",
        short="tls_handshake_timeout_ms",
        unit=MILLISECONDS,
        ge=100,
    )

    def __post_init__(self) -> None:
        """Raise ConfigError for values that cannot work."""
        for name in self.__slots__:
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must not be negative")
        if not self.unauthenticated_frame_bytes_max or not self.handshake_timeout_s:
            raise ConfigError("the bounds of unauthenticated frames and of the TLS handshake must be above 0")


@dataclass(frozen=True, slots=True)
class RoleSettings:
    """How clients authenticate a role. `authorized` empty: every role (not allowed for certificate roles)."""

    kind: AuthKind = AuthKind.NONE
    authorized: Sequence[str] = ()
    token: TokenSettings | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for settings that contradict each other."""
        if self.kind is AuthKind.CERTIFICATE_ROLES and not (self.authorized and all(self.authorized)):
            raise ConfigError("roles from certificates need authorizedRoles: the roles that may connect")
        if self.kind is AuthKind.TOKEN and self.token is None:
            raise ConfigError("token authentication needs a key")


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """All settings that control who may connect."""

    tls: ServerTlsSettings | None = None
    roles: RoleSettings = field(default_factory=RoleSettings)
    limits: ConnectionLimitSettings = field(default_factory=ConnectionLimitSettings)

    def __post_init__(self) -> None:
        """Raise ConfigError for settings that contradict each other."""
        if self.roles.kind is AuthKind.CERTIFICATE_ROLES and (self.tls is None or not self.tls.client_certificates):
            raise ConfigError("roles from certificates need TLS with tlsClientAuthentication=true")
