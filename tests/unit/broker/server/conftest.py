"""One broker for the tests of sessions, which use topics of their own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quire_broker.server.broker import RunningBroker
from tests.support.broker_world import running_brokers


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_brokers(tmp_path, 1) as world:
        yield world.brokers[0]
