"""Tests reads from bookies in memory, some of them damaged, silent or dead."""

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire_bookie.client import LedgerClient, LedgerEntry, LedgerReader, LedgerWriter
from quire_bookie.client.reading import ledger_reader
from quire_bookie.errors import (
    BookieIoError,
    BookieUnavailableError,
    DigestMismatchError,
    LedgerClosedError,
    LedgerError,
    NoSuchEntryError,
    QuorumError,
)
from quire_bookie.metadata.layout import ledger_path
from quire_bookie.metadata.ledger_metadata import encode_ledger_metadata
from quire_bookie.model import EntryId, LedgerState, Segment
from quire_bookie.settings.client import ClientSettings
from quire_bookie.wire.messages import AddRequest, BatchReadRequest, ReadRequest, Status
from tests.unit.bookie.client.cluster import Cluster, run
from tests.unit.bookie.client.fake_bookie import FakeBookie


async def _written(
    client: LedgerClient, payloads: list[bytes], quorums: tuple[int, int, int] = (3, 3, 2)
) -> LedgerWriter:
    writer = await client.create_ledger(ensemble_size=quorums[0], write_quorum=quorums[1], ack_quorum=quorums[2])
    if payloads:
        writer.submit(payloads)
    await writer.close()
    await asyncio.sleep(1)  # until the last replica has it too
    return writer


async def _reader(client: LedgerClient, writer: LedgerWriter) -> LedgerReader:
    return await client.open_ledger(writer.ledger_id, recover=False)


def _payloads(entries: list[LedgerEntry]) -> list[bytes]:
    return [bytes(entry.payload) for entry in entries]


def _holders(cluster: Cluster, writer: LedgerWriter) -> list[FakeBookie]:
    """Return the bookies of the ledger in ensemble order."""
    return [cluster.bookies[bookie] for bookie in writer.metadata.segments[0].ensemble]


def _stored(bookie: FakeBookie, writer: LedgerWriter) -> dict[int, bytes]:
    ledger = bookie.ledgers.get(writer.ledger_id)
    return {} if ledger is None else ledger.entries


def _damage(bookie: FakeBookie, writer: LedgerWriter, entry: int) -> None:
    stored = bookie.ledgers[writer.ledger_id].entries
    stored[entry] = stored[entry][:-1] + bytes([stored[entry][-1] ^ 1])


def _only_reads(status: Status | float) -> Any:
    return lambda request: None if isinstance(request, AddRequest) else status


@pytest.mark.parametrize("quorums", [(1, 1, 1), (3, 3, 2), (3, 2, 2), (5, 3, 2)])
def test_a_closed_ledger_is_read_in_order_and_in_part(quorums: tuple[int, int, int]) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        written = [b"%d" % i * (i % 7 + 1) for i in range(100)]
        reader = await _reader(client, await _written(client, written, quorums))
        assert reader.is_closed
        assert reader.last_add_confirmed == 99
        assert reader.length == sum(map(len, written))
        assert _payloads(await reader.read(EntryId(0), EntryId(99))) == written
        assert _payloads(await reader.read(EntryId(37), EntryId(41))) == written[37:42]
        assert _payloads(await reader.read(EntryId(99), EntryId(99))) == written[99:]

    run(scenario, bookies=5)


def test_a_reader_follows_its_ledger_to_other_bookies() -> None:
    """Auto-recovery moves the ledger replica by replica while the reader remains open."""

    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        written = [b"%d" % i for i in range(30)]
        writer = await _written(client, written)
        reader = await _reader(client, writer)
        assert _payloads(await reader.read(EntryId(0), EntryId(9))) == written[:10]
        others = [bookie for bookie in cluster.bookies if bookie not in writer.metadata.segments[0].ensemble]
        for bookie in writer.metadata.segments[0].ensemble:
            for other in others:
                cluster.bookies[other].ledgers[writer.ledger_id] = cluster.bookies[bookie].ledgers[writer.ledger_id]
            cluster.kill_bookie(bookie)
        with pytest.raises(BookieUnavailableError):
            await reader.read(EntryId(0), EntryId(29))
        moved = replace(writer.metadata, segments=(Segment(EntryId(0), tuple(others)),))
        cluster.metadata.write(ledger_path(writer.ledger_id), encode_ledger_metadata(moved), None)
        assert _payloads(await reader.read(EntryId(0), EntryId(29))) == written
        assert reader.metadata == moved

    run(scenario, bookies=6)


def test_the_current_replicas_must_be_known_before_an_entry_is_reported_as_missing() -> None:
    """The replicas were moved, the former bookies deleted them, and the metadata cannot be read for a while."""

    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        written = [b"%d" % i for i in range(5)]
        writer = await _written(client, written)
        reader = await _reader(client, writer)
        others = [bookie for bookie in cluster.bookies if bookie not in writer.metadata.segments[0].ensemble]
        for bookie, other in zip(writer.metadata.segments[0].ensemble, others, strict=True):
            cluster.bookies[other].ledgers[writer.ledger_id] = cluster.bookies[bookie].ledgers.pop(writer.ledger_id)
        moved = replace(writer.metadata, segments=(Segment(EntryId(0), tuple(others)),))
        cluster.metadata.write(ledger_path(writer.ledger_id), encode_ledger_metadata(moved), None)
        cluster.metadata.away = True
        for read in (reader.read, writer.read):
            with pytest.raises(QuorumError, match="cannot read the metadata"):
                await read(EntryId(0), EntryId(4))
        cluster.metadata.away = False
        for read in (reader.read, writer.read):
            assert _payloads(await read(EntryId(0), EntryId(4))) == written

    run(scenario, bookies=6)


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2)])
def test_a_read_stops_at_its_byte_limit_but_returns_at_least_one_entry(quorums: tuple[int, int, int]) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        written = [b"x" * 1000 for _ in range(50)]
        reader = await _reader(client, await _written(client, written, quorums))
        some = await reader.read(EntryId(3), EntryId(49), bytes_max=5000)
        assert 4 <= len(some) <= 6
        assert [entry.entry_id for entry in some] == list(range(3, 3 + len(some)))
        assert len(await reader.read(EntryId(3), EntryId(49), bytes_max=1)) == 1

    run(scenario)


def test_equal_quorums_are_read_in_batches_from_one_replica() -> None:
    settings_ = ClientSettings(batch_read_bytes_max=20_000)

    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _written(client, [b"x" * 1000] * 100)
        reader = await _reader(client, writer)
        assert len(await reader.read(EntryId(0), EntryId(99))) == 100
        batches = [r for b in cluster.bookies.values() for r in b.asked if isinstance(r, BatchReadRequest)]
        singles = [r for b in cluster.bookies.values() for r in b.asked if isinstance(r, ReadRequest)]
        assert 5 <= len(batches) <= 8
        assert singles == []
        assert sum(any(isinstance(r, BatchReadRequest) for r in b.asked) for b in cluster.bookies.values()) == 1

    run(scenario, settings=settings_)


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2)])
def test_a_damaged_replica_is_skipped(quorums: tuple[int, int, int]) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        written = [b"entry %d" % i for i in range(30)]
        writer = await _written(client, written, quorums)
        for number, bookie in enumerate(_holders(cluster, writer)):
            for entry in range(30):
                if entry % 3 == number and entry in bookie.ledgers[writer.ledger_id].entries:
                    _damage(bookie, writer, entry)
        reader = await _reader(client, writer)
        assert _payloads(await reader.read(EntryId(0), EntryId(29))) == written

    run(scenario)


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2)])
def test_reads_succeed_when_one_bookie_is_dead(quorums: tuple[int, int, int]) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        written = [b"entry %d" % i for i in range(30)]
        writer = await _written(client, written, quorums)
        for victim in writer.metadata.segments[0].ensemble[:1]:
            cluster.kill_bookie(victim)
        reader = await _reader(client, writer)
        for _ in range(3):
            assert _payloads(await reader.read(EntryId(0), EntryId(29))) == written

    run(scenario)


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ((Status.NO_ENTRY, Status.NO_ENTRY, Status.NO_LEDGER), NoSuchEntryError),
        ((Status.NO_ENTRY, Status.IO_ERROR, Status.NO_ENTRY), BookieIoError),
        ((Status.NO_ENTRY, -1.0, Status.NO_LEDGER), BookieUnavailableError),
        ((Status.NO_ENTRY, Status.NO_ENTRY, "damage"), DigestMismatchError),
        (("damage", "damage", "damage"), DigestMismatchError),
        ((Status.NO_LEDGER, Status.NO_LEDGER, Status.NO_LEDGER), NoSuchEntryError),
    ],
)
@pytest.mark.parametrize("count", [1, 3])
def test_no_such_entry_is_reported_only_if_all_replicas_report_it(
    faults: tuple[Status | float | str, ...], expected: type[LedgerError], count: int
) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _written(client, [b"entry"] * count)
        for bookie, fault in zip(_holders(cluster, writer), faults, strict=True):
            if isinstance(fault, str):
                _damage(bookie, writer, 0)
            else:
                bookie.fault = _only_reads(fault)
        reader = await _reader(client, writer)
        with pytest.raises(expected):
            await reader.read(EntryId(0), EntryId(count - 1))

    run(scenario)


def test_an_error_after_readable_entries_shortens_the_result() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _written(client, [b"%d" % i for i in range(10)])
        for bookie in _holders(cluster, writer):
            _damage(bookie, writer, 6)
        reader = await _reader(client, writer)
        assert _payloads(await reader.read(EntryId(0), EntryId(9))) == [b"%d" % i for i in range(6)]
        with pytest.raises(DigestMismatchError):
            await reader.read(EntryId(6), EntryId(9))

    run(scenario)


def test_an_open_ledger_is_read_up_to_the_lac_that_its_bookies_know() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        for i in range(5):
            await writer.append(b"%d" % i)
        other = await cluster.client()
        reader = await _reader(other, writer)
        assert not reader.is_closed
        assert reader.last_add_confirmed == 3, "the LAC is in the following entry"
        assert _payloads(await reader.read(EntryId(0), EntryId(3))) == [b"0", b"1", b"2", b"3"]
        with pytest.raises(NoSuchEntryError):
            await reader.read(EntryId(4), EntryId(4))
        await writer.append(b"5")
        assert await reader.read_last_add_confirmed() == 4
        await writer.close()
        assert await reader.read_last_add_confirmed() == 5
        assert reader.is_closed
        assert reader.length == 6
        assert all(not ledger.fenced for bookie in cluster.bookies.values() for ledger in bookie.ledgers.values())

    run(scenario)


def test_an_empty_open_ledger_has_nothing_to_read() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        reader = await _reader(await cluster.client(), writer)
        assert reader.last_add_confirmed == -1
        assert reader.metadata.state is LedgerState.OPEN

    run(scenario)


def test_an_open_ledger_cannot_be_opened_if_its_confirmed_end_may_be_hidden() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await writer.append(b"entry")
        for bookie in _holders(cluster, writer)[:2]:
            bookie.fault = _only_reads(Status.IO_ERROR)
        with pytest.raises(QuorumError):
            await _reader(await cluster.client(), writer)

    run(scenario)


def test_two_concurrent_reads_of_one_entry_both_get_their_response() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _written(client, [b"entry"])
        reader = await _reader(client, writer)
        both = await asyncio.gather(*(reader.read(EntryId(0), EntryId(0)) for _ in range(5)))
        assert [_payloads(entries) for entries in both] == [[b"entry"]] * 5
        single_reads = [r for b in cluster.bookies.values() for r in b.asked if isinstance(r, ReadRequest)]
        assert len(single_reads) == 5

    run(scenario)


def test_a_closed_reader_refuses_reads() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        reader = await _reader(client, await _written(client, [b"entry"]))
        await reader.close()
        with pytest.raises(LedgerClosedError):
            await reader.read(EntryId(0), EntryId(0))

    run(scenario)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_damage_never_returns_wrong_data_nor_hides_a_readable_entry(data: st.DataObject) -> None:
    quorums = data.draw(st.sampled_from([(3, 3, 2), (3, 2, 2), (4, 3, 2)]))
    count = data.draw(st.integers(1, 12))
    faults = data.draw(
        st.lists(st.tuples(st.integers(0, quorums[0] - 1), st.integers(0, count - 1), st.booleans()), max_size=25)
    )
    first = data.draw(st.integers(0, count - 1))

    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        written = [b"entry %d" % i for i in range(count)]
        writer = await _written(client, written, quorums)
        holders = _holders(cluster, writer)
        damaged = set()
        for position, entry, remove in faults:
            stored = _stored(holders[position], writer)
            if entry not in stored or (position, entry) in damaged:
                continue
            damaged.add((position, entry))
            if remove:
                del stored[entry]
            else:
                _damage(holders[position], writer, entry)
        copies = [sum(entry in _stored(holder, writer) for holder in holders) for entry in range(count)]
        bad = [sum(1 for p, e in damaged if e == entry) for entry in range(count)]
        lost = [entry for entry in range(first, count) if bad[entry] == quorums[1]]
        end = lost[0] if lost else count
        reader = await _reader(client, writer)
        try:
            found = _payloads(await reader.read(EntryId(first), EntryId(count - 1)))
        except LedgerError as error:
            assert end == first
            assert isinstance(error, NoSuchEntryError) is (copies[first] == 0)
        else:
            assert found == written[first:end]

    run(scenario, bookies=quorums[0])


def test_single_reads_request_little_more_than_the_byte_limit() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        reader = await _reader(client, await _written(client, [b"x" * 20_000] * 100, (3, 2, 2)))
        assert len(await reader.read(EntryId(0), EntryId(99), bytes_max=100_000)) == 5
        asked = sum(isinstance(r, ReadRequest) for bookie in cluster.bookies.values() for r in bookie.asked)
        assert asked <= 5 + 6

    run(scenario)


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2)])
def test_a_byte_limit_of_zero_still_returns_one_entry(quorums: tuple[int, int, int]) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        reader = await _reader(client, await _written(client, [b"x"] * 10, quorums))
        assert len(await reader.read(EntryId(0), EntryId(9), bytes_max=0)) == 1

    run(scenario)


def test_an_iteration_reads_ahead_after_its_first_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_reader, "ITERATED_READ_BYTES", 10_000)
    answers_after_s, uses_an_entry_s = 0.1, 0.02

    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        written = [b"%04d" % entry * 250 for entry in range(100)]
        reader = await _reader(client, await _written(client, written))
        for bookie in cluster.bookies.values():
            bookie.fault = lambda request: answers_after_s if isinstance(request, BatchReadRequest) else None

        def asked() -> list[int]:
            return sorted(r.first for b in cluster.bookies.values() for r in b.asked if isinstance(r, BatchReadRequest))

        async for entry in reader:
            before = asked()
            await asyncio.sleep(1)
            assert (entry.entry_id, asked()) == (0, before), "nothing is read ahead before the first read is used up"
            break
        began_s, found = cluster.loop.time(), []
        async for entry in reader.entries():
            found.append(bytes(entry))
            await asyncio.sleep(uses_an_entry_s)
        batches = len(asked()) - len(before)
        assert found == written and batches >= 10
        one_by_one_s = batches * answers_after_s + len(written) * uses_an_entry_s
        assert cluster.loop.time() - began_s < 0.75 * one_by_one_s

    run(scenario)


def test_reading_ahead_ends_with_the_iteration_and_its_error_follows_the_entries_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledger_reader, "ITERATED_READ_BYTES", 1_000)

    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _written(client, [b"x" * 100] * 60)
        for bookie in _holders(cluster, writer):
            _damage(bookie, writer, 30)
        reader = await _reader(client, writer)
        found = []
        with pytest.raises(DigestMismatchError):
            async for entry in reader:
                found.append(entry.entry_id)
                await asyncio.sleep(0.01)
        assert found == list(range(30))
        for read in (reader.entries, reader.tail):
            async with contextlib.aclosing(read(EntryId(31))) as entries:
                async for entry in entries:
                    if entry.entry_id > 45:
                        break
                assert [task for task in asyncio.all_tasks() if task.get_name() == "read ahead"]
            assert not [task for task in asyncio.all_tasks() if task.get_name() == "read ahead"]

    run(scenario)
