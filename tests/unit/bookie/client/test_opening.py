"""Tests opening ledgers and clients by `await` and by `async with`."""

import asyncio
from pathlib import Path

import pytest

from quire_bookie.client import LedgerClient, WriterState
from quire_bookie.errors import LedgerClosedError, LedgerFencedError, NotEnoughBookiesError
from quire_bookie.model import LEDGER_TOKEN, EntryId, LedgerState
from tests.unit.bookie.client.cluster import Cluster, run


def test_a_writer_is_closed_at_the_end_of_its_block() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        async with client.create_ledger(custom={"owner": b"me"}) as writer:
            assert await writer.append(b"one") == 0
            writer.submit([b"two"])
        metadata = await client.read_metadata(writer.ledger_id)
        assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, 1)
        assert (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum) == (3, 3, 2)
        assert metadata.custom == {"owner": b"me", LEDGER_TOKEN: metadata.token}
        async with client.open_ledger(writer.ledger_id, recover=False) as reader:
            assert [bytes(entry) async for entry in reader] == [b"one", b"two"]
        with pytest.raises(LedgerClosedError):
            await reader.read(EntryId(0), EntryId(0))

    run(scenario)


def test_an_error_in_the_block_closes_the_ledger_and_is_raised() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        with pytest.raises(ZeroDivisionError):
            async with client.create_ledger() as writer:
                await writer.append(b"one")
                raise ZeroDivisionError
        assert (await client.read_metadata(writer.ledger_id)).last_entry == 0

    run(scenario)


def test_an_error_during_the_close_does_not_hide_the_one_in_the_block() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        with pytest.raises(ZeroDivisionError):
            async with client.create_ledger() as writer:
                await writer.append(b"one")
                await (await cluster.client()).open_ledger(writer.ledger_id, recover=True)
                raise ZeroDivisionError
        with pytest.raises(LedgerFencedError):
            async with client.create_ledger() as other:
                await other.append(b"one")
                await (await cluster.client()).open_ledger(other.ledger_id, recover=True)
                await other.append(b"two")

    run(scenario)


def test_a_cancelled_block_leaves_its_ledger_to_a_recovery() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        async def work() -> None:
            async with client.create_ledger() as writer:
                await writer.append(b"one")
                made.set_result(writer)
                await asyncio.sleep(1000)

        made = asyncio.get_running_loop().create_future()
        working = asyncio.ensure_future(work())
        writer = await made
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert writer.state is WriterState.FAILED
        assert (await client.read_metadata(writer.ledger_id)).state is LedgerState.OPEN
        async with client.open_ledger(writer.ledger_id, recover=True) as reader:
            assert [bytes(entry) async for entry in reader] == [b"one"]

    run(scenario)


def test_an_error_of_opening_is_raised_at_the_beginning_of_the_block() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        with pytest.raises(NotEnoughBookiesError):
            async with client.create_ledger(ensemble_size=7):
                raise AssertionError("not reached")

    run(scenario)


def test_an_opening_works_as_a_coroutine_in_tasks_and_timeouts() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await asyncio.wait_for(client.create_ledger(), 10)
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(client.open_ledger(writer.ledger_id, recover=False))
        assert reading.result().ledger_id == writer.ledger_id
        client.create_ledger().close()  # never started: no ledger and no warning
        assert [ledger async for ledger in client.list_ledgers()] == [writer.ledger_id]

    run(scenario)


def test_a_client_that_connected_itself_closes_its_metadata_store(tmp_path: Path) -> None:
    async def work() -> None:
        async with LedgerClient.connect(f"local:{tmp_path}/metadata") as client:
            assert client.writable_bookies == frozenset()
            assert [ledger async for ledger in client.list_ledgers()] == []
        async with LedgerClient.connect(f"local:{tmp_path}/metadata") as again:
            assert again.writable_bookies == frozenset()

    asyncio.run(work())
