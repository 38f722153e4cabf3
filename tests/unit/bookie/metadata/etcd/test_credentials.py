"""The certificate files of an etcd client, while they are being replaced."""

from pathlib import Path

import grpc
import pytest

from quire_bookie.metadata.etcd.credentials import EtcdCertificates
from quire_bookie.settings.metadata import MetadataSettings
from tests.support.certificates import Authority


async def test_files_that_change_while_they_are_read_never_combine_a_certificate_with_another_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    pem = authority.issue("ours")
    pair = Path(pem.certificate), Path(pem.key)
    given: list[tuple[bytes, bytes]] = []
    newer: list[str] = []

    def channel_credentials(root_certificates: bytes, private_key: bytes, certificate_chain: bytes) -> object:
        given.append((certificate_chain, private_key))
        if newer:  # as if the file was replaced before the key was read
            given[-1] = (certificate_chain, b"the key of another")
            authority.issue(newer.pop())
        return object()

    monkeypatch.setattr(grpc, "ssl_channel_credentials", channel_credentials)
    settings = MetadataSettings(ca_path=authority.trust, cert_path=pem.certificate, key_path=pem.key)
    certificates = EtcdCertificates(settings)
    await certificates.open()
    assert await certificates.changed() is None
    authority.issue("ours")
    newer.append("ours")
    assert await certificates.changed() is not None
    assert given[-1] == tuple(path.read_bytes() for path in pair)
    assert await certificates.changed() is None
