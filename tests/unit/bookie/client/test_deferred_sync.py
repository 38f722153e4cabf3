"""Tests ledgers with deferred sync on bookies that lose entries not covered by a force."""

import asyncio

import pytest

from quire_bookie.client import LedgerClient, LedgerReader, LedgerWriter
from quire_bookie.client.writing.deferred_writer import DeferredSyncWriter
from quire_bookie.errors import LedgerClosedError, LedgerError, LedgerFencedError, QuorumError
from quire_bookie.metadata.under_replication import UnderReplication
from quire_bookie.model import EntryId, LedgerState
from quire_bookie.wire.messages import AddRequest, ForceRequest, Status
from tests.sim.metadata import SimMetadataStore
from tests.unit.bookie.client.cluster import Cluster, Listener, _Clock, run
from tests.unit.bookie.client.fake_bookie import Asked, FakeBookie, Fault

QUORUMS = [(1, 1, 1), (3, 3, 2), (3, 2, 2), (5, 3, 2)]


async def _create(client: LedgerClient, quorums: tuple[int, int, int] = (3, 3, 2)) -> LedgerWriter:
    writer = await client.create_ledger(
        ensemble_size=quorums[0], write_quorum=quorums[1], ack_quorum=quorums[2], deferred_sync=True
    )
    assert isinstance(writer, DeferredSyncWriter)
    return writer


def _holders(cluster: Cluster, writer: LedgerWriter) -> list[FakeBookie]:
    return [cluster.bookies[bookie] for bookie in writer.metadata.segments[0].ensemble]


def _forces(fault: Status | float) -> Fault:
    def on(request: Asked) -> Status | float | None:
        return fault if isinstance(request, ForceRequest) else None

    return on


async def _read(reader: LedgerReader) -> list[bytes]:
    return [bytes(entry) async for entry in reader]


async def _marked(cluster: Cluster, writer: LedgerWriter) -> set[str]:
    await asyncio.sleep(1)
    mark = await UnderReplication(SimMetadataStore(cluster.metadata), _Clock()).read(writer.ledger_id)
    return set() if mark is None else set(mark.bookies)


@pytest.mark.parametrize("quorums", QUORUMS)
def test_only_a_force_confirms(quorums: tuple[int, int, int]) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _create(client, quorums)
        writer.listener = listener = Listener()
        for i in range(10):
            assert await writer.append(b"entry %d" % i) == i
        assert writer.last_add_confirmed == -1
        assert listener.confirmed == []
        reader = await client.open_ledger(writer.ledger_id, recover=False)
        assert reader.last_add_confirmed == -1, "no header may contain a LAC that is not durable"
        assert await writer.force() == 9
        assert writer.last_add_confirmed == 9
        assert listener.confirmed[-1] == 9
        await writer.append(b"entry 10")
        assert await reader.read_last_add_confirmed() == 9
        assert await _read(reader) == [b"entry %d" % i for i in range(10)]
        with pytest.raises(LedgerError):
            await writer.read(EntryId(10), EntryId(10))

    run(scenario, bookies=5)


@pytest.mark.parametrize("quorums", QUORUMS)
def test_closing_forces_first(quorums: tuple[int, int, int]) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _create(client, quorums)
        writer.submit([b"entry %d" % i for i in range(20)])
        metadata = await writer.close()
        assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, 19)
        assert metadata.length == sum(len(b"entry %d" % i) for i in range(20))
        assert all(not ledger.unsynced for bookie in cluster.bookies.values() for ledger in bookie.ledgers.values())
        assert await writer.close() == metadata
        reader = await client.open_ledger(writer.ledger_id, recover=False)
        assert await _read(reader) == [b"entry %d" % i for i in range(20)]

    run(scenario, bookies=5)


def test_a_force_without_new_entries_sends_no_request() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _create(client)
        assert await writer.force() == -1
        await writer.append(b"entry")
        assert await writer.force() == 0
        await asyncio.sleep(1)
        asked = sum(isinstance(r, ForceRequest) for bookie in cluster.bookies.values() for r in bookie.asked)
        assert await writer.force() == 0
        assert asked == sum(isinstance(r, ForceRequest) for bookie in cluster.bookies.values() for r in bookie.asked)

    run(scenario)


def test_entries_that_a_crashed_bookie_lost_are_not_counted() -> None:
    """Two bookies acknowledge an entry and both crash before the force: it must not be confirmed."""

    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _create(client)
        late = _holders(cluster, writer)[2]
        late.fault = lambda request: -1.0 if isinstance(request, AddRequest) else None
        await writer.append(b"entry")
        for bookie in _holders(cluster, writer)[:2]:
            bookie.hang_up()
            bookie.lose_unsynced()
        with pytest.raises(QuorumError):
            await writer.force()
        assert writer.last_add_confirmed == -1
        metadata = await writer.close()
        assert metadata.last_entry == -1

    run(scenario)


def test_writing_continues_after_one_bookie_crashed_but_it_no_longer_counts() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _create(client)
        for i in range(5):
            await writer.append(b"entry %d" % i)
        await writer.force()
        await writer.append(b"entry 5")
        await asyncio.sleep(1)
        victim = _holders(cluster, writer)[0]
        victim.hang_up()
        victim.lose_unsynced()
        await asyncio.sleep(1)
        assert set(writer.failed_replicas) == {victim.name}
        assert await writer.force() == 5
        await writer.append(b"entry 6")
        await writer.close()
        held = [_holders(cluster, writer)[p].ledgers[writer.ledger_id].entries for p in (1, 2)]
        assert all(set(entries) == set(range(7)) for entries in held)
        assert victim.name in await _marked(cluster, writer), "its copies are incomplete"
        assert writer.ensemble_changes == 0

    run(scenario, bookies=5)


def test_an_idle_connection_may_break_after_everything_was_forced() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _create(client)
        await writer.append(b"entry 0")
        await writer.force()
        await asyncio.sleep(1)
        for bookie in _holders(cluster, writer):
            bookie.hang_up()
        await asyncio.sleep(1)
        assert writer.failed_replicas == {}
        await writer.append(b"entry 1")
        assert await writer.force() == 1

    run(scenario)


@pytest.mark.parametrize("fault", [Status.IO_ERROR, -1.0])
def test_a_bookie_that_cannot_force_is_given_up(fault: Status | float) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _create(client)
        _holders(cluster, writer)[0].fault = _forces(fault)
        for i in range(5):
            await writer.append(b"entry %d" % i)
            assert await writer.force() == i, "two others suffice"
        metadata = await writer.close()
        assert metadata.last_entry == 4
        assert _holders(cluster, writer)[0].name in await _marked(cluster, writer)

    run(scenario)


def test_a_force_without_a_quorum_of_durable_copies_fails_the_writer() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _create(client)
        await writer.append(b"entry 0")
        await writer.force()
        for bookie in _holders(cluster, writer)[:2]:
            bookie.fault = _forces(Status.IO_ERROR)
        await writer.append(b"entry 1")
        with pytest.raises(QuorumError):
            await writer.force()
        metadata = await writer.close()
        assert metadata.last_entry == 0, "only durable entries"
        assert metadata.length == len(b"entry 0")

    run(scenario)


def test_a_recovery_keeps_the_forced_entries() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _create(client)
        for i in range(8):
            await writer.append(b"entry %d" % i)
        await writer.force()
        await writer.append(b"entry 8")
        reader = await (await cluster.client()).open_ledger(writer.ledger_id, recover=True)
        found = await _read(reader)
        assert found[:8] == [b"entry %d" % i for i in range(8)]
        with pytest.raises(LedgerFencedError):
            await writer.append(b"late")
            await writer.force()

    run(scenario)


def test_an_explicit_lac_is_the_last_forced_entry() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _create(client)
        await writer.append(b"entry 0")
        assert await writer.tell_lac() == -1
        await writer.append(b"entry 1")
        await writer.force()
        await writer.append(b"entry 2")
        assert await writer.tell_lac() == 1
        reader = await client.open_ledger(writer.ledger_id, recover=False)
        assert await reader.read_explicit_lac() == 1

    run(scenario)


def test_a_force_covers_entries_that_are_in_flight_when_it_is_called() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _create(client)
        for bookie in _holders(cluster, writer):
            bookie.fault = lambda request: 0.5 if isinstance(request, AddRequest) else None
        writer.submit([b"entry %d" % i for i in range(5)])
        first = asyncio.ensure_future(writer.force())
        await asyncio.sleep(0.1)
        writer.submit([b"later"])
        both = await asyncio.gather(first, writer.force())
        assert both[0] >= 4
        assert both[1] == 5

    run(scenario)


def test_force_of_an_ordinary_ledger_waits_for_its_acknowledgements() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        assert await writer.force() == -1
        writer.submit([b"a", b"b"])
        assert await writer.force() == 1
        assert writer.last_add_confirmed == 1
        assert not any(isinstance(r, ForceRequest) for bookie in cluster.bookies.values() for r in bookie.asked)

    run(scenario)


def _forces_received(cluster: Cluster) -> int:
    return sum(isinstance(r, ForceRequest) for bookie in cluster.bookies.values() for r in bookie.asked)


def test_a_slow_force_is_requested_once() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _create(client)
        for bookie in _holders(cluster, writer):
            bookie.fault = _forces(1.0)
        writer.submit([b"entry %d" % i for i in range(5)])
        assert list(await asyncio.gather(writer.force(), writer.force())) == [4, 4]
        await writer.close()
        assert _forces_received(cluster) == 3

    run(scenario)


def test_losing_a_replica_does_not_cause_a_force() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _create(client)
        _holders(cluster, writer)[0].fault = _forces(Status.IO_ERROR)
        await writer.append(b"entry 0")
        assert await writer.force() == 0
        await asyncio.sleep(1)
        asked = _forces_received(cluster)
        for i in range(1, 10):
            await writer.append(b"entry %d" % i)
            await asyncio.sleep(0.1)
        assert (_forces_received(cluster), writer.last_add_confirmed) == (asked, 0)

    run(scenario)


def test_a_force_includes_bookies_that_acknowledge_later() -> None:
    """The second replica cannot force, the third is late, the fourth is silent."""

    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _create(client, (4, 4, 2))
        _, broken, late, silent = _holders(cluster, writer)
        broken.fault = _forces(Status.IO_ERROR)
        late.fault = lambda request: 1.0 if isinstance(request, AddRequest) else None
        silent.fault = lambda request: -1.0 if isinstance(request, AddRequest) else None
        await writer.append(b"entry")
        async with asyncio.timeout(2):
            assert await writer.force() == 0

    run(scenario, bookies=4)


def test_a_force_of_a_failed_writer_fails_despite_later_responses() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _create(client)
        for bookie in _holders(cluster, writer):
            bookie.fault = _forces(1.0)
        await writer.append(b"entry")
        forcing = asyncio.ensure_future(writer.force())
        await asyncio.sleep(0.5)
        writer.abandon()
        with pytest.raises(LedgerClosedError):
            await forcing
        await asyncio.sleep(1)
        with pytest.raises(LedgerClosedError):
            await writer.force()
        assert writer.last_add_confirmed == -1

    run(scenario)


def test_a_broken_connection_is_harmless_if_nothing_was_left_to_force() -> None:
    """The entry that is not forced yet is on the two other bookies."""

    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _create(client, (3, 2, 2))
        await writer.append(b"entry 0")
        await writer.force()
        await writer.append(b"entry 1")
        _holders(cluster, writer)[0].hang_up()
        await asyncio.sleep(1)
        assert writer.failed_replicas == {}
        await writer.append(b"entry 2")
        assert await writer.force() == 2

    run(scenario)
