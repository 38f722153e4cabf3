"""TLS contexts from PEM files: refused files with their errors, and reloads of changed files."""

import logging
import ssl
import subprocess
from functools import partial
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from quire_bookie.env.tls import TlsContext, certificate_end_ms, client_context, common_name, server_context
from quire_bookie.errors import ConfigError
from quire_bookie.limits import ROLE_CHARACTERS_MAX
from quire_bookie.settings.tls import TlsFiles
from tests.support.certificates import Authority, Pem, move_into, replace, retouch

PASSWORD = b"correct horse"
DAY_MS = 86_400_000


class Clock:
    """A clock that stands still at a set time."""

    def __init__(self, ms: int) -> None:
        self.ms = ms

    def now_ms(self) -> int:
        """Return the set time."""
        return self.ms


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Return the trusted authority."""
    return Authority(tmp_path)


def files(pem: Pem, **more: str) -> TlsFiles:
    """Return both files of a certificate."""
    return TlsFiles(pem.certificate, pem.key, **more)


def encrypt(pem: Pem) -> None:
    """Encrypt the key with a password."""
    key = serialization.load_pem_private_key(Path(pem.key).read_bytes(), None)
    Path(pem.key).write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(PASSWORD),
        )
    )


def test_an_old_protocol_is_never_accepted(authority: Authority) -> None:
    context = server_context(files(authority.issue("a")), client_certificates=False)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.num_tickets == 0
    only = server_context(
        TlsFiles(*_both(authority.issue("a")), protocols=["TLSv1.3"], ciphers=""), client_certificates=False
    )
    assert only.minimum_version == ssl.TLSVersion.TLSv1_3


def _both(pem: Pem) -> tuple[str, str]:
    return pem.certificate, pem.key


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"certificate": ""}, "tlsCertificatePath"),
        ({"key": ""}, "tlsKeyStore"),
        ({"certificate": "/nowhere.pem"}, "/nowhere.pem cannot be read: No such file"),
        ({"protocols": ["SSLv3"]}, "'SSLv3': unknown"),
        ({"ciphers": "NO-SUCH-CIPHER"}, "OpenSSL's names"),
    ],
)
def test_invalid_settings_are_refused_by_name(authority: Authority, change: dict[str, str], words: str) -> None:
    pem = authority.issue("a")
    parts: dict[str, str] = {"certificate": pem.certificate, "key": pem.key} | change
    with pytest.raises(ConfigError, match=words):
        server_context(TlsFiles(**parts), client_certificates=False)


def test_mutual_tls_needs_trusted_certificates(authority: Authority) -> None:
    with pytest.raises(ConfigError, match="tlsTrustStore"):
        server_context(files(authority.issue("a")), client_certificates=True)
    context = server_context(files(authority.issue("a"), trust=authority.trust), client_certificates=True)
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_the_key_of_another_certificate_is_refused(authority: Authority) -> None:
    ours, other = authority.issue("a"), authority.issue("b")
    with pytest.raises(ConfigError, match="key values mismatch"):
        server_context(TlsFiles(ours.certificate, other.key), client_certificates=False)


def test_an_encrypted_key_needs_its_password_and_never_asks_for_it(authority: Authority, tmp_path: Path) -> None:
    pem = authority.issue("a")
    encrypt(pem)
    with pytest.raises(ConfigError, match="tlsKeyStorePasswordPath"):
        server_context(files(pem), client_certificates=False)
    password = tmp_path / "password"
    password.write_bytes(b"wrong")
    with pytest.raises(ConfigError) as refusal:
        server_context(files(pem, key_password=str(password)), client_certificates=False)
    assert "wrong" not in str(refusal.value)
    password.write_bytes(PASSWORD + b"\n")
    server_context(files(pem, key_password=str(password)), client_certificates=False)


@pytest.mark.parametrize(("head", "words"), [(b"\xfe\xed\xfe\xed\0\0", "JKS.*keytool"), (b"\x30\x82\1\2", "PKCS12")])
def test_a_java_store_is_refused_with_commands_to_convert_it(
    authority: Authority, tmp_path: Path, head: bytes, words: str
) -> None:
    store = tmp_path / "store"
    store.write_bytes(head)
    with pytest.raises(ConfigError, match=words):
        server_context(TlsFiles(authority.issue("a").certificate, str(store)), client_certificates=False)
    with pytest.raises(ConfigError, match=words):
        client_context(TlsFiles(trust=str(store)), check_host_name=True)


def test_the_commands_to_convert_a_pkcs12_store_work(authority: Authority, tmp_path: Path) -> None:
    pem = authority.issue("a")
    store, converted = tmp_path / "store.p12", tmp_path / "store.pem"
    export = ["openssl", "pkcs12", "-export", "-in", pem.certificate, "-inkey", pem.key]
    subprocess.run([*export, "-out", str(store), "-passout", "pass:secret"], check=True)
    convert = ["openssl", "pkcs12", "-in", str(store), "-nodes", "-out", str(converted)]
    subprocess.run([*convert, "-passin", "pass:secret"], check=True, capture_output=True)
    server_context(TlsFiles(str(converted), str(converted)), client_certificates=False)
    assert certificate_end_ms(str(converted)) == certificate_end_ms(pem.certificate)


def test_a_client_without_a_trust_file_trusts_the_systems_certificates(authority: Authority) -> None:
    context = client_context(TlsFiles(), check_host_name=True)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    context = client_context(TlsFiles(trust=authority.trust), check_host_name=False)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, False)
    with pytest.raises(ConfigError, match="trusted certificates"):
        client_context(TlsFiles(trust=__file__), check_host_name=True)


def watched(pem: Pem, clock: Clock, refresh_s: float = 0.0, **more: str) -> TlsContext:
    """Return a server's context."""
    return TlsContext(files(pem, **more), partial(server_context, client_certificates=False), refresh_s, clock)


def now_for(pem: Pem) -> Clock:
    """Return a clock at a day before the certificate ends."""
    return Clock(certificate_end_ms(pem.certificate) - DAY_MS)


async def test_unchanged_files_are_not_read_again(authority: Authority) -> None:
    pem = authority.issue("a")
    context = watched(pem, now_for(pem))
    await context.open()
    first = await context.current()
    assert not await context.refresh()
    assert await context.current() is first
    assert context.stats.certificate_end_ms == certificate_end_ms(pem.certificate)


async def test_changes_of_each_kind_of_file_are_detected(authority: Authority, tmp_path: Path) -> None:
    pem = authority.issue("a")
    password = tmp_path / "password"
    password.write_bytes(b"x")
    context = watched(pem, now_for(pem), trust=authority.trust, key_password=str(password))
    await context.open()
    for path in (pem.certificate, pem.key, authority.trust, str(password)):
        retouch(path)
        assert await context.refresh(), path


async def test_a_secret_replaced_through_a_link_is_detected(authority: Authority, tmp_path: Path) -> None:
    """Kubernetes replaces mounted secrets in this way."""
    for version in ("one", "two"):
        move_into(authority.issue(version), tmp_path / version)
    current = tmp_path / "current"
    current.symlink_to(tmp_path / "one")
    mounted = Pem(str(current / "tls.crt"), str(current / "tls.key"))
    context = watched(mounted, now_for(mounted))
    await context.open()
    current.unlink()
    current.symlink_to(tmp_path / "two")
    assert await context.refresh()


async def test_invalid_new_files_are_reported_once_and_the_previous_stay_in_use(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    pem = authority.issue("a")
    context = watched(pem, now_for(pem))
    await context.open()
    first = await context.current()
    replace(pem.certificate, b"not a certificate")
    for _ in range(3):
        assert not await context.refresh()
    replace(pem.key, None)
    assert not await context.refresh()
    assert await context.current() is first
    assert context.stats.load_failures == 2
    assert caplog.text.count("the previous ones stay in use") == 2
    authority.issue("a")
    assert await context.refresh()
    assert await context.current() is not first


async def test_an_expired_new_certificate_does_not_replace_a_valid_one(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    pem = authority.issue("a")
    clock = now_for(pem)
    context = watched(pem, clock)
    await context.open()
    authority.issue("a", expired=True)
    assert not await context.refresh()
    assert "has expired" in caplog.text
    # If the previous certificate has expired too, the new one is used: there is nothing to lose.
    clock.ms += 2 * DAY_MS
    retouch(pem.certificate)
    assert await context.refresh()


async def test_a_certificate_that_has_expired_at_the_start_is_used_with_an_error(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    pem = authority.issue("a")
    await watched(pem, Clock(certificate_end_ms(pem.certificate))).open()
    assert [record.levelno for record in caplog.records if "has expired" in record.message] == [logging.ERROR]


async def test_files_are_checked_no_more_often_than_configured(authority: Authority) -> None:
    pem = authority.issue("a")
    for refresh_s, loads in ((0.0, 1), (3600.0, 1), (1e-9, 2)):
        context = watched(pem, now_for(pem), refresh_s)
        await context.open()
        retouch(pem.certificate)
        await context.current()
        assert context.stats.loads == loads, refresh_s


@pytest.mark.parametrize(("characters", "is_role"), [(ROLE_CHARACTERS_MAX, True), (ROLE_CHARACTERS_MAX + 1, False)])
def test_a_common_name_of_many_characters_is_no_role(characters: int, is_role: bool) -> None:
    name = "x" * characters
    assert common_name({"subject": ((("commonName", name),),)}) == (name if is_role else "")
