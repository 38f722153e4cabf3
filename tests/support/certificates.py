"""Certificates for tests: an authority, and PEM files that it signed."""

import datetime
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization


@dataclass(frozen=True)
class Pem:
    """A certificate with its chain, and its key, as files."""

    certificate: str
    key: str


class Authority:
    """An authority whose certificate is `trust`."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._ca = trustme.CA(organization_name=name)
        self._folder = folder
        self.trust = str(folder / f"{name}.pem")
        self._ca.cert_pem.write_to_path(self.trust)

    def issue(self, name: str, *hosts: str, unit: str | None = None, expired: bool = False) -> Pem:
        """A certificate for some hosts, its subject holding `unit` as OU. The same name overwrites the files."""
        ago = datetime.datetime.now(tz=datetime.UTC) - datetime.timedelta(days=2)
        leaf = self._ca.issue_cert(
            *(hosts or ("localhost", "127.0.0.1")),
            common_name=None if unit is None else name,
            organization_unit_name=unit,
            not_before=ago - datetime.timedelta(days=30),
            not_after=ago if expired else ago + datetime.timedelta(days=30),
        )
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        private = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None)
        # Java reads no other form of PEM.
        key.write_bytes(
            private.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return Pem(str(certificate), str(key))


def replace(path: str, content: bytes | None) -> None:
    """Put a new file in the place of one, or take it away."""
    Path(path).unlink()
    if content is not None:
        Path(path).write_bytes(content)


def retouch(path: str) -> None:
    """The same content, written again."""
    replace(path, Path(path).read_bytes())


def move_into(pem: Pem, folder: Path) -> None:
    """Take both files into a new folder, under the names of a Kubernetes secret."""
    folder.mkdir()
    Path(pem.certificate).rename(folder / "tls.crt")
    Path(pem.key).rename(folder / "tls.key")
