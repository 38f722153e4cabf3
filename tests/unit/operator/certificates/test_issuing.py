"""Issued certificates in real TLS handshakes."""

import ssl
import time
from pathlib import Path

import pytest

from quire_operator.certificates import issuing
from quire_operator.certificates.deciding import AUTHORITY_LIFE_S, LIFE_S
from quire_operator.certificates.issuing import CertificateError, Pair
from quire_operator.certificates.subjects import Subject, etcd_client_subject

NOW_S = 1_800_000_000.0
POOL = Subject("pool-bookie", "bookie", ("pool-bookie", "*.pool-bookie.prod.svc"), ("127.0.0.1", "::1"))


@pytest.fixture(scope="module")
def authority() -> Pair:
    return issuing.new_authority("quire prod", time.time(), AUTHORITY_LIFE_S)


def _shake_hands(folder: Path, authority: Pair, server: Pair, client: Pair | None, host: str) -> dict[str, object]:
    """Return the server's certificate as received by the client. ssl.SSLError if one end rejects the other."""
    (folder / "ca.crt").write_bytes(authority.certificate)
    contexts = []
    for purpose, pair in ((ssl.Purpose.CLIENT_AUTH, server), (ssl.Purpose.SERVER_AUTH, client)):
        context = ssl.create_default_context(purpose, cafile=str(folder / "ca.crt"))
        context.verify_mode = ssl.CERT_REQUIRED
        if pair is not None:
            (folder / "tls.crt").write_bytes(pair.certificate)
            (folder / "tls.key").write_bytes(pair.key)
            context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        contexts.append(context)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    at_server = contexts[0].wrap_bio(to_server, to_client, server_side=True)
    at_client = contexts[1].wrap_bio(to_client, to_server, server_hostname=host)
    waiting = [at_client, at_server]
    for _ in range(10):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass
    assert not waiting
    return dict(at_client.getpeercert() or {})


@pytest.mark.parametrize("host", ["pool-bookie", "pool-bookie-12.pool-bookie.prod.svc", "127.0.0.1", "::1"])
def test_a_pod_certificate_is_valid_for_each_of_its_names(tmp_path: Path, authority: Pair, host: str) -> None:
    pair = issuing.issue(POOL, authority, time.time(), LIFE_S)
    client = issuing.issue(etcd_client_subject("prod"), authority, time.time(), LIFE_S)
    seen = _shake_hands(tmp_path, authority, pair, client, host)
    assert (("organizationalUnitName", "bookie"),) in seen["subject"]  # type: ignore[operator]


def test_another_name_another_authority_and_an_expired_certificate_are_refused(tmp_path: Path, authority: Pair) -> None:
    pair = issuing.issue(POOL, authority, time.time(), LIFE_S)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        _shake_hands(tmp_path, authority, pair, pair, "pool-bookie-0.other.prod.svc")
    stranger = issuing.new_authority("quire prod", time.time(), AUTHORITY_LIFE_S)
    with pytest.raises(ssl.SSLError):
        _shake_hands(tmp_path, authority, issuing.issue(POOL, stranger, time.time(), LIFE_S), pair, "pool-bookie")
    ended = issuing.issue(POOL, authority, time.time() - LIFE_S - 1, LIFE_S)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        _shake_hands(tmp_path, authority, ended, pair, "pool-bookie")


def test_a_client_certificate_is_invalid_for_a_server_and_has_no_names(tmp_path: Path, authority: Pair) -> None:
    client = issuing.issue(etcd_client_subject("prod"), authority, time.time(), LIFE_S)
    found = issuing.read(client).subject
    assert (found.dns, found.addresses, found.server) == ((), (), False)
    with pytest.raises(ssl.SSLCertVerificationError):
        _shake_hands(tmp_path, authority, client, client, "quire.prod")


def test_an_issued_certificate_is_parsed_to_the_requested_subject(authority: Pair) -> None:
    found = issuing.read(issuing.issue(POOL, authority, NOW_S, LIFE_S))
    assert found.subject == POOL
    assert (found.begins_s, found.ends_s, found.authority) == (NOW_S, NOW_S + LIFE_S, False)
    assert issuing.is_signed_by(found, issuing.read(authority))
    assert issuing.read(authority).authority


def test_a_mismatched_key_and_invalid_pem_are_refused(authority: Pair) -> None:
    one, two = (issuing.issue(POOL, authority, NOW_S, LIFE_S) for _ in range(2))
    with pytest.raises(CertificateError, match="the key does not match"):
        issuing.read(Pair(one.certificate, two.key))
    with pytest.raises(CertificateError, match="invalid certificate"):
        issuing.read(Pair(b"x", one.key))
    with pytest.raises(CertificateError, match="invalid private key"):
        issuing.read(Pair(one.certificate, b"x"))


def test_a_long_name_is_cut_to_the_limit_of_x509(authority: Pair) -> None:
    long = Subject("p" * 80, "bookie", ("p",))
    assert issuing.read(issuing.issue(long, authority, NOW_S, LIFE_S)).subject.common_name == "p" * 64


def test_successive_authorities_with_a_long_name_have_different_names() -> None:
    made = [issuing.new_authority("quire " + "n" * 63, now_s, LIFE_S) for now_s in (NOW_S, NOW_S + 1)]
    names = {issuing.read(each).subject.common_name for each in made}
    assert len(names) == 2
