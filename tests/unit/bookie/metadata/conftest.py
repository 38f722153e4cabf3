"""Simulated stores for the tests of this package."""

import random

import pytest

from tests.sim.metadata import SimMetadata, SimMetadataStore


@pytest.fixture
def server() -> SimMetadata:
    """Return an empty simulated cluster store without delays."""
    return SimMetadata(random.Random(1), delay_s=(0.0, 0.0))


@pytest.fixture
def store(server: SimMetadata) -> SimMetadataStore:
    """Return a session on it."""
    return SimMetadataStore(server)
