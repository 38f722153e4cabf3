"""Resolves the configured paths of TLS files. Pure: opens none; imports no server code, because clients use it too."""

from quire_bookie.config.bookie_security import BookieSecurityConfig
from quire_bookie.settings.declared import absolute
from quire_bookie.settings.tls import TlsFiles


def bookie_tls_files(config: BookieSecurityConfig) -> TlsFiles:
    """Return the files of a bookie's certificate, key and trusted certificates."""
    return TlsFiles(
        certificate=absolute(config.tls_certificate_path),
        key=absolute(config.tls_key_store),
        key_password=absolute(config.tls_key_store_password_path),
        trust=absolute(config.tls_trust_store),
        protocols=tuple(config.tls_enabled_protocols),
        ciphers=config.tls_enabled_cipher_suites,
    )
