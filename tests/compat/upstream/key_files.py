"""Creates the key files of upstream's TLS tests: two self-signed certificates, one for each side."""

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

HOST = "apache.bookkeeper.org"
CLIENT_ROLES = "0:testRole,testRole1;1:testCluster"  # required by these tests


def write_key_files(folder: Path) -> None:
    """Write `client-cert.pem`, `client-key.pem` and the same files of `server` into a new folder."""
    folder.mkdir()
    _write(folder, "client", CLIENT_ROLES)
    _write(folder, "server", None)


def _write(folder: Path, side: str, roles: str | None) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    unit = [] if roles is None else [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, roles)]
    name = x509.Name([*unit, x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = datetime.datetime.now(tz=datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / f"{side}-cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / f"{side}-key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
