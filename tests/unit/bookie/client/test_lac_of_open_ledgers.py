"""Tests how a reader finds the LAC of a ledger that is being written: explicit LACs and long polls."""

import asyncio
from dataclasses import replace

import pytest

from quire_bookie.client import LedgerClient, LedgerReader, LedgerWriter
from quire_bookie.errors import ConfigError, LedgerClosedError, NoSuchLedgerError, QuorumError
from quire_bookie.metadata.layout import ledger_path
from quire_bookie.metadata.ledger_metadata import encode_ledger_metadata
from quire_bookie.model import EntryId
from quire_bookie.settings.client import ClientSettings
from quire_bookie.wire.messages import AddRequest, ReadLacRequest, ReadRequest, Status, WriteLacRequest
from tests.unit.bookie.client.cluster import QUICK, Cluster, run
from tests.unit.bookie.client.fake_bookie import FakeBookie

TELLING = replace(QUICK, explicit_lac_interval_s=0.5)
QUORUMS = [(1, 1, 1), (3, 3, 2), (3, 2, 2), (5, 3, 2)]


async def _open(
    cluster: Cluster, client: LedgerClient, quorums: tuple[int, int, int] = (3, 3, 2), entries: int = 5
) -> tuple[LedgerWriter, LedgerReader]:
    """Create a ledger that is being written, and open a reader in another client."""
    writer = await client.create_ledger(ensemble_size=quorums[0], write_quorum=quorums[1], ack_quorum=quorums[2])
    for i in range(entries):
        await writer.append(b"entry %d" % i)
    reader = await (await cluster.client()).open_ledger(writer.ledger_id, recover=False)
    return writer, reader


def _holders(cluster: Cluster, writer: LedgerWriter) -> list[FakeBookie]:
    return [cluster.bookies[bookie] for bookie in writer.metadata.segments[-1].ensemble]


def _lacs_received(cluster: Cluster) -> list[int]:
    return [r.lac for bookie in cluster.bookies.values() for r in bookie.asked if isinstance(r, WriteLacRequest)]


# ---- explicit LACs
@pytest.mark.parametrize("quorums", QUORUMS)
def test_a_writer_that_pauses_publishes_its_last_entry(quorums: tuple[int, int, int]) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        _, reader = await _open(cluster, client, quorums)
        assert reader.last_add_confirmed < 4
        await asyncio.sleep(1.5)
        assert await reader.read_last_add_confirmed() < 4, "no entry carries it"
        assert await reader.read_explicit_lac() == 4
        assert bytes((await reader.read(EntryId(4), EntryId(4)))[0]) == b"entry 4"
        assert _lacs_received(cluster) == [4] * quorums[0], "once, to each bookie"
        await asyncio.sleep(5)
        assert len(_lacs_received(cluster)) == quorums[0]

    run(scenario, bookies=5, settings=TELLING)


def test_a_writer_publishes_no_lac_while_entries_follow_and_none_by_default() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        talking = await cluster.client(TELLING)
        writers = [(await _open(cluster, each, entries=1))[0] for each in (client, talking)]
        for _ in range(30):
            await asyncio.sleep(0.1)
            for writer in writers:
                await writer.append(b"more")
        assert _lacs_received(cluster) == []
        await writers[0].close()
        await asyncio.sleep(2)
        assert len(_lacs_received(cluster)) == 3

    run(scenario)


def test_unconfirmed_entries_are_not_published() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, _ = await _open(cluster, client)
        for bookie in _holders(cluster, writer)[:2]:
            bookie.fault = lambda request: -1.0 if isinstance(request, AddRequest) else None
        writer.submit([b"in flight"])
        await asyncio.sleep(1.5)
        assert set(_lacs_received(cluster)) == {4}

    run(scenario, settings=TELLING)


def test_a_lac_that_too_few_bookies_stored_is_published_again() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, reader = await _open(cluster, client)
        for bookie in _holders(cluster, writer)[:2]:
            bookie.fault = lambda request: Status.IO_ERROR if isinstance(request, WriteLacRequest) else None
        with pytest.raises(QuorumError):
            await writer.tell_lac()
        for bookie in _holders(cluster, writer):
            bookie.fault = lambda request: None
        assert await writer.tell_lac() == 4
        assert await reader.read_explicit_lac() == 4

    run(scenario)


def test_a_closed_or_failed_writer_publishes_no_lac() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, _ = await _open(cluster, client)
        await writer.close()
        with pytest.raises(LedgerClosedError):
            await writer.tell_lac()
        other, _ = await _open(cluster, client)
        other.abandon()
        await asyncio.sleep(3)
        assert _lacs_received(cluster) == []

    run(scenario, settings=TELLING)


def test_a_damaged_explicit_lac_is_ignored() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, reader = await _open(cluster, client)
        await writer.tell_lac()
        for bookie in _holders(cluster, writer):
            ledger = bookie.ledgers[writer.ledger_id]
            assert ledger.packet is not None
            ledger.packet = ledger.packet[:15] + b"\x63" + ledger.packet[16:]
        with pytest.raises(QuorumError):
            await reader.read_explicit_lac()
        assert reader.last_add_confirmed == 3

    run(scenario)


def test_one_valid_replica_of_an_explicit_lac_suffices_if_the_others_respond() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, reader = await _open(cluster, client)
        await writer.tell_lac()
        for bookie in _holders(cluster, writer)[:2]:
            bookie.ledgers[writer.ledger_id].packet = None
        assert await reader.read_explicit_lac() == 4
        cluster.kill_bookie(writer.metadata.segments[0].ensemble[0])
        assert await reader.read_explicit_lac() == 4

    run(scenario)


def test_a_password_protects_explicit_lacs_too() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2, password=b"secret")
        await writer.append(b"entry")
        await writer.tell_lac()
        reader = await client.open_ledger(writer.ledger_id, password=b"secret", recover=False)
        assert await reader.read_explicit_lac() == 0

    run(scenario)


# ---- long polls
@pytest.mark.parametrize("quorums", QUORUMS)
def test_a_waiting_reader_finds_an_entry_when_the_next_one_is_written(quorums: tuple[int, int, int]) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        loop = asyncio.get_running_loop()
        writer, reader = await _open(cluster, client, quorums)
        waiting = asyncio.ensure_future(reader.wait_for_lac(reader.last_add_confirmed, 60.0))
        await asyncio.sleep(20)
        assert not waiting.done()
        began_s = loop.time()
        await writer.append(b"entry 5")
        assert await waiting == 4
        assert loop.time() - began_s < 0.3

    run(scenario, bookies=5)


def test_a_waiting_reader_finds_an_explicit_lac() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, reader = await _open(cluster, client)
        waiting = asyncio.ensure_future(reader.wait_for_lac(EntryId(3), 60.0))
        await asyncio.sleep(3)
        await writer.tell_lac()
        assert await waiting == 4

    run(scenario)


def test_waiting_ends_with_its_time() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        loop = asyncio.get_running_loop()
        _, reader = await _open(cluster, client)
        began_s = loop.time()
        assert await reader.wait_for_lac(EntryId(3), 7.0) == 3
        assert 7.0 <= loop.time() - began_s < 7.5
        began_s = loop.time()
        assert await reader.wait_for_lac(EntryId(1), 7.0) == 3
        assert loop.time() == began_s, "known already"

    run(scenario)


def test_an_idle_wait_sends_few_requests_to_bookies_and_metadata() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        _, reader = await _open(cluster, client)
        before = sum(len(bookie.asked) for bookie in cluster.bookies.values())
        await reader.wait_for_lac(EntryId(3), 100.0)
        assert sum(len(bookie.asked) for bookie in cluster.bookies.values()) - before < 30

    run(scenario)


def test_a_waiting_reader_notices_that_the_ledger_was_closed() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, reader = await _open(cluster, client)
        waiting = asyncio.ensure_future(reader.wait_for_lac(EntryId(4), 60.0))
        await asyncio.sleep(10)
        await writer.close()
        async with asyncio.timeout(6):
            assert await waiting == 4
        assert reader.is_closed

    run(scenario)


def test_a_waiting_reader_fails_if_its_ledger_was_deleted() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, reader = await _open(cluster, client)
        waiting = asyncio.ensure_future(reader.wait_for_lac(EntryId(3), 60.0))
        await asyncio.sleep(1)
        await client.delete_ledger(writer.ledger_id)
        with pytest.raises(NoSuchLedgerError):
            await waiting

    run(scenario)


def test_a_reader_does_not_accept_another_ledger_with_the_same_id() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, reader = await _open(cluster, client)
        assert writer.metadata.c_token
        other = replace(writer.metadata, c_token=writer.metadata.c_token + 1)
        cluster.metadata.write(ledger_path(writer.ledger_id), encode_ledger_metadata(other), None)
        with pytest.raises(NoSuchLedgerError):
            await reader.read_last_add_confirmed()
        with pytest.raises(NoSuchLedgerError):
            await reader.wait_for_lac(EntryId(3), 5.0)
        updated_by_java = replace(writer.metadata, c_token=0)
        cluster.metadata.write(ledger_path(writer.ledger_id), encode_ledger_metadata(updated_by_java), None)
        assert await reader.read_last_add_confirmed() == 3

    run(scenario)


@pytest.mark.parametrize("fault", [-1.0, Status.IO_ERROR, "dead"])
def test_polls_continue_at_the_next_bookie_after_a_failure(fault: float | Status | str) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        loop = asyncio.get_running_loop()
        writer, reader = await _open(cluster, client)
        victim = writer.metadata.segments[0].ensemble[0]
        if isinstance(fault, str):
            cluster.kill_bookie(victim)
        else:
            faults: dict[type, float | Status] = {ReadRequest: fault, ReadLacRequest: fault}
            cluster.bookies[victim].fault = lambda request: faults.get(type(request))
        for i in range(5, 15):
            began_s = loop.time()
            await writer.append(b"entry %d" % i)
            assert await reader.wait_for_lac(EntryId(i - 2), 30.0) == i - 1
            assert loop.time() - began_s < 4.0

    run(scenario)


def test_a_reported_lac_without_a_digest_is_ignored() -> None:
    """One bookie reports a LAC that is too high; the others report the right one."""

    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, reader = await _open(cluster, client)
        boaster, *_ = _holders(cluster, writer)
        boaster.ledgers[writer.ledger_id].lac = 77
        assert await reader.wait_for_lac(EntryId(3), 5.0) == 3
        waiting = asyncio.ensure_future(reader.wait_for_lac(EntryId(3), 30.0))
        await asyncio.sleep(1)
        await writer.append(b"entry 5")
        assert await waiting == 4

    run(scenario)


def test_waiting_on_a_ledger_without_entries_finds_the_first() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        loop = asyncio.get_running_loop()
        writer, reader = await _open(cluster, client, entries=0)
        waiting = asyncio.ensure_future(reader.wait_for_lac(EntryId(-1), 60.0))
        await asyncio.sleep(10)
        began_s = loop.time()
        await writer.append(b"entry 0")
        await writer.append(b"entry 1")
        assert await waiting == 0
        assert loop.time() - began_s < 1.0

    run(scenario)


def test_waiting_continues_while_the_metadata_cannot_be_read() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, reader = await _open(cluster, client)
        cluster.metadata.away = True
        waiting = asyncio.ensure_future(reader.wait_for_lac(EntryId(3), 60.0))
        await asyncio.sleep(10)
        await writer.append(b"entry 5")
        assert await waiting == 4
        cluster.metadata.away = False

    run(scenario)


# ---- iterating
@pytest.mark.parametrize("quorums", QUORUMS)
def test_iterating_over_a_reader_ends_at_the_lac(quorums: tuple[int, int, int]) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, reader = await _open(cluster, client, quorums)
        await writer.tell_lac()
        await reader.read_explicit_lac()
        await writer.append(b"later")
        assert [bytes(entry) async for entry in reader] == [b"entry %d" % i for i in range(5)]
        some = [entry.entry_id async for entry in reader.entries(EntryId(2), EntryId(3))]
        assert some == [2, 3]

    run(scenario, bookies=5)


def test_a_tail_follows_the_writer_to_the_end_in_order() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, reader = await _open(cluster, client)
        seen: list[bytes] = []

        async def follow() -> None:
            async for entry in reader.tail():
                seen.append(bytes(entry))

        following = asyncio.ensure_future(follow())
        for i in range(5, 60):
            await asyncio.sleep(0.3)
            await writer.append(b"entry %d" % i)
            assert len(seen) >= i - 1
        await writer.close()
        async with asyncio.timeout(60):
            await following
        assert seen == [b"entry %d" % i for i in range(60)]

    run(scenario)


def test_a_tail_continues_through_a_recovery_and_ends_at_the_end_of_the_ledger() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, reader = await _open(cluster, client)
        following = asyncio.ensure_future(_payloads(reader))
        await asyncio.sleep(2)
        await (await cluster.client()).open_ledger(writer.ledger_id, recover=True)
        async with asyncio.timeout(6):
            assert await following == [b"entry %d" % i for i in range(5)]

    run(scenario)


async def _payloads(reader: LedgerReader) -> list[bytes]:
    return [bytes(entry) async for entry in reader.tail()]


def test_a_negative_interval_is_refused() -> None:
    with pytest.raises(ConfigError):
        ClientSettings(explicit_lac_interval_s=-1.0)
