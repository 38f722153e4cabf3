"""Simulated stores for the tests of this room."""

import random

import pytest

from tests.sim.metadata import SimMetadata, SimMetadataStore


@pytest.fixture
def server() -> SimMetadata:
    """An empty simulated cluster store without delays."""
    return SimMetadata(random.Random(1), delay_s=(0.0, 0.0))


@pytest.fixture
def store(server: SimMetadata) -> SimMetadataStore:
    """A session on it."""
    return SimMetadataStore(server)
