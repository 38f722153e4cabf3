"""Fixtures of the integration tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.etcd_server import EtcdServer, require_etcd


@pytest.fixture
def etcd_server(tmp_path: Path) -> Iterator[EtcdServer]:
    """A fresh etcd of one member, running."""
    folder = tmp_path / "etcd"
    folder.mkdir()
    server = EtcdServer(require_etcd(), folder)
    server.start()
    yield server
    server.kill()
