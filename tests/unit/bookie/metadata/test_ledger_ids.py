"""Ledger ids: the counters of BookKeeper's clients, and no id twice."""

import asyncio

from quire_bookie.errors import MetadataUnknownError
from quire_bookie.metadata.layout import SHORT_LEDGER_IDS_END
from quire_bookie.metadata.ledger_ids import LedgerIds
from tests.sim.metadata import SimMetadata, SimMetadataStore


async def test_the_first_id_of_a_new_cluster_is_one_and_ids_follow_each_other(store: SimMetadataStore) -> None:
    ids = LedgerIds(store)
    assert [await ids.next_id() for _ in range(3)] == [1, 2, 3]


async def test_concurrent_clients_never_receive_the_same_id(server: SimMetadata) -> None:
    clients = [LedgerIds(SimMetadataStore(server)) for _ in range(4)]
    found = await asyncio.gather(*(client.next_id() for client in clients for _ in range(25)))
    assert len(set(found)) == 100


async def test_lost_responses_skip_ids_and_repeat_none(server: SimMetadata, store: SimMetadataStore) -> None:
    server.unknown_chance = 0.2
    ids = LedgerIds(store)
    found = []
    for _ in range(100):
        try:
            found.append(await ids.next_id())
        except MetadataUnknownError:
            continue  # three lost responses in a row
    assert len(found) > 80
    assert found == sorted(set(found))


async def test_when_short_ids_run_out_the_long_counter_takes_over_for_everyone(
    server: SimMetadata, store: SimMetadataStore
) -> None:
    server.write("/ledgers/idgen", b"", None)
    server.nodes["/ledgers/idgen"].version = SHORT_LEDGER_IDS_END - 2
    ids = LedgerIds(store)
    assert await ids.next_id() == SHORT_LEDGER_IDS_END - 1
    assert await ids.next_id() == 1 << 32 | 1
    assert "/ledgers/idgen-long" in server.nodes
    assert "/ledgers/idgen-long/HOB-0000000001" in server.nodes
    assert await LedgerIds(SimMetadataStore(server)).next_id() == 1 << 32 | 2
    assert server.nodes["/ledgers/idgen"].version == SHORT_LEDGER_IDS_END


async def test_a_full_low_half_moves_to_the_next_high_half(server: SimMetadata, store: SimMetadataStore) -> None:
    server.write("/ledgers/idgen-long", b"", None)
    server.write("/ledgers/idgen-long/HOB-0000000007", b"", None)
    server.nodes["/ledgers/idgen-long/HOB-0000000007"].version = SHORT_LEDGER_IDS_END - 1
    assert await LedgerIds(store).next_id() == 8 << 32 | 1
    assert await LedgerIds(store).next_id() == 8 << 32 | 2
