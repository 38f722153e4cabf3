"""Loads a client's credentials for etcd: certificates from files that may change, and user and password.

Invalid files never replace valid ones: the valid ones stay in use, and an error is logged. Never logs a key or a
password.
"""

import asyncio
import logging
from functools import partial
from pathlib import Path

import grpc

from quire_bookie.env.clock import SystemClock
from quire_bookie.env.secret_file import read_secret
from quire_bookie.env.tls import TlsContext, client_context
from quire_bookie.errors import ConfigError, MetadataUnavailableError
from quire_bookie.settings.metadata import MetadataSettings
from quire_bookie.settings.tls import TlsFiles

_log = logging.getLogger("quire.metadata.etcd")
_FILE = "file:"


class EtcdCertificates:
    """Tracks the certificate files of a client. gRPC reads them once per channel, so a change needs new channels."""

    def __init__(self, settings: MetadataSettings) -> None:
        self._files = TlsFiles(settings.cert_path or "", settings.key_path or "", trust=settings.ca_path or "")
        # It checks the files as OpenSSL will, records their stamps, and reports when the certificate expires.
        self._context = TlsContext(
            self._files, partial(client_context, check_host_name=True), settings.tls_refresh_s, SystemClock()
        )

    async def open(self) -> grpc.ChannelCredentials:
        """Load the credentials of the first channels. ConfigError names the file that cannot be used, and why."""
        await self._context.open()
        return await asyncio.to_thread(self._read)

    async def changed(self) -> grpc.ChannelCredentials | None:
        """Return the credentials of new channels if the files have changed since the last call and are valid."""
        found: grpc.ChannelCredentials | None = None
        failures = self._context.stats.load_failures
        try:
            # Repeat until the files are stable: a certificate with another one's key would lock us out.
            while await self._context.refresh():
                found = await asyncio.to_thread(self._read)
        except ConfigError as error:
            _log.error("new certificates for etcd are invalid, the previous ones stay in use: %s", error)
            return None
        return found if self._context.stats.load_failures == failures else None

    def _read(self) -> grpc.ChannelCredentials:
        def read(path: str) -> bytes | None:
            try:
                return Path(path).read_bytes() if path else None
            except OSError as error:
                raise ConfigError(f"metadata TLS file {path} cannot be read: {error.strerror}") from error

        return grpc.ssl_channel_credentials(
            root_certificates=read(self._files.trust),
            private_key=read(self._files.key),
            certificate_chain=read(self._files.certificate),
        )


async def user_and_password(settings: MetadataSettings) -> tuple[str, str]:
    """Return the present user and password. MetadataUnavailableError if a file with one of them cannot be read."""
    return await _secret(settings.username or ""), await _secret(settings.password or "")


async def _secret(value: str) -> str:
    if not value.startswith(_FILE):
        return value
    path = value.removeprefix(_FILE)
    path = path.removeprefix("//") if path.startswith("//") else path
    try:
        return (await read_secret(path)).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise MetadataUnavailableError(f"user or password for etcd: {path} cannot be read: {reason}") from error
