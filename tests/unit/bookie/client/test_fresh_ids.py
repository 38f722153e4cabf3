"""Tests ids of new ledgers: none from metadata that went back in time, none that a bookie knows."""

import asyncio

import pytest

from quire_bookie.client import LedgerClient, LedgerWriter, fresh_ids
from quire_bookie.errors import LedgerFencedError, LedgerIdInUseError, MetadataOutdatedError, QuorumError
from quire_bookie.limits import ID_INQUIRY_AGAIN_S
from quire_bookie.metadata import layout
from quire_bookie.metadata.epoch import EPOCH_PATH, encode_epoch
from quire_bookie.model import BookieId, IdCounters, LedgerState
from quire_bookie.wire.messages import Status
from tests.unit.bookie.client.cluster import Cluster, run


async def create(client: LedgerClient) -> LedgerWriter:
    return await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)


def counted(cluster: Cluster, number: int) -> None:
    """Set the counter as after allocating `number` ids."""
    while cluster.metadata.write(layout.ID_COUNTER, b"", None) < number:
        continue


def test_bookies_are_asked_once_before_the_first_id() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        ids = [(await create(client)).ledger_id for _ in range(5)]
        assert ids == [1, 2, 3, 4, 5]
        assert [bookie.inquiries for bookie in cluster.bookies.values()] == [[None]] * 3
        await cluster.start_bookie("late")
        registered = asyncio.Event()
        client.on_bookies_changed(registered.set)
        await registered.wait()
        await create(client)
        assert cluster.bookies[BookieId("late")].inquiries == [None]

    run(scenario)


@pytest.mark.parametrize("seen", [IdCounters(0, 50, -1), IdCounters(0, -1, 1 << 33), IdCounters(7, -1, -1)])
def test_metadata_older_than_a_bookie_saw_allocate_no_id_until_they_begin_a_new_epoch(seen: IdCounters) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        counted(cluster, 10)
        bookie = next(iter(cluster.bookies.values()))
        bookie.seen = seen
        for _ in range(2):
            with pytest.raises(MetadataOutdatedError, match=rf"according to bookie {bookie.name}: .*backup\.md"):
                await create(client)
        cluster.metadata.write(EPOCH_PATH, encode_epoch(8), None)
        assert (await create(client)).ledger_id == 11

    run(scenario)


def test_ids_that_bookies_know_are_skipped_and_ids_above_the_counter_do_no_harm() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        one, two, _ = cluster.bookies.values()
        one.deleted |= {2, 3}
        two.deleted |= {5, 1_000_000}
        assert [(await create(client)).ledger_id for _ in range(3)] == [1, 4, 6]
        counted(cluster, 999_999)
        assert [(await create(client)).ledger_id for _ in range(2)] == [1_000_001, 1_000_002]

    run(scenario)


def test_a_running_client_allocates_no_id_from_an_older_copy_that_is_put_in_place() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        await create(client)
        older = cluster.metadata.snapshot()
        counted(cluster, 10)
        for bookie in cluster.bookies.values():
            bookie.seen = IdCounters(0, 10, -1)
        cluster.metadata.put_back(older)
        # The response of the counter shows the older copy; by then the registrations are gone.
        with pytest.raises(MetadataOutdatedError, match="was at 10"):
            await create(client)

    run(scenario)


def test_an_older_copy_with_its_leases_is_noticed_by_the_broken_connection() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        older = cluster.metadata.snapshot()
        assert (await create(client)).ledger_id == 1
        counted(cluster, 10)
        for bookie in cluster.bookies.values():
            bookie.seen = IdCounters(0, 10, -1)
        cluster.metadata.put_back(older, noticed=False)
        counted(cluster, 4)
        with pytest.raises(MetadataOutdatedError, match="was at 10"):
            await create(client)

    run(scenario)


def test_ids_are_allocated_despite_java_bookies() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        for bookie in cluster.bookies.values():
            bookie.seen = None
        assert (await create(client)).ledger_id == 1

    run(scenario)


def test_half_of_the_registered_bookies_must_respond_and_the_others_are_asked_again_later() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        one, two, _ = cluster.bookies.values()
        one.silent_on_ids = two.silent_on_ids = True
        with pytest.raises(QuorumError, match="1 of 3 bookies"):
            await create(client)
        two.silent_on_ids = False
        await create(client)
        asked = len(one.inquiries)
        await create(client)
        assert len(one.inquiries) == asked
        one.silent_on_ids, one.seen = False, IdCounters(0, 500, -1)
        await asyncio.sleep(ID_INQUIRY_AGAIN_S + 1)
        with pytest.raises(MetadataOutdatedError):
            await create(client)

    run(scenario)


def test_a_counter_that_decreases_while_a_client_runs_is_noticed_without_any_bookie() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        counted(cluster, 20)
        assert (await create(client)).ledger_id == 21
        del cluster.metadata.nodes[layout.ID_COUNTER]
        with pytest.raises(MetadataOutdatedError, match="and was at 21"):
            await create(client)
        cluster.metadata.write(EPOCH_PATH, encode_epoch(3), None)
        assert (await create(client)).ledger_id <= 4

    run(scenario)


def test_if_a_bookie_refuses_the_first_add_for_another_key_the_writer_fails_and_the_ledger_is_empty() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await create(client)
        for bookie in cluster.bookies.values():
            bookie.fault = lambda request: Status.UNAUTHORIZED
        with pytest.raises(LedgerIdInUseError, match="holds another ledger with that id"):
            await writer.append(b"x")
        metadata = await writer.close()
        assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, -1)

    run(scenario)


@pytest.mark.parametrize("recovered", [False, True])
def test_a_fenced_writer_without_entries_closes_its_ledger_unless_another_client_recovered_it(recovered: bool) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await create(client)
        if recovered:
            other = await cluster.client()
            await (await other.open_ledger(writer.ledger_id, recover=True)).close()
        for bookie in cluster.bookies.values():
            bookie.fault = lambda request: Status.FENCED
        with pytest.raises(LedgerFencedError):
            await writer.append(b"x")
        metadata = await writer.close()
        assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, -1)

    run(scenario)


@pytest.mark.parametrize("known", [2, 3])
def test_only_so_many_known_ids_in_a_row_are_skipped(known: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh_ids, "LEDGER_IDS_SKIPPED_MAX", 3)

    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        next(iter(cluster.bookies.values())).deleted |= set(range(1, known + 1))
        if known < 3:
            assert (await create(client)).ledger_id == 3
            return
        with pytest.raises(LedgerIdInUseError, match="3 consecutive ledger ids are in use"):
            await create(client)
        assert (await create(client)).ledger_id == 4, "the next attempt continues behind them"

    run(scenario)
