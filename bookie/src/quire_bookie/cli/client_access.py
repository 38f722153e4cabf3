"""Reads the credentials and trusted certificates of command-line clients from the environment, never from flags.

    QUIRE_TOKEN             a token, or file:///path of a file that contains one
    QUIRE_USER              a user, for servers that take passwords instead
    QUIRE_PASSWORD          its password, or file:///path of a file that contains it
    QUIRE_TLS_TRUST_CERTS   trusted CA certificates, PEM; unset: those that the system trusts
    QUIRE_TLS_CERTIFICATE   our certificate and its chain, PEM, if a server requires one
    QUIRE_TLS_KEY           its private key, PEM; unset: it is in the same file

Other users of a machine can read the flags of a command.
"""

import base64
import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ConfigError

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True, slots=True)
class ClientAccess:
    """Holds the credentials of a command-line client. Empty fields: none."""

    token: str = field(default="", repr=False)
    user: str = ""
    password: str = field(default="", repr=False)
    trust: str = ""
    certificate: str = ""
    key: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """Headers of each HTTP request."""
        if self.user:
            return {"Authorization": f"Basic {base64.b64encode(self.shown[1].encode()).decode()}"}
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    @property
    def shown(self) -> tuple[str, str]:
        """Method and credentials for a CONNECT of Pulsar's protocol; empty: none."""
        if self.user:
            return "basic", f"{self.user}:{self.password}"
        return ("token", self.token) if self.token else ("", "")

    def context(self) -> "ssl.SSLContext":
        """Build the TLS context. ConfigError names the file that cannot be used."""
        from quire_bookie.env.tls import client_context
        from quire_bookie.settings.tls import TlsFiles  # slow to import, and few commands need it

        files = TlsFiles(self.certificate, self.key or self.certificate, trust=self.trust)
        return client_context(files, check_host_name=True)


def client_access(environment: Mapping[str, str] = os.environ) -> ClientAccess:
    """Read the environment. ConfigError if a file cannot be read, or the credentials contradict each other."""
    token, user = _secret(environment, "QUIRE_TOKEN").strip(), environment.get("QUIRE_USER", "")
    password = _secret(environment, "QUIRE_PASSWORD")
    if bool(user) != bool(password):
        raise ConfigError("QUIRE_USER and QUIRE_PASSWORD: give both or neither")
    if user and token:
        raise ConfigError(
            "QUIRE_TOKEN and QUIRE_USER are both set, in the environment or by the profile: give one of them"
        )
    if ":" in user:
        raise ConfigError(f"QUIRE_USER {user!r}: a user has no colon, which separates it from its password")
    return ClientAccess(
        token,
        user,
        password,
        environment.get("QUIRE_TLS_TRUST_CERTS", ""),
        environment.get("QUIRE_TLS_CERTIFICATE", ""),
        environment.get("QUIRE_TLS_KEY", ""),
    )


def _secret(environment: Mapping[str, str], variable: str) -> str:
    """Return a secret itself, or that of its file without the end of the line. ConfigError names the file."""
    given = environment.get(variable, "")
    if not given.startswith("file:"):
        return given
    from quire_bookie.tokens.key_urls import file_path

    path = file_path(given)
    try:
        return Path(path).read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{variable}: the file {path} cannot be read") from error
