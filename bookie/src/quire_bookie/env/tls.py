"""TLS contexts out of PEM files, and anew when the files change. Owns every look at those files.

Never drops a context that works for one that does not: files that cannot be used, or a certificate that has run out,
leave the former context in place, with a line in the log and a count. Never logs a key or a password.

Loading reads files and does arithmetic on keys for some milliseconds, so it runs in a thread.
"""

import asyncio
import logging
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quire_bookie.control_characters import has_control_characters
from quire_bookie.env.clock import WallClock
from quire_bookie.errors import ConfigError
from quire_bookie.limits import ROLE_CHARACTERS_MAX

_log = logging.getLogger("quire.tls")

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CONVERT = {
    b"\xfe\xed\xfe\xed": "a Java key store (JKS); convert it: keytool -importkeystore -srckeystore {0} -destkeystore "
    "{0}.p12 -deststoretype PKCS12, then openssl pkcs12 -in {0}.p12 -nodes -out {0}.pem",
    b"\x30\x82": "binary (PKCS12 or DER), not PEM; convert it: openssl pkcs12 -in {0} -nodes -out {0}.pem",
}

Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where the parts of one side's TLS are, all PEM. Empty: there is none.

    `key`: the private key of `certificate`, in the same file or in its own; `key_password`: a file with its password.
    `trust`: certificates that the other side's must lead to. `protocols`: of TLSv1.2 and TLSv1.3, empty: both.
    `ciphers`: OpenSSL's names, for TLSv1.2.
    """

    certificate: str = ""
    key: str = ""
    key_password: str = field(default="", repr=False)
    trust: str = ""
    protocols: Sequence[str] = ()
    ciphers: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """Every file that is named."""
        return tuple(path for path in (self.certificate, self.key, self.key_password, self.trust) if path)


def server_context(files: TlsFiles, *, client_certificates: bool, optional: bool = False) -> ssl.SSLContext:
    """What a server needs to accept; `client_certificates`: only from clients whose certificate `trust` vouches for.

    `optional`: from clients without one, too. ConfigError names the file that cannot be used, and why.
    """
    if not files.certificate or not files.key:
        raise ConfigError("TLS needs a certificate (tlsCertificatePath) and its private key (tlsKeyStore)")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _choose_versions(context, files)
    # A resumed session would outlive the trust in the certificate that began it. A new handshake on an old connection
    # costs us more than the client.
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
    """What a client needs to connect, with a certificate of its own where one is named. ConfigError.

    Without `trust`: what the system trusts.
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
    """When the first certificate of a PEM file runs out, in ms since the epoch. ConfigError."""
    from cryptography import x509  # slow to load, and few need it

    try:
        certificate = x509.load_pem_x509_certificate(_read(path))
    except ValueError as error:
        raise ConfigError(f"{path}: holds no certificate in PEM form") from error
    return int(certificate.not_valid_after_utc.timestamp() * 1000)


def _choose_versions(context: ssl.SSLContext, files: TlsFiles) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.protocols:
        unknown = [name for name in files.protocols if name not in _VERSIONS]
        if unknown:
            raise ConfigError(f"TLS protocol {unknown[0]!r} is not offered; choose from {', '.join(_VERSIONS)}")
        context.minimum_version = min(_VERSIONS[name] for name in files.protocols)
        context.maximum_version = max(_VERSIONS[name] for name in files.protocols)
    if files.ciphers:
        try:
            context.set_ciphers(files.ciphers)
        except ssl.SSLError as error:
            raise ConfigError(
                f"TLS ciphers {files.ciphers!r}: none is known; give OpenSSL's names, e.g. "
                "ECDHE-RSA-AES256-GCM-SHA384, joined by colons"
            ) from error


def _load_own_certificate(context: ssl.SSLContext, files: TlsFiles) -> None:
    certificate, key = files.certificate, files.key or files.certificate
    password = _read(files.key_password).strip() if files.key_password else b""
    _require_pem(certificate)
    _require_pem(key)
    try:
        # Without a password of ours OpenSSL would ask for one on the terminal.
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
        raise ConfigError(f"{path} cannot be used as certificates to trust: {_reason(error)}") from error


def _require_pem(path: str) -> None:
    """ConfigError for a file that is missing or in a form that only Java reads."""
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
    """Counters of one context, for a collector to read. `certificate_end_ms`: since the epoch, 0: no certificate."""

    loads: int = 0
    load_failures: int = 0
    certificate_end_ms: int = 0


class TlsContext:
    """The context of one side, as its files last gave one. `refresh_s` 0: files are never looked at again."""

    def __init__(
        self, files: TlsFiles, make: Callable[[TlsFiles], ssl.SSLContext], refresh_s: float, clock: WallClock
    ) -> None:
        self._files = files
        self._make = make
        self._refresh_s = refresh_s
        self._clock = clock
        self._context: ssl.SSLContext | None = None
        self._stamp: Stamp = ()
        self._looked_s = 0.0
        self._looking = asyncio.Lock()
        self.stats = TlsStats()

    @property
    def newest(self) -> ssl.SSLContext:
        """As the files last gave it; looks at nothing."""
        assert self._context is not None, "opened before it is used"
        return self._context

    @property
    def refresh_s(self) -> float:
        """Between two looks at the files; 0: there is none."""
        return self._refresh_s

    async def open(self) -> None:
        """Load for the first time. ConfigError. A certificate that has run out is used, and said so."""
        self._stamp = await asyncio.to_thread(_stamp_of, self._files.paths)
        context, end_ms = await asyncio.to_thread(self._load)
        if end_ms and end_ms <= self._clock.now_ms():
            _log.error("the certificate %s has run out; peers will refuse it", self._files.certificate)
        self._take(context, end_ms)

    async def current(self) -> ssl.SSLContext:
        """The context for a handshake that begins now. Looks at the files when the last look is `refresh_s` ago."""
        assert self._context is not None, "opened before it is used"
        if self._refresh_s > 0 and asyncio.get_running_loop().time() - self._looked_s >= self._refresh_s:
            async with self._looking:
                # Whoever waited for the lock finds that another has just looked.
                if asyncio.get_running_loop().time() - self._looked_s >= self._refresh_s:
                    await self.refresh()
        return self._context

    async def refresh(self) -> bool:
        """Load anew if a file has changed since the last look; whether there is a new context."""
        self._looked_s = asyncio.get_running_loop().time()
        # Taken before the files are read: a change in between is seen at the next look.
        stamp = await asyncio.to_thread(_stamp_of, self._files.paths)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            context, end_ms = await asyncio.to_thread(self._load)
            if end_ms and end_ms <= self._clock.now_ms() < self.stats.certificate_end_ms:
                raise ConfigError(f"the certificate {self._files.certificate} has run out")
        except ConfigError as error:
            self.stats.load_failures += 1
            _log.error("new TLS files are not taken, the former stay in use: %s", error)
            return False
        self._take(context, end_ms)
        return True

    def _load(self) -> tuple[ssl.SSLContext, int]:
        context = self._make(self._files)
        return context, certificate_end_ms(self._files.certificate) if self._files.certificate else 0

    def _take(self, context: ssl.SSLContext, end_ms: int) -> None:
        self._context = context
        self._looked_s = asyncio.get_running_loop().time()
        self.stats.loads += 1
        self.stats.certificate_end_ms = end_ms
        if end_ms:
            days = (end_ms - self._clock.now_ms()) // 86_400_000
            _log.info("using the certificate %s, which runs out in %d days", self._files.certificate, days)


class ServedContext:
    """A context for servers that take one for good: every handshake still gets the one that the files last gave."""

    def __init__(self, tls: TlsContext) -> None:
        self._tls = tls
        self._served: ssl.SSLContext | None = None
        self.stats = tls.stats

    @property
    def refresh_s(self) -> float:
        """Between two looks at the files; 0: there is none."""
        return self._tls.refresh_s

    async def open(self) -> None:
        """Load for the first time. ConfigError."""
        await self._tls.open()
        self._served = self._tls.newest

        # OpenSSL calls it in every handshake, with a name or without, before it chooses a certificate.
        def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = self._tls.newest

        self._served.sni_callback = choose

    @property
    def context(self) -> ssl.SSLContext:
        """For `create_server` and its like."""
        assert self._served is not None, "opened before it is used"
        return self._served

    async def follow(self) -> None:
        """Look at the files from now on, until cancelled."""
        while True:
            await asyncio.sleep(self._tls.refresh_s)
            await self.refresh()

    async def refresh(self) -> bool:
        """Look at the files now; whether there is a new context."""
        return await self._tls.refresh()


def common_name(certificate: Mapping[str, Any] | None) -> str:
    """The CN in the subject of a certificate, as Python's ssl module gives one; empty without one that can be a role.

    Readers of certificates disagree which of several CNs counts, and a long one or one with control characters is made
    to mislead: such a certificate has none here.
    """
    names = [value for part in (certificate or {}).get("subject", ()) for name, value in part if name == "commonName"]
    if len(names) != 1 or len(names[0]) > ROLE_CHARACTERS_MAX or has_control_characters(names[0]):
        return ""
    return str(names[0])


def _stamp_of(paths: Sequence[str]) -> Stamp:
    """What tells a file from its successor. Links are followed: secrets are often swapped by one."""
    stamps = []
    for path in paths:
        try:
            found = os.stat(path)
            stamps.append((found.st_mtime_ns, found.st_size, found.st_ino))
        except OSError:
            stamps.append((0, 0, 0))
    return tuple(stamps)
