"""Initialising a store: once, completely, and never over something else."""

import asyncio
import random
import uuid

import pytest

from quire_bookie.env.chance import SystemChance
from quire_bookie.errors import StartupError
from quire_bookie.metadata import initialise as module
from quire_bookie.metadata.initialise import initialise, read_instance_id, wait_until_initialised
from tests.sim.metadata import SimMetadata, SimMetadataStore


async def test_an_empty_store_gets_its_nodes_and_a_random_instance_id(
    server: SimMetadata, store: SimMetadataStore
) -> None:
    assert await read_instance_id(store) is None
    instance_id = await initialise(store, SystemChance())
    assert uuid.UUID(instance_id).version == 4
    assert uuid.UUID(instance_id).variant == uuid.RFC_4122
    assert await read_instance_id(store) == instance_id
    assert {key: node.value for key, node in server.nodes.items()} == {
        "/ledgers": b"",
        "/ledgers/available": b"",
        "/ledgers/available/readonly": b"",
        "/ledgers/INSTANCEID": instance_id.encode(),
    }


async def test_an_initialised_store_is_not_changed(server: SimMetadata, store: SimMetadataStore) -> None:
    server.write("/ledgers", b"", None)
    server.write("/ledgers/INSTANCEID", b"from-the-stock-tool", None)
    before = len(server.history)
    assert await initialise(store, SystemChance()) == "from-the-stock-tool"
    assert len(server.history) == before


async def test_processes_that_start_at_once_agree(server: SimMetadata) -> None:
    ids = await asyncio.gather(*(initialise(SimMetadataStore(server), SystemChance()) for _ in range(8)))
    assert len(set(ids)) == 1


async def test_a_process_waits_for_the_first_bookie_and_logs_it_once(
    server: SimMetadata, store: SimMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_POLL_S", 0.0)
    said: list[str] = []
    waiting = asyncio.ensure_future(wait_until_initialised(store, said.append))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not waiting.done()
    assert server.nodes == {}
    await initialise(SimMetadataStore(server), SystemChance())
    await waiting
    assert len(said) == 1


@pytest.mark.parametrize("key", ["/registry/pods/x", "/ledgers", "/ledgers/cookies/b1", "/admin/clusters/c"])
async def test_a_store_of_something_else_is_refused_and_untouched(
    server: SimMetadata, store: SimMetadataStore, key: str
) -> None:
    server.write(key, b"", None)
    with pytest.raises(StartupError, match="not empty"):
        await initialise(store, SystemChance())
    assert set(server.nodes) == {key}


@pytest.mark.parametrize("seed", range(20))
async def test_lost_responses_result_in_one_instance_id_or_an_error(seed: int) -> None:
    server = SimMetadata(random.Random(seed), delay_s=(0.0, 0.0), unknown_chance=0.5)
    try:
        instance_id = await initialise(SimMetadataStore(server), SystemChance())
    except StartupError:
        return
    assert server.nodes["/ledgers/INSTANCEID"].value == instance_id.encode()
