"""The simulated metadata store keeps the contract of the production stores."""

import asyncio
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


async def test_the_end_of_a_fault_replaces_no_lease_that_an_earlier_end_granted() -> None:
    server = SimMetadata(random.Random(1))
    store = SimMetadataStore(server)
    seen: list[SessionState] = []
    store.on_session(seen.append)
    store.lose_session()
    store.expire()  # another fault, which ends first
    await store.put("/node", b"", ephemeral=True)
    store.cut = True
    store.renew_session()  # the end of the first one
    assert store.cut, "the later fault goes on"
    assert seen == [SessionState.LOST, SessionState.LOST, SessionState.RENEWED]
    store.lease_ran_out()
    assert server.nodes == {}, "no lease is left that nothing ends"


async def test_a_loss_that_is_noticed_late_is_not_reported_once_the_lease_was_replaced() -> None:
    store = SimMetadataStore(SimMetadata(random.Random(1)))
    seen: list[SessionState] = []
    store.on_session(seen.append)
    store.lose_session(noticed_s=0.01)
    store.expire()
    await asyncio.sleep(0.05)
    assert seen == [SessionState.LOST, SessionState.RENEWED]


async def test_a_restored_store_leaves_no_lease_of_a_session_that_notices() -> None:
    server = SimMetadata(random.Random(1))
    store = SimMetadataStore(server)
    server.put_back(server.snapshot())
    store.expire()  # a new lease, before the restored store answers
    await store.put("/node", b"", ephemeral=True)
    assert server.nodes == {}
    assert store.cut is False
