"""Settings that secure a broker's ports. Values only; the configuration refuses contradictions."""

from dataclasses import field
from enum import Enum, auto

from quire_bookie import limits as bookie_limits
from quire_bookie.dataclass import dataclass
from quire_bookie.settings.declared import MILLISECONDS, setting
from quire_bookie.settings.http import HttpLimits
from quire_bookie.settings.tls import TlsFiles
from quire_bookie.settings.tokens import TokenSettings
from quire_broker import limits


class ClientCertificates(Enum):
    """Whether clients are asked for certificates. A presented certificate must always be trusted."""

    NONE = auto()
    TAKEN = auto()
    REQUIRED = auto()


@dataclass(frozen=True, slots=True)
class ServerTlsSettings:
    """Certificates of the TLS ports; the files are checked every `refresh_s`, 0: never again."""

    files: TlsFiles
    client_certificates: ClientCertificates = ClientCertificates.NONE
    refresh_s: float = bookie_limits.TLS_REFRESH_S


@dataclass(frozen=True, slots=True)
class PeerTlsSettings:
    """How this broker verifies the certificates of other brokers. Its files name no certificate of its own."""

    files: TlsFiles = field(default_factory=TlsFiles)
    refresh_s: float = bookie_limits.TLS_REFRESH_S


class ProviderKind(Enum):
    """The kinds of providers that need more than the connection's certificate."""

    TOKEN = auto()
    BASIC = auto()
    OPEN_ID = auto()


@dataclass(frozen=True, slots=True)
class OpenIdSettings:
    """Trusted issuers of tokens, and the claims that their tokens must hold. `trust_path` empty: the system's."""

    issuers: tuple[str, ...] = ()
    audiences: frozenset[str] = frozenset()
    trust_path: str = ""
    role_claim: str = setting(
        "sub",
        "openIDRoleClaim",
        "claim of a token that names the role; of a list the first one",
        short="open_id_role_claim",
        min_length=1,
    )
    leeway_s: float = setting(
        0.0,
        "openIDAcceptedTimeLeewaySeconds",
        "how far the clock of an issuer may differ, in s",
        short="open_id_leeway_s",
        kind=int,
        ge=0,
        le=3600,
    )
    issuers_max: int = setting(
        5, "openIDCacheSize", "issuers whose keys are kept in memory", short="open_id_cache_size", ge=1, le=100
    )
    refresh_s: float = setting(
        limits.ISSUER_REFRESH_S,
        "openIDCacheRefreshAfterWriteSeconds",
        "the keys of an issuer are read again after this time, in s; the former are used meanwhile",
        short="open_id_refresh_s",
        kind=int,
        ge=1,
    )
    expiry_s: float = setting(
        limits.ISSUER_EXPIRY_S,
        "openIDCacheExpirationSeconds",
        "keys that could not be read again for this time are dropped, in s",
        short="open_id_expiry_s",
        kind=int,
        ge=1,
    )
    connect_s: float = setting(
        limits.ISSUER_CONNECT_S,
        "openIDHttpConnectionTimeoutMillis",
        "time to connect to an issuer, in ms",
        short="open_id_connect_ms",
        unit=MILLISECONDS,
        ge=1,
        le=60_000,
    )
    read_s: float = setting(
        limits.ISSUER_READ_S,
        "openIDHttpReadTimeoutMillis",
        "time in which an issuer must send something, in ms",
        short="open_id_read_ms",
        unit=MILLISECONDS,
        ge=1,
        le=60_000,
    )
    unknown_key_s: float = setting(
        limits.ISSUER_UNKNOWN_KEY_S,
        "openIDKeyIdCacheMissRefreshSeconds",
        "a token with an unknown key causes another read of its issuer's keys after this time, in s",
        short="open_id_unknown_key_s",
        kind=int,
        ge=1,
    )
    https_only: bool = setting(
        True, "openIDRequireIssuersUseHttps", "refuse issuers and keys without https://", short="open_id_https"
    )
    tls_refresh_s: float = bookie_limits.TLS_REFRESH_S


@dataclass(frozen=True, slots=True)
class AuthenticationSettings:
    """How clients authenticate. `certificates`: the CN of a trusted certificate is a role.

    `passwords`: an htpasswd file, named as a key is. `order`: the kinds of providers, as they are asked.
    `anonymous_role`: the role of clients without credentials; empty: they are refused. `authenticate_original`: a proxy
    must pass on the credentials of its client, which are checked too.
    """

    token: TokenSettings | None = None
    certificates: bool = False
    anonymous_role: str = ""
    passwords: str = field(default="", repr=False)
    open_id: OpenIdSettings | None = None
    order: tuple[ProviderKind, ...] = tuple(ProviderKind)
    authenticate_original: bool = False
    check_interval_s: float = limits.CREDENTIALS_CHECK_S


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """All security settings. Without `authentication` every client of the Pulsar port may do everything.

    `audit`: write a line for each admin request that may change something. `admin_remote`: the admin REST then also
    serves other machines. `allowed_hosts`: names under which REST accepts requests that a browser could send without a
    token; see `quire_bookie.admin.origin`.
    """

    tls: ServerTlsSettings | None = None
    authentication: AuthenticationSettings | None = None
    authorization: bool = False
    super_users: frozenset[str] = field(default_factory=frozenset)
    proxy_roles: frozenset[str] = field(default_factory=frozenset)
    permissions_check_s: float = limits.PERMISSIONS_CHECK_S
    audit: bool = True
    admin_remote: bool = False
    allowed_hosts: tuple[str, ...] = ()
    http: HttpLimits = field(default_factory=HttpLimits)
    peers: PeerTlsSettings = field(default_factory=PeerTlsSettings)

    @property
    def browsers_come_in(self) -> bool:
        """Whether a client may have a role, or all rights, without presenting a token."""
        wanted = self.authentication
        return wanted is None or wanted.certificates or bool(wanted.anonymous_role)
