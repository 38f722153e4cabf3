"""What our command-line clients show to servers, and whom they trust: out of the environment, never out of flags.

    QUIRE_TOKEN             a token, or file:///path of a file with one
    QUIRE_TLS_TRUST_CERTS   certificates that a server's must lead to, PEM; unset: what the system trusts
    QUIRE_TLS_CERTIFICATE   our certificate and its chain, PEM, where a server asks for one
    QUIRE_TLS_KEY           its private key, PEM; unset: it is in the same file

Other users of a machine can read the flags of commands.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from quire_bookie.errors import ConfigError

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True, slots=True)
class ClientAccess:
    """Empty: there is none."""

    token: str = field(default="", repr=False)
    trust: str = ""
    certificate: str = ""
    key: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """For HTTP."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def context(self) -> "ssl.SSLContext":
        """For TLS. ConfigError names the file that cannot be used."""
        from quire_bookie.env.tls import TlsFiles, client_context  # slow to load, and few commands need it

        files = TlsFiles(self.certificate, self.key or self.certificate, trust=self.trust)
        return client_context(files, check_host_name=True)


def client_access(environment: Mapping[str, str] = os.environ) -> ClientAccess:
    """As the environment says. ConfigError: the file with the token cannot be read."""
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
