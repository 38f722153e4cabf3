"""Tests creating, listing and deleting ledgers, and the choice of their bookies."""

import asyncio
from dataclasses import replace

import pytest

from quire_bookie.client import LedgerClient
from quire_bookie.client.ledger_handle import LedgerHandle
from quire_bookie.client.recovery import recover_ledger
from quire_bookie.env.clock import SystemClock
from quire_bookie.errors import ConfigError, LedgerError, NoSuchLedgerError, NotEnoughBookiesError
from quire_bookie.metadata import layout
from quire_bookie.metadata.store import Versioned
from quire_bookie.metadata.under_replication import UnderReplication
from quire_bookie.model import LEDGER_TOKEN, BookieId, LedgerId, LedgerMetadata, LedgerState
from quire_bookie.quorum.wanted_copies import missing_copies
from quire_bookie.settings.client import ClientSettings
from tests.sim.metadata import SimMetadataStore
from tests.unit.bookie.client.cluster import QUICK, Cluster, run


async def _create(client: LedgerClient, size: int = 3) -> LedgerId:
    writer = await client.create_ledger(ensemble_size=size, write_quorum=size, ack_quorum=size, custom={"k": b"v"})
    return writer.ledger_id


def test_a_new_ledger_is_open_empty_and_on_distinct_bookies() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        metadata = await client.read_metadata(await _create(client))
        assert metadata.state is LedgerState.OPEN
        assert set(metadata.segments[0].ensemble) == client.writable_bookies
        assert dict(metadata.custom) == {"k": b"v", LEDGER_TOKEN: metadata.token}

    run(scenario)


def test_ledger_ids_are_unique_across_clients() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        clients = [client, await cluster.client(), await cluster.client()]
        ids = await asyncio.gather(*(_create(one) for one in clients for _ in range(10)))
        assert len(set(ids)) == 30
        assert sorted([ledger async for ledger in client.list_ledgers()]) == sorted(ids)

    run(scenario)


def test_a_taken_id_is_skipped() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        first = await _create(client)
        cluster.metadata.write(layout.ledger_path(LedgerId(first + 1)), b"of another client", None)
        assert await _create(client) == first + 2

    run(scenario)


def test_a_create_succeeds_when_the_metadata_store_loses_responses() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        cluster.metadata.unknown_chance = 0.1
        ids = [await _create(client) for _ in range(5)]
        cluster.metadata.unknown_chance = 0.0
        assert len(set(ids)) == 5
        assert sorted([ledger async for ledger in client.list_ledgers()]) == sorted(ids), "none is left behind"

    for seed in range(10):
        run(scenario, seed=seed)


def test_too_few_bookies_are_refused() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        with pytest.raises(NotEnoughBookiesError, match=r"4 .* 3"):
            await _create(client, 4)

    run(scenario)


@pytest.mark.parametrize("quorums", [(2, 3, 2), (3, 2, 3), (3, 3, 0), (0, 0, 0)])
def test_impossible_quorums_are_refused(quorums: tuple[int, int, int]) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        with pytest.raises(LedgerError, match="quorum"):
            await client.create_ledger(ensemble_size=quorums[0], write_quorum=quorums[1], ack_quorum=quorums[2])

    run(scenario)


def test_an_unreachable_bookie_is_avoided_until_it_is_reachable_again() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        changes: list[frozenset[BookieId]] = []
        remove = client.on_bookies_changed(lambda: changes.append(client.writable_bookies))
        dead = BookieId("b1")
        cluster.kill_bookie(dead)
        writer = await client.create_ledger(ensemble_size=4, write_quorum=4, ack_quorum=3)
        await writer.append(b"finds out")
        assert writer.degraded
        assert changes[-1] == client.writable_bookies == {BookieId("b0"), BookieId("b2"), BookieId("b3")}
        for _ in range(5):
            assert dead not in (await client.read_metadata(await _create(client))).segments[0].ensemble
        await cluster.restart_bookie("b1")
        await asyncio.sleep(2)
        assert dead in client.writable_bookies
        remove()
        assert dead in (await client.read_metadata(await _create(client, 4))).segments[0].ensemble

    run(scenario, bookies=4)


def test_a_bookie_that_registers_is_used() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        await cluster.start_bookie("new")
        await asyncio.sleep(1)
        assert BookieId("new") in client.writable_bookies
        await _create(client, 4)

    run(scenario)


def test_a_deleted_ledger_cannot_be_opened() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        ledger = await _create(client)
        await client.delete_ledger(ledger)
        for recover in (False, True):
            with pytest.raises(NoSuchLedgerError):
                await client.open_ledger(ledger, recover=recover)

    run(scenario)


@pytest.mark.parametrize(
    "wrong",
    [
        {"add_timeout_s": 0.0},
        {"writer_pending_bytes_max": 0},
        {"batch_read_bytes_max": 100, "frame_bytes_max": 50},
        {"retry_backoff_s": (2.0, 1.0)},
    ],
)
def test_invalid_settings_are_refused_with_their_value(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="ledger client"):
        ClientSettings(**wrong)  # type: ignore[arg-type]


def test_one_client_runs_one_recovery_of_a_ledger_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way: list[int] = []
    most: list[int] = []

    async def slowly(handle: LedgerHandle, stored: Versioned[LedgerMetadata]) -> Versioned[LedgerMetadata]:
        under_way.append(1)
        most.append(len(under_way))
        await asyncio.sleep(1.0)
        under_way.pop()
        return await recover_ledger(handle, stored)

    monkeypatch.setattr("quire_bookie.client.ledger_client.recover_ledger", slowly)

    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        ledger = await _create(client)
        other = await cluster.client()
        first, second = (asyncio.create_task(other.open_ledger(ledger, recover=True)) for _ in range(2))
        await first
        await other.open_ledger(ledger, recover=True)  # released by the first, not yet acquired by the second
        await second
        assert most == [1, 1, 1]

    run(scenario)


# ---- several bookies on one machine
APART = replace(QUICK, distinct_machines=True)


async def start_pairs(cluster: Cluster, machines: int) -> None:
    """Start two bookies on each machine m1, m2 and so on."""
    for number in range(2 * machines):
        await cluster.start_bookie(f"p{number}", f"m{number // 2 + 1}")
    await asyncio.sleep(1)


def test_no_two_bookies_of_a_new_ledger_are_on_one_machine() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        await start_pairs(cluster, 3)
        for _ in range(30):
            (segment,) = (await client.read_metadata(await _create(client))).segments
            assert {int(bookie[1:]) // 2 for bookie in segment.ensemble} == {0, 1, 2}

    run(scenario, bookies=0)


def test_with_too_few_machines_copies_share_one_unless_that_is_refused() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        await start_pairs(cluster, 2)
        assert client.ensemble_max == 4
        await _create(client)
        strict = await cluster.client(APART)
        assert strict.ensemble_max == 2
        with pytest.raises(NotEnoughBookiesError, match="2 machines"):
            await _create(strict)

    run(scenario, bookies=0)


def test_with_too_few_distinct_machines_a_ledger_that_may_be_narrow_has_a_copy_on_each() -> None:
    async def scenario(cluster: Cluster, _: LedgerClient) -> None:
        await start_pairs(cluster, 2)
        client = await cluster.client(APART)
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2, fewer_bookies=True)
        metadata = await client.read_metadata(writer.ledger_id)
        assert (metadata.ensemble_size, metadata.write_quorum, missing_copies(metadata)) == (2, 2, 1)
        assert {int(bookie[1:]) // 2 for bookie in metadata.segments[0].ensemble} == {0, 1}
        assert await UnderReplication(SimMetadataStore(cluster.metadata), SystemClock()).read(writer.ledger_id)
        await cluster.start_bookie("other", "m3")
        await asyncio.sleep(1)
        assert client.ensemble_max == 3

    run(scenario, bookies=0)
