"""Reads the credentials and trusted certificates of command-line clients from the environment, never from flags.

    QUIRE_TOKEN             a token, or file:///path of a file that contains one
    QUIRE_TLS_TRUST_CERTS   trusted CA certificates, PEM; unset: those that the system trusts
    QUIRE_TLS_CERTIFICATE   our certificate and its chain, PEM, if a server requires one
    QUIRE_TLS_KEY           its private key, PEM; unset: it is in the same file

Other users of a machine can read the flags of a command.
"""

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
    trust: str = ""
    certificate: str = ""
    key: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """Headers of each HTTP request."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def context(self) -> "ssl.SSLContext":
        """Build the TLS context. ConfigError names the file that cannot be used."""
        from quire_bookie.env.tls import client_context
        from quire_bookie.settings.tls import TlsFiles  # slow to import, and few commands need it

        files = TlsFiles(self.certificate, self.key or self.certificate, trust=self.trust)
        return client_context(files, check_host_name=True)


def client_access(environment: Mapping[str, str] = os.environ) -> ClientAccess:
    """Read the environment. ConfigError if the file with the token cannot be read."""
    token = environment.get("QUIRE_TOKEN", "")
    if token.startswith("file:"):
        from quire_bookie.tokens.key_urls import file_path

        path = file_path(token)
        try:
            token = Path(path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"QUIRE_TOKEN: the file {path} cannot be read") from error
    return ClientAccess(
        token.strip(),
        environment.get("QUIRE_TLS_TRUST_CERTS", ""),
        environment.get("QUIRE_TLS_CERTIFICATE", ""),
        environment.get("QUIRE_TLS_KEY", ""),
    )
