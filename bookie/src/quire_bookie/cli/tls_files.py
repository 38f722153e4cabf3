"""Resolves the configured paths of TLS files. Pure: opens none; imports no server code, because clients use it too."""

from os.path import abspath

from quire_bookie.config.bookie_security import BookieSecurityConfig
from quire_bookie.env.tls import TlsFiles


def path_of(value: str) -> str:
    """Return the absolute path, or "" if unset."""
    return abspath(value) if value else ""


def bookie_tls_files(config: BookieSecurityConfig) -> TlsFiles:
    """Return the files of a bookie's certificate, key and trusted certificates."""
    return TlsFiles(
        certificate=path_of(config.tls_certificate_path),
        key=path_of(config.tls_key_store),
        key_password=path_of(config.tls_key_store_password_path),
        trust=path_of(config.tls_trust_store),
        protocols=tuple(config.tls_enabled_protocols),
        ciphers=config.tls_enabled_cipher_suites,
    )
