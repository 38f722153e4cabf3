"""Creates and parses keys and certificates with the library `cryptography`. Decides nothing, stores nothing.

Keys are P-256, in PKCS #8; everything is PEM, under the names of Secrets of type kubernetes.io/tls.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from quire_operator.certificates.subjects import Subject
from quire_operator.errors import OperatorError

BACKDATED_S = 3600
"""Start of validity before the issue time, because a node whose clock is behind would reject a new certificate."""
ORGANIZATION = "quire"
_Key = ec.EllipticCurvePrivateKey


class CertificateError(OperatorError):
    """Invalid PEM, or a key that does not match its certificate."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate with its key, as PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Facts:
    """The relevant content of a certificate. Times in seconds since the epoch."""

    begins_s: float
    ends_s: float
    subject: Subject
    authority: bool
    signer: x509.Certificate


def new_authority(common_name: str, now_s: float, life_s: float) -> Pair:
    """Create a self-signed authority. Its name includes the time, so that successive ones differ."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"{common_name[:50]} {int(now_s)}", "authority")  # cut to the limit of X.509, but with the whole time
    usage = _usage(signs_certificates=True)
    built = (
        _builder(name, name, key.public_key(), now_s, life_s)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return Pair(_pem(built), _key_pem(key))


def issue(subject: Subject, authority: Pair, now_s: float, life_s: float) -> Pair:
    """Create a key and a certificate signed by the authority. CertificateError if the authority is invalid."""
    signer, signer_key = _certificate(authority.certificate), _key(authority.key)
    key = ec.generate_private_key(ec.SECP256R1())
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH] + ([ExtendedKeyUsageOID.SERVER_AUTH] if subject.server else [])
    name = _name(subject.common_name, subject.unit)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_key.public_key())
    builder = (
        _builder(name, signer.subject, key.public_key(), now_s, life_s)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(identifier, critical=False)
    )
    names: list[x509.GeneralName] = [x509.DNSName(each) for each in subject.dns]
    names += [x509.IPAddress(ip_address(each)) for each in subject.addresses]
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return Pair(_pem(builder.sign(signer_key, hashes.SHA256())), _key_pem(key))


def read(pair: Pair) -> Facts:
    """Parse a certificate. CertificateError if it is invalid or does not match its key."""
    certificate, key = _certificate(pair.certificate), _key(pair.key)
    if key.public_key() != certificate.public_key():
        raise CertificateError("the key does not match the certificate")
    return facts(certificate)


def facts(certificate: x509.Certificate) -> Facts:
    """Return the relevant content of a certificate."""
    dns: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        dns = tuple(names.get_values_for_type(x509.DNSName))
        addresses = tuple(str(each) for each in names.get_values_for_type(x509.IPAddress))
    except x509.ExtensionNotFound:
        pass
    try:
        purposes = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        server = ExtendedKeyUsageOID.SERVER_AUTH in purposes
    except x509.ExtensionNotFound:
        server = False
    try:
        authority = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        authority = False
    unit = _word(certificate, NameOID.ORGANIZATIONAL_UNIT_NAME)
    return Facts(
        certificate.not_valid_before_utc.timestamp() + BACKDATED_S,
        certificate.not_valid_after_utc.timestamp(),
        Subject(_word(certificate, NameOID.COMMON_NAME), unit, dns, addresses, server),
        authority,
        certificate,
    )


def is_signed_by(certificate: Facts, authority: Facts) -> bool:
    """Return whether the authority signed the certificate."""
    try:
        certificate.signer.verify_directly_issued_by(authority.signer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def bundle(pem: bytes) -> list[x509.Certificate]:
    """Parse the certificates of a file, in order. Raises CertificateError."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise CertificateError(f"invalid certificates: {error}") from error


def pem_of(certificate: x509.Certificate) -> bytes:
    """Return the certificate as PEM."""
    return _pem(certificate)


def _builder(
    name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now_s: float, life_s: float
) -> x509.CertificateBuilder:
    begins = datetime.fromtimestamp(int(now_s), UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins - timedelta(seconds=BACKDATED_S))
        .not_valid_after(begins + timedelta(seconds=life_s))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str, unit: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANIZATION),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64]),  # the limit of X.509
        ]
    )


def _word(certificate: x509.Certificate, oid: x509.ObjectIdentifier) -> str:
    found = certificate.subject.get_attributes_for_oid(oid)
    return str(found[0].value) if found else ""


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: _Key) -> bytes:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


def _certificate(pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise CertificateError(f"invalid certificate: {error}") from error


def _key(pem: bytes) -> _Key:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise CertificateError(f"invalid private key: {error}") from error
    if not isinstance(key, _Key):
        raise CertificateError("the private key is not an elliptic curve key")
    return key
