"""Tests recovery with bookies in memory: confirmed entries remain, the old writer is fenced, gaps end the ledger."""

import asyncio
from dataclasses import replace

import pytest

from quire_bookie.client import LedgerClient, LedgerReader, LedgerWriter
from quire_bookie.errors import LedgerFencedError, QuorumError, UnauthorizedError
from quire_bookie.metadata.layout import ledger_path
from quire_bookie.metadata.ledger_metadata import encode_ledger_metadata
from quire_bookie.metadata.under_replication import mark_path
from quire_bookie.model import BookieId, DigestType, EntryId, LedgerState, Segment
from quire_bookie.wire.messages import AddRequest, BatchReadRequest, ReadRequest, Status
from tests.unit.bookie.client.cluster import QUICK, Cluster, Listener, run
from tests.unit.bookie.client.fake_bookie import Asked, FakeBookie

_ALL_QUORUMS = [(1, 1, 1), (2, 2, 2), (3, 3, 2), (3, 2, 2), (4, 3, 2), (3, 3, 1)]


async def _open_writer(
    client: LedgerClient, entries: int, quorums: tuple[int, int, int] = (3, 3, 2), password: bytes = b""
) -> LedgerWriter:
    """Create a writer that has written entries and is then idle."""
    writer = await client.create_ledger(
        ensemble_size=quorums[0], write_quorum=quorums[1], ack_quorum=quorums[2], password=password
    )
    for entry in range(entries):
        await writer.append(b"entry %d" % entry)
    await asyncio.sleep(1)
    return writer


async def _recover(cluster: Cluster, writer: LedgerWriter) -> LedgerReader:
    return await (await cluster.client()).open_ledger(writer.ledger_id, recover=True)


async def _contents(reader: LedgerReader) -> list[bytes]:
    if reader.last_add_confirmed < 0:
        return []
    return [bytes(e.payload) for e in await reader.read(EntryId(0), reader.last_add_confirmed)]


def _holders(cluster: Cluster, writer: LedgerWriter) -> list[FakeBookie]:
    return [cluster.bookies[bookie] for bookie in writer.metadata.segments[0].ensemble]


@pytest.mark.parametrize("quorums", _ALL_QUORUMS)
@pytest.mark.parametrize("count", [0, 1, 40])
def test_everything_confirmed_is_in_the_recovered_ledger(quorums: tuple[int, int, int], count: int) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _open_writer(client, count, quorums)
        reader = await _recover(cluster, writer)
        assert reader.is_closed
        assert reader.metadata.state is LedgerState.CLOSED
        assert reader.last_add_confirmed == count - 1
        assert reader.length == writer.length
        assert await _contents(reader) == [b"entry %d" % entry for entry in range(count)]

    run(scenario, bookies=4)


def test_the_old_writer_is_fenced() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _open_writer(client, 3)
        listener = Listener()
        writer.listener = listener
        reader = await _recover(cluster, writer)
        with pytest.raises(LedgerFencedError):
            await writer.append(b"too late")
        assert [type(error) for error in listener.failures] == [LedgerFencedError]
        with pytest.raises(LedgerFencedError):
            await writer.close()
        assert reader.last_add_confirmed == 2
        assert (await client.read_metadata(writer.ledger_id)).last_entry == 2

    run(scenario)


def test_recovery_in_the_client_of_the_writer_fences_it_too() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _open_writer(client, 3)
        writer.submit([b"in flight"] * 5)
        reader = await client.open_ledger(writer.ledger_id, recover=True)
        with pytest.raises(LedgerFencedError):
            await writer.append(b"too late")
        assert reader.last_add_confirmed >= writer.last_add_confirmed

    for seed in range(20):
        run(scenario, seed=seed)


def test_an_entry_on_one_replica_is_kept_unless_enough_others_lack_it() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _open_writer(client, 3)
        holders = _holders(cluster, writer)
        for holder in holders[1:]:
            holder.fault = lambda request: -1.0
        writer.submit([b"on one replica"])
        await asyncio.sleep(1)
        # One replica has the entry, one lacks it, the third is silent: the entry cannot be proved missing.
        holders[1].fault = lambda request: None
        reader = await _recover(cluster, writer)
        assert await _contents(reader) == [b"entry 0", b"entry 1", b"entry 2", b"on one replica"]
        assert cluster.copies(writer, 3) == 2

    run(scenario)


def test_re_added_entries_carry_the_lac_that_was_found_and_confirm_no_other_re_add() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _open_writer(client, 3)
        for holder in _holders(cluster, writer)[1:]:
            holder.fault = lambda request: -1.0
        writer.submit([b"a", b"b", b"c"])  # on one replica: the recovery finds and re-adds them
        await asyncio.sleep(1)
        re_added: list[tuple[int, int]] = []

        def watch(request: Asked) -> float | None:
            if not isinstance(request, AddRequest):
                return 0.3  # after the others, or two replicas without it would end the ledger
            if request.recovery:
                for entry, data in enumerate(request.run.entries, request.run.first):
                    re_added.append((entry, int.from_bytes(bytes(data[16:24]), "big", signed=True)))
            return None

        for holder in _holders(cluster, writer)[1:]:
            holder.fault = watch
        one_by_one = await cluster.client(replace(QUICK, recovery_reads_in_flight=1))
        reader = await one_by_one.open_ledger(writer.ledger_id, recover=True)
        assert (await _contents(reader))[3:] == [b"a", b"b", b"c"]
        assert {3, 4, 5} <= {entry for entry, _ in re_added}
        assert len({lac for _, lac in re_added}) == 1

    run(scenario)


def test_an_entry_that_two_of_three_replicas_lack_may_be_dropped_but_never_one_that_was_confirmed() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _open_writer(client, 5)
        holders = _holders(cluster, writer)
        for holder in holders[1:]:
            holder.fault = lambda request: -1.0 if isinstance(request, AddRequest) else None
        writer.submit([b"never confirmed"])
        await asyncio.sleep(1)
        for holder in holders[1:]:
            holder.fault = lambda request: None
        # The bookie with the only copy is dead, and the others lack the entry.
        cluster.kill_bookie(writer.metadata.segments[0].ensemble[0])
        reader = await _recover(cluster, writer)
        assert reader.last_add_confirmed == 4

    run(scenario)


@pytest.mark.parametrize("hole", [3, 4, 6])
def test_a_gap_ends_the_ledger_and_nothing_beyond_it_is_kept(hole: int) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _open_writer(client, 3)
        # Entries from `hole` on are sent to some replicas only; the entry at the hole reaches none.
        for holder in _holders(cluster, writer):
            holder.fault = lambda request: -1.0 if isinstance(request, AddRequest) else None
        for entry in range(3, 10):
            writer.submit([b"entry %d" % entry])
            if entry != hole:
                for holder in _holders(cluster, writer):
                    holder.fault = lambda request: None
            await asyncio.sleep(0.1)
            for holder in _holders(cluster, writer):
                holder.fault = lambda request: -1.0 if isinstance(request, AddRequest) else None
        assert writer.last_add_confirmed == hole - 1
        for holder in _holders(cluster, writer):
            holder.fault = lambda request: None
        reader = await _recover(cluster, writer)
        assert reader.last_add_confirmed == hole - 1
        assert await _contents(reader) == [b"entry %d" % entry for entry in range(hole)]
        assert reader.length == len(b"entry 0") * hole

    run(scenario)


@pytest.mark.parametrize("quorums", [(3, 3, 2), (4, 3, 2), (3, 2, 1)])
def test_recovery_works_with_one_bookie_dead(quorums: tuple[int, int, int]) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _open_writer(client, 20, quorums)
        cluster.kill_bookie(writer.metadata.segments[0].ensemble[-1])
        if quorums == (3, 2, 1):
            # With an ack quorum of one the dead bookie may hold the only copy of a confirmed entry.
            with pytest.raises(QuorumError):
                await _recover(cluster, writer)
            assert (await client.read_metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY
        else:
            assert await _contents(await _recover(cluster, writer)) == [b"entry %d" % entry for entry in range(20)]

    run(scenario, bookies=4)


def test_a_failed_recovery_can_be_repeated_when_the_bookies_are_back() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _open_writer(client, 5)
        for holder in _holders(cluster, writer)[:2]:
            holder.fault = lambda request: Status.IO_ERROR
        with pytest.raises(QuorumError):
            await _recover(cluster, writer)
        for holder in _holders(cluster, writer)[:2]:
            holder.fault = lambda request: None
        assert (await _recover(cluster, writer)).last_add_confirmed == 4

    run(scenario)


def test_a_damaged_replica_neither_ends_the_ledger_nor_is_copied() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _open_writer(client, 6)
        stored = _holders(cluster, writer)[0].ledgers[writer.ledger_id].entries
        for entry in (4, 5):
            stored[entry] = stored[entry][:-1] + b"!"
        reader = await _recover(cluster, writer)
        assert await _contents(reader) == [b"entry %d" % entry for entry in range(6)]
        assert not stored[5].endswith(b"!"), "the re-add repaired the entries that were read forward"

    run(scenario)


def test_re_added_replicas_keep_ids_lengths_and_payloads() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _open_writer(client, 4)
        for holder in _holders(cluster, writer)[1:]:
            holder.fault = lambda request: -1.0 if isinstance(request, AddRequest) else None
        writer.submit([b"tail %d" % i * (i + 1) for i in range(5)])
        await asyncio.sleep(0.5)
        for holder in _holders(cluster, writer)[1:]:
            holder.fault = lambda request: None
        # Two replicas lack the tail, but only one responds: the other cannot be reached.
        cluster.kill_bookie(writer.metadata.segments[0].ensemble[2])
        reader = await _recover(cluster, writer)
        assert reader.last_add_confirmed == 8
        assert reader.length == writer.length
        entries = await reader.read(EntryId(0), EntryId(8))
        lengths = [sum(len(entry.payload) for entry in entries[: i + 1]) for i in range(9)]
        assert [entry.length for entry in entries] == lengths
        re_adds = [
            request
            for holder in _holders(cluster, writer)
            for request in holder.asked
            if isinstance(request, AddRequest) and request.recovery
        ]
        assert re_adds
        assert all(request.high_priority for request in re_adds)

    run(scenario)


def test_every_read_of_a_recovery_fences_and_is_a_single_read() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _open_writer(client, 10)
        before = {bookie: len(fake.asked) for bookie, fake in cluster.bookies.items()}
        await _recover(cluster, writer)
        asked = [
            request
            for bookie, fake in cluster.bookies.items()
            for request in fake.asked[before[bookie] :]
            if not isinstance(request, AddRequest)
        ]
        assert not any(isinstance(request, BatchReadRequest) for request in asked)
        assert all(isinstance(request, ReadRequest) and request.fence for request in asked)
        assert all(
            request.high_priority is (request.entry != -1) for request in asked if isinstance(request, ReadRequest)
        )

    run(scenario)


def test_a_long_tail_is_re_added_completely_and_few_reads_go_beyond_it() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        writer.submit([b"entry %d" % entry for entry in range(500)])  # no entry carries a LAC that confirms them
        await asyncio.sleep(1)
        for holder in _holders(cluster, writer):
            holder.asked.clear()
        reader = await _recover(cluster, writer)
        assert await _contents(reader) == [b"entry %d" % entry for entry in range(500)]
        for holder in _holders(cluster, writer):
            runs = [asked for asked in holder.asked if isinstance(asked, AddRequest)]
            assert sum(len(request.run.entries) for request in runs) == 500
            beyond = [asked for asked in holder.asked if isinstance(asked, ReadRequest) and asked.entry >= 500]
            assert len(beyond) <= 256

    run(scenario)


def test_few_reads_go_beyond_a_short_tail() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _open_writer(client, 3)
        for holder in _holders(cluster, writer):
            holder.asked.clear()
        await _recover(cluster, writer)
        for holder in _holders(cluster, writer):
            assert sum(isinstance(asked, ReadRequest) for asked in holder.asked) <= 1 + 16 + 3

    run(scenario)


def test_a_recovery_follows_its_last_entry_to_other_bookies() -> None:
    """The replicas are moved, and deleted at their former bookies, after the recovery has read the metadata."""

    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _open_writer(client, 4)
        ledger, holders = writer.ledger_id, _holders(cluster, writer)
        spares = [bookie for name, bookie in cluster.bookies.items() if name not in writer.ensemble]

        def fault(request: Asked) -> Status | None:
            if isinstance(request, ReadRequest) and request.entry == 3:
                return Status.NO_ENTRY  # so the length is read from the entry of the LAC
            if isinstance(request, ReadRequest) and not request.fence and ledger in holders[0].ledgers:
                for holder, spare in zip(holders, spares, strict=True):
                    spare.ledgers[ledger] = holder.ledgers.pop(ledger)
                    del spare.ledgers[ledger].entries[3]
                segments = (Segment(EntryId(0), tuple(BookieId(spare.name) for spare in spares)),)
                moved = replace(writer.metadata, state=LedgerState.IN_RECOVERY, segments=segments)
                cluster.metadata.write(ledger_path(ledger), encode_ledger_metadata(moved), None)
            return None

        for holder in holders:
            holder.fault = fault
        reader = await _recover(cluster, writer)
        assert await _contents(reader) == [b"entry %d" % entry for entry in range(3)]
        assert reader.metadata.segments[0].ensemble == tuple(spare.name for spare in spares)

    run(scenario, bookies=6)


def test_two_concurrent_recoveries_agree() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _open_writer(client, 10)
        for holder in _holders(cluster, writer)[1:]:
            holder.fault = lambda request: -1.0 if isinstance(request, AddRequest) else None
        writer.submit([b"tail"] * 5)
        await asyncio.sleep(0.2)
        for holder in _holders(cluster, writer)[1:]:
            holder.fault = lambda request: None
        clients = [await cluster.client() for _ in range(3)]
        readers = await asyncio.gather(
            *(one.open_ledger(writer.ledger_id, recover=True) for one in (*clients, clients[0], client))
        )
        assert len({reader.last_add_confirmed for reader in readers}) == 1
        assert len({reader.length for reader in readers}) == 1
        assert readers[0].last_add_confirmed >= 9
        contents = [await _contents(reader) for reader in readers]
        assert all(content == contents[0] for content in contents)

    for seed in range(25):
        run(scenario, seed=seed)


def test_a_writer_that_continues_during_a_recovery_loses_no_confirmed_entry() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        listener = Listener()
        writer.listener = listener
        chance = cluster.loop.network.chance

        async def write_on() -> None:
            for number in range(1000):
                try:
                    writer.submit([b"%d.%d" % (number, i) for i in range(3)])
                except LedgerFencedError:
                    return
                await asyncio.sleep(chance.uniform(0.0, 0.004))

        def slow(request: Asked) -> float:
            return chance.uniform(0.0, 0.01)

        for bookie in cluster.bookies.values():
            bookie.fault = slow
        writing = asyncio.get_running_loop().create_task(write_on())
        await asyncio.sleep(0.1)
        reader = await _recover(cluster, writer)
        await writing
        confirmed = listener.confirmed[-1] if listener.confirmed else -1
        assert reader.last_add_confirmed >= confirmed
        contents = await _contents(reader)
        assert contents == [b"%d.%d" % divmod(entry, 3) for entry in range(len(contents))]
        assert len(listener.failures) == 1

    for seed in range(25):
        run(scenario, seed=seed)


def test_recovery_succeeds_when_the_metadata_store_loses_responses() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _open_writer(client, 5)
        other = await cluster.client()
        cluster.metadata.unknown_chance = 0.3
        reader = await other.open_ledger(writer.ledger_id, recover=True)
        assert reader.last_add_confirmed == 4

    for seed in range(20):
        run(scenario, seed=seed)


def test_a_wrong_password_is_refused_before_anything_is_fenced() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _open_writer(client, 2, password=b"right")
        other = await cluster.client()
        for recover in (False, True):
            with pytest.raises(UnauthorizedError):
                await other.open_ledger(writer.ledger_id, password=b"wrong", recover=recover)
        await writer.append(b"not fenced")
        reader = await other.open_ledger(writer.ledger_id, password=b"right", recover=True)
        assert reader.last_add_confirmed == 2

    run(scenario)


@pytest.mark.parametrize("digest_type", list(DigestType))
def test_every_digest_can_be_recovered(digest_type: DigestType) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await client.create_ledger(
            ensemble_size=2, write_quorum=2, ack_quorum=2, digest_type=digest_type, password=b"p"
        )
        for entry in range(4):
            await writer.append(b"entry %d" % entry)
        other = await cluster.client()
        reader = await other.open_ledger(writer.ledger_id, password=b"p", recover=True)
        assert await _contents(reader) == [b"entry %d" % entry for entry in range(4)]

    run(scenario)


def test_late_refusals_of_the_old_writers_adds_do_not_disturb_a_recovery_in_the_same_client() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _open_writer(client, 4)

        def late(request: Asked) -> float | None:
            if not isinstance(request, AddRequest):
                return None
            return 1.0 if request.recovery else 0.5

        for bookie in cluster.bookies.values():
            bookie.fault = late
        # The same ids that the recovery re-adds: entry 3 again, late, and entries beyond it.
        writer.submit([b"fenced before they are stored"] * 3)
        reader = await client.open_ledger(writer.ledger_id, recover=True)
        assert await _contents(reader) == [b"entry %d" % entry for entry in range(4)]
        assert isinstance(writer.error, LedgerFencedError)

    run(scenario)


@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("spares", [0, 1, 2])
def test_a_bookie_that_fails_at_a_re_add_is_replaced_in_the_closed_ledger_or_marked(spares: int, seed: int) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _open_writer(client, 3)
        writer.submit([b"entry %d" % entry for entry in range(3, 20)])  # the LAC in their headers is 2
        await asyncio.sleep(1)
        full = writer.metadata.segments[0].ensemble[1]
        cluster.bookies[full].fault = _refuse_adds
        if spares == 2:  # the first replacement may be the bookie that fails as well
            bad = next(bookie for bookie in cluster.bookies if bookie not in writer.metadata.segments[0].ensemble)
            cluster.bookies[bad].fault = _refuse_adds
        reader = await _recover(cluster, writer)
        assert await _contents(reader) == [b"entry %d" % entry for entry in range(20)]
        await asyncio.sleep(1)
        metadata = reader.metadata
        mark = cluster.metadata.nodes.get(mark_path(writer.ledger_id))
        if not spares:
            assert len(metadata.segments) == 1
            assert mark is not None and full.encode() in mark.value
            return
        assert full not in metadata.segments[-1].ensemble
        starts = [segment.first_entry for segment in metadata.segments]
        assert len(starts) > 1 and starts[1] >= 3, "entries below were confirmed before"
        for segment, end in zip(metadata.segments, [*starts[1:], EntryId(20)], strict=True):
            for bookie in segment.ensemble:
                held = cluster.bookies[bookie].ledgers.get(writer.ledger_id)
                complete = held is not None and held.entries.keys() >= set(range(segment.first_entry, end))
                assert complete or (mark is not None and bookie.encode() in mark.value)
        assert reader.metadata == await client.read_metadata(writer.ledger_id)

    run(scenario, bookies=3 + spares, seed=seed)


@pytest.mark.parametrize(("answers_after_s", "is_marked"), [(0.02, False), (1.5, True), (-1.0, True)])
def test_a_bookie_that_is_slow_at_a_re_add_is_marked_and_does_not_delay_the_recovery(
    answers_after_s: float, is_marked: bool
) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await _open_writer(client, 3)
        writer.submit([b"entry %d" % entry for entry in range(3, 20)])
        await asyncio.sleep(1)
        slow = writer.metadata.segments[0].ensemble[1]
        cluster.bookies[slow].fault = lambda request: answers_after_s if isinstance(request, AddRequest) else None
        began_s = cluster.loop.time()
        reader = await _recover(cluster, writer)
        assert cluster.loop.time() - began_s < 0.5
        assert await _contents(reader) == [b"entry %d" % entry for entry in range(20)]
        await asyncio.sleep(1)
        mark = cluster.metadata.nodes.get(mark_path(writer.ledger_id))
        assert (mark is not None and slow.encode() in mark.value) is is_marked

    run(scenario)


def _refuse_adds(request: Asked) -> Status | None:
    return Status.IO_ERROR if isinstance(request, AddRequest) else None
