"""Builds TLS contexts from PEM files, and again when the files change. Owns all access to these files.

Never replaces a valid context by an invalid one: after unusable files or an expired certificate, the previous context
stays in use, with a log line and a count. Never logs a key or a password.

Loading takes some milliseconds for file reads and key arithmetic, so it runs in a thread.
"""

import asyncio
import logging
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from quire_bookie.control_characters import is_role
from quire_bookie.dataclass import dataclass
from quire_bookie.env.clock import WallClock
from quire_bookie.errors import ConfigError
from quire_bookie.settings.tls import TlsFiles

_log = logging.getLogger("quire.tls")

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CONVERT = {
    b"\xfe\xed\xfe\xed": "a Java key store (JKS); convert it: keytool -importkeystore -srckeystore {0} -destkeystore "
    "{0}.p12 -deststoretype PKCS12, then openssl pkcs12 -in {0}.p12 -nodes -out {0}.pem",
    b"\x30\x82": "binary (PKCS12 or DER), not PEM; convert it: openssl pkcs12 -in {0} -nodes -out {0}.pem",
}

Stamp = tuple[tuple[int, int, int], ...]


def server_context(files: TlsFiles, *, client_certificates: bool, optional: bool = False) -> ssl.SSLContext:
    """Return the context of a server; `client_certificates`: accept only clients whose certificate `trust` verifies.

    `optional`: also clients without a certificate. ConfigError names the file that cannot be used, and why.
    """
    if not files.certificate or not files.key:
        raise ConfigError("TLS needs a certificate (tlsCertificatePath) and its private key (tlsKeyStore)")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _choose_versions(context, files)
    # A resumed session would outlive the trust in its certificate. A new handshake on an existing connection costs us
    # more than the client.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    _load_own_certificate(context, files)
    if client_certificates:
        if not files.trust:
            raise ConfigError("tlsClientAuthentication needs the certificates to trust (tlsTrustStore)")
        _load_trust(context, files.trust)
        context.verify_mode = ssl.CERT_OPTIONAL if optional else ssl.CERT_REQUIRED
    return context


def client_context(files: TlsFiles, *, check_host_name: bool) -> ssl.SSLContext:
    """Return the context of a client, with its certificate if there is one. ConfigError.

    Without `trust`, the system's trusted certificates are used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = check_host_name
    _choose_versions(context, files)
    if files.trust:
        _load_trust(context, files.trust)
    else:
        context.load_default_certs()
    if files.certificate:
        _load_own_certificate(context, files)
    return context


def certificate_end_ms(path: str) -> int:
    """Return when the first certificate of a PEM file expires, in ms since the epoch. ConfigError."""
    from cryptography import x509  # slow to import, and few callers need it

    try:
        certificate = x509.load_pem_x509_certificate(_read(path))
    except ValueError as error:
        raise ConfigError(f"{path}: contains no certificate in PEM format") from error
    return int(certificate.not_valid_after_utc.timestamp() * 1000)


def _choose_versions(context: ssl.SSLContext, files: TlsFiles) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.protocols:
        unknown = [name for name in files.protocols if name not in _VERSIONS]
        if unknown:
            raise ConfigError(f"TLS protocol {unknown[0]!r}: unknown; give one of {', '.join(_VERSIONS)}")
        context.minimum_version = min(_VERSIONS[name] for name in files.protocols)
        context.maximum_version = max(_VERSIONS[name] for name in files.protocols)
    if files.ciphers:
        try:
            context.set_ciphers(files.ciphers)
        except ssl.SSLError as error:
            raise ConfigError(
                f"TLS ciphers {files.ciphers!r}: none is known; give OpenSSL's names, e.g. "
                "ECDHE-RSA-AES256-GCM-SHA384, separated by colons"
            ) from error


def _load_own_certificate(context: ssl.SSLContext, files: TlsFiles) -> None:
    certificate, key = files.certificate, files.key or files.certificate
    password = _read(files.key_password).strip() if files.key_password else b""
    _require_pem(certificate)
    _require_pem(key)
    try:
        # Without this callback OpenSSL would ask for a password on the terminal.
        context.load_cert_chain(certificate, key, lambda: password)
    except OSError as error:
        raise ConfigError(
            f"certificate {certificate} with key {key} cannot be used: {_reason(error)}; both must be PEM, the key "
            "that of the certificate, and an encrypted key needs its password file (tlsKeyStorePasswordPath)"
        ) from error


def _load_trust(context: ssl.SSLContext, path: str) -> None:
    _require_pem(path)
    try:
        context.load_verify_locations(cafile=path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be used as trusted certificates: {_reason(error)}") from error


def _require_pem(path: str) -> None:
    """Raise ConfigError for a file that is missing or in a format that only Java reads."""
    head = _read(path)[:4]
    for magic, words in _CONVERT.items():
        if head.startswith(magic):
            raise ConfigError(f"{path} is {words.format(path)}")


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"TLS file {path} cannot be read: {error.strerror}") from error


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not valid PEM").replace("_", " ").lower()
    return error.strerror or str(error)


@dataclass(slots=True)
class TlsStats:
    """Counters of one context, for a collector. `certificate_end_ms`: since the epoch, 0: no certificate."""

    loads: int = 0
    load_failures: int = 0
    certificate_end_ms: int = 0


class TlsContext:
    """The context of one side, from the latest valid files. `refresh_s` 0: files are never read again."""

    def __init__(
        self, files: TlsFiles, make: Callable[[TlsFiles], ssl.SSLContext], refresh_s: float, clock: WallClock
    ) -> None:
        self._files = files
        self._make = make
        self._refresh_s = refresh_s
        self._clock = clock
        self._context: ssl.SSLContext | None = None
        self._stamp: Stamp = ()
        self._checked_s = 0.0
        self._checking = asyncio.Lock()
        self.stats = TlsStats()

    @property
    def newest(self) -> ssl.SSLContext:
        """The context of the latest valid files; reads nothing."""
        assert self._context is not None, "opened before it is used"
        return self._context

    @property
    def refresh_s(self) -> float:
        """Interval of checks of the files; 0: none."""
        return self._refresh_s

    async def open(self) -> None:
        """Load for the first time. ConfigError. An expired certificate is used, and logged."""
        self._stamp = await asyncio.to_thread(_stamp_of, self._files.paths)
        context, end_ms = await asyncio.to_thread(self._load)
        if end_ms and end_ms <= self._clock.now_ms():
            _log.error("the certificate %s has expired; peers will refuse it", self._files.certificate)
        self._take(context, end_ms)

    async def current(self) -> ssl.SSLContext:
        """Return the context for a new handshake. Checks the files if the last check is `refresh_s` ago."""
        assert self._context is not None, "opened before it is used"
        if self._refresh_s > 0 and asyncio.get_running_loop().time() - self._checked_s >= self._refresh_s:
            async with self._checking:
                # Another caller may have checked while this one waited for the lock.
                if asyncio.get_running_loop().time() - self._checked_s >= self._refresh_s:
                    await self.refresh()
        return self._context

    async def refresh(self) -> bool:
        """Reload if a file has changed since the last check; return whether there is a new context."""
        self._checked_s = asyncio.get_running_loop().time()
        # Read the stamp before the files: a change in between is detected by the next check.
        stamp = await asyncio.to_thread(_stamp_of, self._files.paths)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            context, end_ms = await asyncio.to_thread(self._load)
            if end_ms and end_ms <= self._clock.now_ms() < self.stats.certificate_end_ms:
                raise ConfigError(f"the certificate {self._files.certificate} has expired")
        except ConfigError as error:
            self.stats.load_failures += 1
            _log.error("new TLS files are invalid, the previous ones stay in use: %s", error)
            return False
        self._take(context, end_ms)
        return True

    def _load(self) -> tuple[ssl.SSLContext, int]:
        context = self._make(self._files)
        return context, certificate_end_ms(self._files.certificate) if self._files.certificate else 0

    def _take(self, context: ssl.SSLContext, end_ms: int) -> None:
        self._context = context
        self._checked_s = asyncio.get_running_loop().time()
        self.stats.loads += 1
        self.stats.certificate_end_ms = end_ms
        if end_ms:
            days = (end_ms - self._clock.now_ms()) // 86_400_000
            _log.info("using the certificate %s, which expires in %d days", self._files.certificate, days)


class ServedContext:
    """A context for servers that keep one permanently: each handshake still uses the context of the latest files."""

    def __init__(self, tls: TlsContext) -> None:
        self._tls = tls
        self._served: ssl.SSLContext | None = None
        self.stats = tls.stats

    @property
    def refresh_s(self) -> float:
        """Interval of checks of the files; 0: none."""
        return self._tls.refresh_s

    async def open(self) -> None:
        """Load for the first time. ConfigError."""
        await self._tls.open()
        self._served = self._tls.newest

        # OpenSSL calls it in every handshake, with or without a name, before it chooses a certificate.
        def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = self._tls.newest

        self._served.sni_callback = choose

    @property
    def context(self) -> ssl.SSLContext:
        """The context to pass to `create_server` and similar functions."""
        assert self._served is not None, "opened before it is used"
        return self._served

    async def follow(self) -> None:
        """Check the files periodically, until cancelled."""
        while True:
            await asyncio.sleep(self._tls.refresh_s)
            await self.refresh()

    async def refresh(self) -> bool:
        """Check the files now; return whether there is a new context."""
        return await self._tls.refresh()


def common_name(certificate: Mapping[str, Any] | None) -> str:
    """Return the CN of a certificate's subject, as Python's ssl module returns it; empty if it cannot be a role.

    Implementations disagree which of several CNs counts, and a long one or one with control characters is meant to
    mislead: such a certificate has no role.
    """
    names = [value for part in (certificate or {}).get("subject", ()) for name, value in part if name == "commonName"]
    if len(names) != 1 or not is_role(names[0]):
        return ""
    return str(names[0])


def _stamp_of(paths: Sequence[str]) -> Stamp:
    """Return a value that changes with the files. Links are followed: secrets are often replaced through links."""
    stamps = []
    for path in paths:
        try:
            found = os.stat(path)
            stamps.append((found.st_mtime_ns, found.st_size, found.st_ino))
        except OSError:
            stamps.append((0, 0, 0))
    return tuple(stamps)
