"""Fixtures of the tests of request handling."""

from collections.abc import AsyncIterator

import pytest

from tests.unit.bookie.server.scene import Scene


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """Yield a new scene."""
    scene = Scene()
    yield scene
    await scene.bookie.close()
