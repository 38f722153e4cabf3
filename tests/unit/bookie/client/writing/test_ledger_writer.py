"""Tests the writer with bookies in memory."""

import asyncio
from dataclasses import replace

import pytest

from quire_bookie.client import LedgerClient, LedgerWriter, WriterState
from quire_bookie.errors import (
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    LedgerIdInUseError,
    NoSuchEntryError,
    QuorumError,
)
from quire_bookie.model import BookieId, DigestType, EntryId, LedgerState
from quire_bookie.settings.client import ClientSettings
from quire_bookie.wire.messages import AddRequest, Status
from tests.unit.bookie.client.cluster import QUICK, Cluster, Listener, run
from tests.unit.bookie.client.fake_bookie import Asked


async def _writer(client: LedgerClient, quorums: tuple[int, int, int] = (3, 3, 2)) -> tuple[LedgerWriter, Listener]:
    writer = await client.create_ledger(ensemble_size=quorums[0], write_quorum=quorums[1], ack_quorum=quorums[2])
    listener = Listener()
    writer.listener = listener
    return writer, listener


def _adds(request: Asked) -> bool:
    return isinstance(request, AddRequest)


@pytest.mark.parametrize("quorums", [(1, 1, 1), (2, 2, 2), (3, 3, 2), (3, 2, 2), (3, 2, 1)])
def test_entries_are_appended_read_and_closed(quorums: tuple[int, int, int]) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, listener = await _writer(client, quorums)
        assert [await writer.append(b"entry %d" % i) for i in range(5)] == [0, 1, 2, 3, 4]
        assert writer.submit([b"a", (b"b", b"c"), memoryview(b"d")]) == 5
        closed = await writer.close()
        assert listener.confirmed[-1] == 7
        assert (closed.state, closed.last_entry, closed.length) == (LedgerState.CLOSED, 7, 5 * 7 + 4)
        entries = await writer.read(EntryId(0), EntryId(7))
        assert [bytes(entry.payload) for entry in entries] == [b"entry %d" % i for i in range(5)] + [b"a", b"bc", b"d"]
        assert [entry.entry_id for entry in entries] == list(range(8))
        assert entries[-1].length == closed.length
        await asyncio.sleep(1)
        assert all(cluster.copies(writer, entry) == quorums[1] for entry in range(8))
        assert writer.pending_bytes == 0

    run(scenario)


@pytest.mark.parametrize("digest_type", list(DigestType))
def test_every_digest_can_be_written_and_read(digest_type: DigestType) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await client.create_ledger(
            ensemble_size=1, write_quorum=1, ack_quorum=1, digest_type=digest_type, password=b"secret"
        )
        await writer.append((b"in ", b"parts"))
        assert bytes((await writer.read(EntryId(0), EntryId(0)))[0].payload) == b"in parts"
        assert (await writer.close()).digest_type is digest_type

    run(scenario)


def test_each_entry_carries_the_lac_known_when_it_was_sent() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, _ = await _writer(client)
        writer.submit([b"0", b"1"])
        await writer.append(b"2")
        await writer.append(b"3")
        lacs = [entry.lac for entry in await writer.read(EntryId(0), EntryId(3))]
        assert lacs == [-1, -1, -1, 2]

    run(scenario)


def test_a_ledger_on_three_bookies_survives_the_loss_of_one() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, listener = await _writer(client)
        dropped: list[BookieId] = []
        writer.on_degraded = lambda bookie, error: dropped.append(bookie)
        await writer.append(b"before")
        victim = writer.metadata.segments[0].ensemble[1]
        cluster.kill_bookie(victim)
        for i in range(20):
            await writer.append(b"%d" % i)
        assert writer.degraded
        assert dropped == [victim] == list(writer.failed_replicas)
        assert victim not in client.writable_bookies
        assert (await writer.close()).last_entry == 20
        assert listener.failures == []

    run(scenario)


def test_losing_the_ack_quorum_fails_the_writer_and_close_keeps_the_confirmed_entries() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, listener = await _writer(client)
        await writer.append(b"before")
        for victim in writer.metadata.segments[0].ensemble[:2]:
            cluster.kill_bookie(victim)
        with pytest.raises(QuorumError, match=r"ack quorum of 2: lost .*; last: .*bookie"):
            await writer.append(b"lost")
        assert [type(error) for error in listener.failures] == [QuorumError]
        with pytest.raises(QuorumError):
            writer.submit([b"more"])
        assert writer.state is WriterState.FAILED
        closed = await writer.close()
        assert (closed.last_entry, closed.length) == (0, len(b"before"))
        assert await writer.close() == closed

    run(scenario)


def test_a_bookie_that_never_responds_is_given_up_after_the_add_timeout() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, _ = await _writer(client)
        silent = writer.metadata.segments[0].ensemble[0]
        cluster.bookies[silent].fault = lambda request: -1.0
        started = cluster.loop.time()
        await writer.append(b"goes on")
        assert cluster.loop.time() - started < 1
        assert not writer.degraded
        assert writer.pending_bytes > 0
        await asyncio.sleep(QUICK.add_timeout_s * 1.5)
        assert list(writer.failed_replicas) == [silent]
        assert writer.pending_bytes == 0

    run(scenario)


def test_an_idle_writer_survives_a_broken_connection() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, _ = await _writer(client)
        await writer.append(b"one")
        await asyncio.sleep(1)
        for bookie in cluster.bookies.values():
            bookie.hang_up()
        await asyncio.sleep(1)
        assert not writer.degraded
        await writer.append(b"two")
        assert not writer.degraded

    run(scenario)


def test_adds_are_retried_while_the_bookie_answers_too_many_requests() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, _ = await _writer(client, (2, 2, 2))
        full = cluster.bookies[writer.metadata.segments[0].ensemble[0]]
        refusals = iter([Status.TOO_MANY_REQUESTS] * 4)
        full.fault = lambda request: next(refusals, None) if _adds(request) else None
        writer.submit([b"%d" % i for i in range(10)])
        writer.submit([b"more"])
        assert (await writer.close()).last_entry == 10
        assert not writer.degraded
        await asyncio.sleep(1)
        assert all(cluster.copies(writer, entry) == 2 for entry in range(11))
        assert next(refusals, None) is None

    run(scenario)


def test_only_refused_entries_are_sent_again() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, _ = await _writer(client, (3, 2, 2))
        for bookie in cluster.bookies.values():
            refusals = iter([Status.TOO_MANY_REQUESTS])
            bookie.fault = lambda request, refusals=refusals: next(refusals, None)  # type: ignore[misc]
        writer.submit([b"%d" % i * (i + 1) for i in range(9)])
        await writer.close()
        entries = await writer.read(EntryId(0), EntryId(8))
        assert [bytes(entry.payload) for entry in entries] == [b"%d" % i * (i + 1) for i in range(9)]
        assert all(cluster.copies(writer, entry) == 2 for entry in range(9))

    run(scenario)


@pytest.mark.parametrize(
    ("status", "expected"), [(Status.FENCED, LedgerFencedError), (Status.UNAUTHORIZED, LedgerIdInUseError)]
)
def test_a_fenced_or_refused_writer_fails_at_once(status: Status, expected: type[LedgerError]) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, listener = await _writer(client)
        await writer.append(b"fine")
        cluster.bookies[writer.metadata.segments[0].ensemble[2]].fault = lambda request: status
        for bookie in writer.metadata.segments[0].ensemble[:2]:
            cluster.bookies[bookie].fault = lambda request: 1.0
        writer.submit([b"a", b"b"])
        with pytest.raises(expected):
            await writer.append(b"c")
        await asyncio.sleep(3)
        assert writer.last_add_confirmed == 0, "late acknowledgements confirm nothing"
        assert [type(error) for error in listener.failures] == [expected]
        with pytest.raises(expected):
            writer.submit([b"d"])

    run(scenario)


def test_closing_a_ledger_that_another_client_closed_at_the_same_entry_succeeds() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, _ = await _writer(client)
        await writer.append(b"kept")
        other = await cluster.client()
        reader = await other.open_ledger(writer.ledger_id, recover=True)
        assert reader.last_add_confirmed == 0
        # Same end and same length: nothing was lost.
        assert (await writer.close()).last_entry == 0

    run(scenario)


def test_the_close_of_a_writer_that_lost_entries_to_a_recovery_fails() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, _ = await _writer(client)
        await writer.append(b"kept")
        other = await cluster.client()
        await other.open_ledger(writer.ledger_id, recover=True)
        writer.submit([b"too late"])
        with pytest.raises(LedgerFencedError):
            await writer.close()
        assert writer.state is WriterState.FENCED

    run(scenario)


def test_closing_succeeds_when_the_metadata_store_loses_responses() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, _ = await _writer(client)
        await writer.append(b"entry")
        cluster.metadata.unknown_chance = 0.5
        closed = await writer.close()
        assert (closed.state, closed.last_entry) == (LedgerState.CLOSED, 0)
        cluster.metadata.unknown_chance = 0.0
        assert await client.read_metadata(writer.ledger_id) == closed
        assert await writer.close() == closed

    for seed in range(33, 53):  # none loses three responses in a row
        run(scenario, seed=seed)


def test_no_entry_is_accepted_after_close_began() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, _ = await _writer(client)
        writer.submit([b"in time"])
        closing = asyncio.get_running_loop().create_task(writer.close())
        await asyncio.sleep(0)
        with pytest.raises(LedgerClosedError):
            writer.submit([b"too late"])
        assert (await closing).last_entry == 0

    run(scenario)


def test_a_slow_replica_makes_the_writer_unwritable_until_it_catches_up() -> None:
    settings = ClientSettings(add_timeout_s=60.0, writer_pending_bytes_max=10_000)

    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, listener = await _writer(client)
        drained: list[bool] = []
        writer.on_drained = lambda: drained.append(True)
        cluster.bookies[writer.metadata.segments[0].ensemble[0]].fault = lambda request: 5.0
        writer.submit([b"x" * 1000 for _ in range(20)])
        assert not writer.is_writable
        await asyncio.sleep(1)
        assert listener.confirmed[-1] == 19, "confirmed by the others"
        assert not writer.is_writable
        assert await writer.append(b"waits for bytes") == 20
        assert cluster.loop.time() > 5
        assert drained == [True]
        assert writer.is_writable

    run(scenario, settings=settings)


def test_an_entry_larger_than_a_frame_is_refused_and_nothing_is_sent() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, _ = await _writer(client)
        with pytest.raises(LedgerError, match="limit"):
            writer.submit([b"fits", b"x" * (writer.payload_bytes_max + 1)])
        with pytest.raises(LedgerError, match="no entries"):
            writer.submit([])
        assert writer.last_add_pushed == -1
        assert await writer.append(b"x" * writer.payload_bytes_max) == 0
        assert len((await writer.read(EntryId(0), EntryId(0)))[0].payload) == writer.payload_bytes_max

    run(scenario)


def test_only_confirmed_entries_can_be_read() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, _ = await _writer(client)
        writer.submit([b"in flight"])
        with pytest.raises(NoSuchEntryError):
            await writer.read(EntryId(0), EntryId(0))

    run(scenario)


def test_closing_the_client_fails_open_writers_and_leaves_their_ledgers_open() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, listener = await _writer(client)
        await writer.append(b"entry")
        await client.close()
        assert len(listener.failures) == 1
        with pytest.raises(LedgerClosedError):
            writer.submit([b"more"])
        other = await cluster.client()
        assert (await other.read_metadata(writer.ledger_id)).state is LedgerState.OPEN

    run(scenario)


def test_random_delays_never_confirm_an_entry_with_fewer_than_the_ack_quorum() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        for quorums in [(3, 3, 2), (3, 2, 2), (3, 3, 3), (3, 2, 1)]:
            writer, listener = await _writer(client, quorums)
            chance = cluster.loop.network.chance

            def fault(request: Asked, chance: object = chance) -> Status | float | None:
                draw = chance.random()  # type: ignore[attr-defined]
                return Status.TOO_MANY_REQUESTS if draw < 0.1 else draw * 0.05

            for bookie in cluster.bookies.values():
                bookie.fault = fault

            class Checking(Listener):
                def on_confirmed(self, up_to: EntryId) -> None:
                    super().on_confirmed(up_to)
                    for entry in range(up_to + 1):
                        assert cluster.copies(writer, entry) >= quorums[2]  # noqa: B023

            writer.listener = listener = Checking()
            for size in (1, 7, 2, 30):
                writer.submit([b"x"] * size)
                await asyncio.sleep(0.01)
            assert (await writer.close()).last_entry == 39
            assert listener.confirmed[-1] == 39

    for seed in range(15):
        run(scenario, seed=seed)


def test_an_append_that_waits_for_a_slow_replica_fails_at_the_close() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        cluster.bookies[BookieId("b2")].fault = lambda request: -1 if _adds(request) else None
        writer, _ = await _writer(client)
        writer.submit([b"x" * 2000])
        assert not writer.is_writable
        waiting = asyncio.create_task(writer.append(b"y"))
        await asyncio.sleep(0.5)
        assert (await writer.close()).last_entry == 0
        with pytest.raises(LedgerClosedError):
            await asyncio.wait_for(waiting, 1.0)

    run(scenario, settings=replace(QUICK, writer_pending_bytes_max=1000))


def test_a_bookie_that_hangs_is_avoided_and_its_connection_is_closed() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        cluster.bookies[BookieId("b2")].fault = lambda request: -1 if _adds(request) else None
        writer, listener = await _writer(client)
        writer.submit([b"x"])
        await asyncio.sleep(4.6)
        assert listener.confirmed == [0]
        assert list(writer.failed_replicas) == ["b2"]
        assert BookieId("b2") not in client.writable_bookies
        assert sum(link.stats.losses for link in client.connections) == 1

    run(scenario)
