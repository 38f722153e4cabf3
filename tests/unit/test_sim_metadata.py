"""The simulated metadata store keeps the contract of the production stores."""

import random

from quire_bookie.metadata.store import SessionState
from tests.sim.metadata import SimMetadata, SimMetadataStore


def test_a_session_listener_is_removed_once_and_removing_it_again_does_nothing() -> None:
    store = SimMetadataStore(SimMetadata(random.Random(1)))
    seen: list[SessionState] = []
    kept: list[SessionState] = []
    remove = store.on_session(seen.append)
    store.on_session(kept.append)
    remove()
    remove()
    store.expire()
    assert seen == []
    assert kept == [SessionState.LOST, SessionState.RENEWED]
