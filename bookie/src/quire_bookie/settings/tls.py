"""Declares the files of TLS, and how a ledger client secures its connections."""

from collections.abc import Sequence
from dataclasses import field

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ConfigError
from quire_bookie.limits import TLS_REFRESH_S

TOKEN_PLUGIN = "token"
"""The plugin name of the token authentication of Quire's bookies."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of the TLS files of one side, all PEM. Empty: none.

    `key`: the private key of `certificate`, in the same file or a separate one; `key_password`: a file with its
    password. `trust`: CA certificates that are trusted for the other side. `protocols`: of TLSv1.2 and TLSv1.3, empty:
    both. `ciphers`: OpenSSL's names, for TLSv1.2.
    """

    certificate: str = ""
    key: str = ""
    key_password: str = field(default="", repr=False)
    trust: str = ""
    protocols: Sequence[str] = ()
    ciphers: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """Every configured path."""
        return tuple(path for path in (self.certificate, self.key, self.key_password, self.trust) if path)


@dataclass(frozen=True, slots=True)
class ClientSecuritySettings:
    """TLS and authentication settings of connections to bookies. The default is plaintext without authentication.

    `tls`: files for TLS; None for plaintext. `token`, or the content of the file `token_path`, which is read for each
    connection, is sent under the plugin name `plugin`; both empty: no authentication.
    """

    tls: TlsFiles | None = None
    check_host_name: bool = True
    refresh_s: float = TLS_REFRESH_S
    token: str = field(default="", repr=False)
    token_path: str = ""
    plugin: str = TOKEN_PLUGIN

    def __post_init__(self) -> None:
        """Raise ConfigError for contradicting settings."""
        if self.token and self.token_path:
            raise ConfigError("ledger client: token and token_path are both set; set only one of them")
