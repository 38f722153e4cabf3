"""Tests reads while replicas are slow or silent: a further one is read, and the first valid response wins."""

import asyncio

import pytest

from quire_bookie.client import LedgerClient, LedgerReader, LedgerWriter
from quire_bookie.errors import BookieIoError, ConfigError, DigestMismatchError, LedgerError, NoSuchEntryError
from quire_bookie.model import EntryId
from quire_bookie.settings.client import ClientSettings
from quire_bookie.wire.messages import AddRequest, BatchReadRequest, ReadRequest, Status
from tests.unit.bookie.client.cluster import Cluster, run
from tests.unit.bookie.client.fake_bookie import Asked, FakeBookie, Fault

SETTINGS = ClientSettings(
    add_timeout_s=4.0, read_timeout_s=30.0, connect_timeout_s=2.0, suspect_s=5.0, speculative_read_first_s=0.5
)
NEVER = ClientSettings(read_timeout_s=30.0, speculative_read_first_s=0)


async def _written(client: LedgerClient, count: int, quorums: tuple[int, int, int]) -> LedgerWriter:
    writer = await client.create_ledger(ensemble_size=quorums[0], write_quorum=quorums[1], ack_quorum=quorums[2])
    writer.submit([b"entry %d" % i for i in range(count)])
    await writer.close()
    await asyncio.sleep(1)
    return writer


def _holders(cluster: Cluster, writer: LedgerWriter) -> list[FakeBookie]:
    return [cluster.bookies[bookie] for bookie in writer.metadata.segments[0].ensemble]


def _reads(fault: Status | float) -> Fault:
    def on(request: Asked) -> Status | float | None:
        return None if isinstance(request, AddRequest) else fault

    return on


def _asked(bookie: FakeBookie) -> int:
    return sum(isinstance(request, ReadRequest | BatchReadRequest) for request in bookie.asked)


async def _timed(reader: LedgerReader, first: int, last: int) -> float:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    entries = await reader.read(EntryId(first), EntryId(last))
    assert [bytes(entry.payload) for entry in entries] == [b"entry %d" % i for i in range(first, last + 1)]
    return loop.time() - began_s


@pytest.mark.parametrize("last", [0, 9])
def test_a_silent_replica_delays_a_read_by_the_first_wait_only(last: int) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _written(client, 10, (3, 3, 2))
        _holders(cluster, writer)[0].fault = _reads(-1.0)
        reader = await client.open_ledger(writer.ledger_id, recover=False)
        assert 0.5 <= await _timed(reader, 0, last) < 0.7
        assert await _timed(reader, 0, last) < 0.1, "the slow replica is not read first again"
        assert client.replica_health.speculative_reads == 1

    run(scenario, settings=SETTINGS)


def test_striped_reads_are_speculated_entry_by_entry() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _written(client, 30, (3, 2, 2))
        _holders(cluster, writer)[1].fault = _reads(20.0)
        reader = await client.open_ledger(writer.ledger_id, recover=False)
        assert await _timed(reader, 0, 29) < 0.7

    run(scenario, settings=SETTINGS)


def test_each_further_replica_is_read_after_a_longer_wait() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _written(client, 1, (3, 3, 2))
        first, second, _ = _holders(cluster, writer)
        first.fault = second.fault = _reads(-1.0)
        reader = await client.open_ledger(writer.ledger_id, recover=False)
        assert 1.5 <= await _timed(reader, 0, 0) < 1.8

    run(scenario, settings=SETTINGS)


def test_a_read_is_not_delayed_by_the_longer_wait_of_another() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _written(client, 2, (3, 3, 2))
        first, second, _ = _holders(cluster, writer)
        first.fault = second.fault = _reads(-1.0)
        reader = await client.open_ledger(writer.ledger_id, recover=False)
        waiting = asyncio.ensure_future(reader.read(EntryId(0), EntryId(0)))
        await asyncio.sleep(0.6)  # the second replica was read, and may take a whole second
        assert await _timed(reader, 1, 1) < 0.6
        assert not waiting.done()
        await waiting

    run(scenario, settings=SETTINGS)


def test_without_speculation_only_a_response_or_a_timeout_continues_a_read() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _written(client, 1, (3, 3, 2))
        _holders(cluster, writer)[0].fault = _reads(3.0)
        reader = await client.open_ledger(writer.ledger_id, recover=False)
        assert 3.0 <= await _timed(reader, 0, 0) < 3.2
        assert [_asked(bookie) for bookie in _holders(cluster, writer)[1:]] == [0, 0]

    run(scenario, settings=NEVER)


def test_fast_replicas_are_read_once() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _written(client, 20, (3, 3, 2))
        reader = await client.open_ledger(writer.ledger_id, recover=False)
        for entry in range(20):
            await _timed(reader, entry, entry)
        await asyncio.sleep(10)
        assert sum(_asked(bookie) for bookie in cluster.bookies.values()) == 20

    run(scenario, settings=SETTINGS)


@pytest.mark.parametrize("last", [0, 5])
def test_a_damaged_response_does_not_win_over_a_later_valid_one(last: int) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _written(client, 6, (3, 3, 2))
        slow, damaged, silent = _holders(cluster, writer)
        stored = damaged.ledgers[writer.ledger_id].entries
        stored[0] = stored[0][:-1] + b"?"
        slow.fault, silent.fault = _reads(2.0), _reads(-1.0)
        reader = await client.open_ledger(writer.ledger_id, recover=False)
        assert 2.0 <= await _timed(reader, 0, last) < 2.2

    run(scenario, settings=SETTINGS)


@pytest.mark.parametrize("last", [0, 5])
def test_no_entry_is_reported_as_missing_while_a_slow_replica_may_hold_it(last: int) -> None:
    """The other replicas lack the entry; the slow one has it."""

    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _written(client, 6, (3, 3, 2))
        slow, *others = _holders(cluster, writer)
        slow.fault = _reads(6.0)
        for bookie in others:
            del bookie.ledgers[writer.ledger_id].entries[0]
        reader = await client.open_ledger(writer.ledger_id, recover=False)
        assert await _timed(reader, 0, last) >= 6.0

    run(scenario, settings=SETTINGS)


def test_the_error_contains_the_response_of_each_replica() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _written(client, 1, (3, 3, 2))
        gone, broken, damaged = _holders(cluster, writer)
        del gone.ledgers[writer.ledger_id].entries[0]
        broken.fault = _reads(Status.IO_ERROR)
        stored = damaged.ledgers[writer.ledger_id].entries
        stored[0] = stored[0][:-1] + b"?"
        reader = await client.open_ledger(writer.ledger_id, recover=False)
        with pytest.raises(LedgerError) as caught:
            await reader.read(EntryId(0), EntryId(0))
        assert isinstance(caught.value, BookieIoError | DigestMismatchError)
        assert not isinstance(caught.value, NoSuchEntryError)
        for bookie in (gone, broken, damaged):
            assert f"{bookie.name}: " in str(caught.value)
        assert "ENOENTRY" in str(caught.value)
        assert "EIO" in str(caught.value)

    run(scenario, settings=SETTINGS)


def test_a_cancelled_read_leaves_nothing_behind() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _written(client, 6, (3, 3, 2))
        for bookie in _holders(cluster, writer):
            bookie.fault = _reads(1.0)
        reader = await client.open_ledger(writer.ledger_id, recover=False)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await reader.read(EntryId(0), EntryId(5))
        await asyncio.sleep(5)
        for bookie in _holders(cluster, writer):
            bookie.fault = lambda request: None
        await _timed(reader, 0, 5)

    run(scenario, settings=SETTINGS)


@pytest.mark.parametrize(
    "wrong",
    [
        {"speculative_read_first_s": -1.0},
        {"speculative_read_first_s": 6.0, "speculative_read_max_s": 5.0},
        {"speculative_read_growth": 0.5},
    ],
)
def test_speculative_waits_that_do_not_grow_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        ClientSettings(**wrong)  # type: ignore[arg-type]
