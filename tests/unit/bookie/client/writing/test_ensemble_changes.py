"""Tests a writer whose bookies fail, return, lag and refuse: what it replaces, marks and acknowledges meanwhile."""

import asyncio
from dataclasses import replace

import pytest

from quire_bookie.client import LedgerClient, LedgerWriter, WriterState
from quire_bookie.errors import LedgerFencedError, QuorumError
from quire_bookie.metadata import layout
from quire_bookie.metadata.ledger_metadata import decode_ledger_metadata, encode_ledger_metadata
from quire_bookie.metadata.under_replication import UnderReplication
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState, Segment
from quire_bookie.wire.messages import AddRequest, Status
from tests.sim.metadata import SimMetadataStore
from tests.unit.bookie.client.cluster import QUICK, Cluster, Listener, run
from tests.unit.bookie.client.fake_bookie import Asked, Fault


async def _writer(client: LedgerClient, quorums: tuple[int, int, int] = (3, 3, 2)) -> tuple[LedgerWriter, Listener]:
    e, w, a = quorums
    writer = await client.create_ledger(ensemble_size=e, write_quorum=w, ack_quorum=a)
    writer.listener = listener = Listener()
    return writer, listener


def _outsiders(cluster: Cluster, writer: LedgerWriter) -> list[BookieId]:
    return [bookie for bookie in cluster.bookies if bookie not in writer.metadata.segments[-1].ensemble]


def _stored(cluster: Cluster, ledger: LedgerId) -> LedgerMetadata:
    return decode_ledger_metadata(cluster.metadata.nodes[layout.ledger_path(ledger)].value)


async def _marked(cluster: Cluster, ledger: LedgerId) -> set[str]:
    mark = await UnderReplication(SimMetadataStore(cluster.metadata), _Clock()).read(ledger)
    return set() if mark is None else set(mark.bookies)


class _Clock:
    def now_ms(self) -> int:
        return 0


def _adds(answer: Status | float) -> Fault:
    def fault(request: Asked) -> Status | float | None:
        return answer if isinstance(request, AddRequest) else None

    return fault


def _missing(cluster: Cluster, metadata: LedgerMetadata, ledger: LedgerId, last: int) -> dict[int, set[str]]:
    """Return by entry the bookies of its write set that do not have it."""
    lacking: dict[int, set[str]] = {}
    for entry in range(last + 1):
        ensemble = metadata.ensemble_of(EntryId(entry))
        for step in range(metadata.write_quorum):
            bookie = ensemble[(entry + step) % metadata.ensemble_size]
            held = cluster.bookies[bookie].ledgers.get(ledger)
            if held is None or entry not in held.entries:
                lacking.setdefault(entry, set()).add(bookie)
    return lacking


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2), (3, 2, 1), (3, 3, 3), (4, 3, 2)])
def test_a_lost_bookie_is_replaced_and_has_every_entry_of_the_new_segment(quorums: tuple[int, int, int]) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, listener = await _writer(client, quorums)
        writer.submit([b"%d" % i for i in range(10)])
        await writer.append(b"before")
        victim = writer.metadata.segments[0].ensemble[1]
        cluster.kill_bookie(victim)
        for i in range(50):
            writer.submit([b"a%d" % i, b"b%d" % i])
            await asyncio.sleep(0.001)
        await writer.append(b"after")
        assert writer.ensemble_changes == 1
        assert not writer.degraded
        closed = await writer.close()
        await asyncio.sleep(1)
        assert listener.failures == []
        assert closed == _stored(cluster, writer.ledger_id)
        assert victim not in closed.segments[-1].ensemble
        lacking = _missing(cluster, closed, writer.ledger_id, closed.last_entry)
        assert all(entry < closed.segments[-1].first_entry for entry in lacking)
        assert set().union(*lacking.values()) <= await _marked(cluster, writer.ledger_id)

    run(scenario, bookies=5)


def test_entries_are_acknowledged_while_the_change_waits_for_the_metadata() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, _ = await _writer(client)
        await writer.append(b"before")
        cluster.metadata.away = True
        cluster.kill_bookie(writer.metadata.segments[0].ensemble[0])
        for i in range(20):
            await writer.append(b"%d" % i)
        assert writer.degraded
        assert writer.ensemble_changes == 0
        cluster.metadata.away = False
        await asyncio.sleep(3)
        assert (writer.ensemble_changes, writer.degraded) == (1, False)
        assert _missing(cluster, writer.metadata, writer.ledger_id, 20) == {}

    run(scenario, bookies=4)


def test_acknowledgements_of_a_lost_bookie_do_not_count_in_the_new_segment() -> None:
    """3/3/2: B has the entry and is lost; then A has it as well. B no longer belongs to the entry's segment."""

    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, listener = await _writer(client)
        await writer.append(b"before")
        a, b, c = writer.metadata.segments[0].ensemble
        (spare,) = _outsiders(cluster, writer)
        cluster.bookies[a].fault = _adds(2.5)
        for silent in (c, spare):
            cluster.bookies[silent].fault = _adds(-1.0)
        writer.submit([b"one"])
        await asyncio.sleep(0.5)
        assert listener.confirmed == [0], "one acknowledgement of two"
        writer.submit([b"two"])
        cluster.bookies[b].stop()
        cluster.bookies[b].hang_up()
        await asyncio.sleep(2.3)
        assert writer.metadata.segments[-1] == Segment(EntryId(1), (a, spare, c))
        for bookie in (a, b):
            assert 1 in cluster.bookies[bookie].ledgers[writer.ledger_id].entries
        assert listener.confirmed == [0], "only A has the entry: the acknowledgement of B is void"

    run(scenario, bookies=4)


def test_an_unknown_outcome_is_read_back_before_anything_is_sent_to_the_new_bookie() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, _ = await _writer(client)
        await writer.append(b"before")
        (spare,) = _outsiders(cluster, writer)
        cluster.metadata.unknown_chance = 1.0
        cluster.kill_bookie(writer.metadata.segments[0].ensemble[0])
        await writer.append(b"goes on")
        await asyncio.sleep(3)
        assert writer.ledger_id not in cluster.bookies[spare].ledgers or writer.ensemble_changes == 1
        cluster.metadata.unknown_chance = 0.0
        await asyncio.sleep(3)
        assert writer.ensemble_changes == 1
        assert writer.metadata == _stored(cluster, writer.ledger_id)
        await writer.append(b"after")
        assert (await writer.close()).last_entry == 2

    run(scenario, bookies=4)


def test_a_change_that_finds_the_ledger_in_recovery_fences_the_writer() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, listener = await _writer(client)
        await writer.append(b"before")
        path = layout.ledger_path(writer.ledger_id)
        taken = replace(_stored(cluster, writer.ledger_id), state=LedgerState.IN_RECOVERY)
        cluster.metadata.write(path, encode_ledger_metadata(taken), None)
        cluster.kill_bookie(writer.metadata.segments[0].ensemble[0])
        writer.submit([b"more"])
        await asyncio.sleep(1)
        assert [type(error) for error in listener.failures] == [LedgerFencedError]
        assert writer.state is WriterState.FENCED
        with pytest.raises(LedgerFencedError):
            await writer.close()

    run(scenario, bookies=4)


def test_an_ensemble_change_keeps_repairs_of_older_segments() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, _ = await _writer(client)
        await writer.append(b"before")
        first, _, _ = writer.metadata.segments[0].ensemble
        cluster.kill_bookie(first)
        await writer.append(b"more")
        await asyncio.sleep(1)
        assert len(writer.metadata.segments) == 2
        found = _stored(cluster, writer.ledger_id)
        repaired = replace(found, segments=(Segment(EntryId(0), found.segments[1].ensemble), found.segments[1]))
        cluster.metadata.write(layout.ledger_path(writer.ledger_id), encode_ledger_metadata(repaired), None)
        await writer.append(b"and more")
        cluster.kill_bookie(found.segments[1].ensemble[2])
        await writer.append(b"again")
        await asyncio.sleep(1)
        assert writer.metadata == _stored(cluster, writer.ledger_id)
        assert writer.metadata.segments[0] == repaired.segments[0]
        assert len(writer.metadata.segments) == 3
        await writer.close()

    run(scenario, bookies=5)


def test_a_writer_reads_repaired_older_segments_from_their_new_bookies() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, _ = await _writer(client)
        await writer.append(b"before")
        await asyncio.sleep(0.5)
        held = cluster.bookies[writer.metadata.segments[0].ensemble[0]].ledgers[writer.ledger_id]
        for bookie in writer.metadata.segments[0].ensemble:
            cluster.kill_bookie(bookie)
            await writer.append(b"more")
            await asyncio.sleep(2)
        found = _stored(cluster, writer.ledger_id)
        assert not set(found.segments[0].ensemble) & set(found.segments[-1].ensemble)
        for bookie in found.segments[-1].ensemble:
            cluster.bookies[bookie].ledgers[writer.ledger_id].entries[0] = held.entries[0]
        repaired = replace(found.segments[0], ensemble=found.segments[-1].ensemble)
        moved = replace(found, segments=(repaired, *found.segments[1:]))
        cluster.metadata.write(layout.ledger_path(writer.ledger_id), encode_ledger_metadata(moved), None)
        (entry,) = await writer.read(EntryId(0), EntryId(0))
        assert bytes(entry.payload) == b"before"
        await writer.append(b"and on")
        assert (await writer.close()).segments == moved.segments

    run(scenario, bookies=6)


def test_several_bookies_and_a_replacement_may_fail() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, listener = await _writer(client, (3, 3, 2))
        await writer.append(b"before")
        for spare in _outsiders(cluster, writer)[:2]:
            cluster.bookies[spare].fault = _adds(Status.IO_ERROR)
        one, other, _ = writer.metadata.segments[0].ensemble
        cluster.kill_bookie(one)
        cluster.kill_bookie(other)
        for i in range(30):
            await writer.append(b"%d" % i)
        await asyncio.sleep(1)
        assert listener.failures == []
        assert not writer.degraded
        closed = await writer.close()
        assert closed.last_entry == 30
        assert not {one, other} & set(closed.segments[-1].ensemble)
        lacking = _missing(cluster, closed, writer.ledger_id, 30)
        assert set().union(*lacking.values()) <= await _marked(cluster, writer.ledger_id)

    run(scenario, bookies=7)


def test_with_three_bookies_a_writer_continues_on_two_and_uses_the_third_again() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, listener = await _writer(client)
        await writer.append(b"before")
        victim = writer.metadata.segments[0].ensemble[2]
        cluster.kill_bookie(victim)
        for i in range(20):
            await writer.append(b"%d" % i)
        assert writer.degraded
        assert not writer.is_beyond_repair
        assert await _marked(cluster, writer.ledger_id) == {victim}
        await cluster.restart_bookie(victim)
        await asyncio.sleep(QUICK.suspect_s + 2)
        assert not writer.degraded
        for i in range(20):
            await writer.append(b"%d" % i)
        closed = await writer.close()
        await asyncio.sleep(1)
        assert listener.failures == []
        # The bookie took its position again: the entries that it lacks are in the segment before.
        assert [segment.ensemble for segment in closed.segments] == [closed.segments[0].ensemble] * 2
        lacking = _missing(cluster, closed, writer.ledger_id, closed.last_entry)
        assert lacking
        assert all(bookies == {victim} and entry < closed.segments[1].first_entry for entry, bookies in lacking.items())

    run(scenario, bookies=3)


def test_without_a_quorum_and_without_the_metadata_the_writer_fails_after_a_while() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, listener = await _writer(client)
        await writer.append(b"before")
        cluster.metadata.away = True
        one, other, _ = writer.metadata.segments[0].ensemble
        cluster.kill_bookie(one)
        cluster.kill_bookie(other)
        writer.submit([b"lost"])
        await asyncio.sleep(QUICK.add_timeout_s / 2)
        assert listener.failures == [], "the metadata may become available again"
        await asyncio.sleep(QUICK.add_timeout_s + 3)
        assert [type(error) for error in listener.failures] == [QuorumError]
        cluster.metadata.away = False
        closed = await writer.close()
        assert closed.last_entry == 0
        assert closed == _stored(cluster, writer.ledger_id)

    run(scenario, bookies=5)


def test_a_lost_quorum_is_restored_with_new_bookies() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, listener = await _writer(client)
        await writer.append(b"before")
        await asyncio.sleep(0.5)  # at least two bookies have the entry; all three must, because two are killed
        cluster.metadata.away = True
        one, other, _ = writer.metadata.segments[0].ensemble
        cluster.kill_bookie(one)
        cluster.kill_bookie(other)
        writer.submit([b"one", b"two"])
        await asyncio.sleep(1)
        assert listener.confirmed == [0]
        cluster.metadata.away = False
        await writer.append(b"three")
        assert listener.confirmed[-1] == 3
        await asyncio.sleep(0.5)
        assert _missing(cluster, writer.metadata, writer.ledger_id, 3) == {}

    run(scenario, bookies=5)


def test_after_its_last_change_a_writer_continues_and_is_beyond_repair() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, _ = await _writer(client)
        reports: list[bool] = []
        writer.on_beyond_repair = lambda: reports.append(writer.is_beyond_repair)
        await writer.append(b"before")
        for bookie in writer.metadata.segments[0].ensemble[:2]:
            assert reports == []
            cluster.kill_bookie(bookie)
            for i in range(3):
                await writer.append(b"%d" % i)
            await asyncio.sleep(1)
        assert writer.ensemble_changes == 1
        assert writer.is_beyond_repair and reports and all(reports)
        await writer.append(b"still")

    run(scenario, bookies=6, settings=replace(QUICK, ensemble_changes_max=1))


def test_a_delayed_change_waits_until_the_quorum_is_endangered() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, listener = await _writer(client)
        await writer.append(b"before")
        one, other, _ = writer.metadata.segments[0].ensemble
        cluster.kill_bookie(one)
        await writer.append(b"goes on")
        await asyncio.sleep(2)
        assert writer.ensemble_changes == 0
        assert writer.is_beyond_repair
        cluster.kill_bookie(other)
        await writer.append(b"needs another")
        assert writer.ensemble_changes == 1
        assert not {one, other} & set(writer.metadata.segments[-1].ensemble)
        assert listener.failures == []

    run(scenario, bookies=5, settings=replace(QUICK, delay_ensemble_change=True))


@pytest.mark.parametrize("delay", [False, True])
def test_a_bookie_that_turned_read_only_is_replaced_at_once(delay: bool) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, _ = await _writer(client)
        await writer.append(b"before")
        full = writer.metadata.segments[0].ensemble[0]
        cluster.bookies[full].fault = _adds(Status.READ_ONLY)
        await writer.append(b"goes on")
        await asyncio.sleep(0.1)
        assert writer.ensemble_changes == 1
        assert full not in writer.metadata.segments[-1].ensemble

    run(scenario, bookies=4, settings=replace(QUICK, delay_ensemble_change=delay))


def test_a_slow_bookie_is_replaced_when_it_lacks_confirmed_entries_for_too_long() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, _ = await _writer(client)
        slow = writer.metadata.segments[0].ensemble[1]
        cluster.bookies[slow].fault = _adds(3.0)
        for i in range(40):
            await writer.append(b"%d" % i)
            await asyncio.sleep(0.1)
        assert writer.ensemble_changes == 1
        assert slow not in writer.metadata.segments[-1].ensemble

    run(scenario, bookies=4, settings=replace(QUICK, slow_replica_s=2.0))


@pytest.mark.parametrize("bookies", [3, 4])
def test_a_bookie_that_lags_by_many_bytes_neither_stops_the_writer_nor_fills_memory(bookies: int) -> None:
    settings = replace(
        QUICK,
        add_timeout_s=60.0,
        slow_replica_bytes_max=20_000,
        slow_replica_grace_s=0.2,
        writer_pending_bytes_max=60_000,
    )

    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, _ = await _writer(client)
        slow = writer.metadata.segments[0].ensemble[1]
        cluster.bookies[slow].fault = _adds(-1.0)
        begun = cluster.loop.time()
        for _ in range(200):
            await writer.append(bytes(1000))
            assert writer.pending_bytes < 62_000
        assert cluster.loop.time() - begun < 5
        assert slow in await _marked(cluster, writer.ledger_id)
        assert writer.degraded is (bookies == 3)

    run(scenario, bookies=bookies, settings=settings)


@pytest.mark.parametrize("seed", range(6))  # rounding of the clock determines how often the quorum is checked
def test_a_writer_fails_when_a_quorum_takes_longer_than_configured(seed: int) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, _ = await _writer(client, (3, 3, 3))
        await writer.append(b"quick")
        cluster.bookies[writer.metadata.segments[0].ensemble[0]].fault = _adds(-1.0)
        begun = cluster.loop.time()
        with pytest.raises(QuorumError, match=r"entry 1 .* no ack quorum"):
            await writer.append(b"slow")
        assert 1.0 <= cluster.loop.time() - begun < 1.5

    run(scenario, settings=replace(QUICK, add_quorum_timeout_s=1.0), seed=seed)


def test_a_bookie_that_fails_too_often_is_kept_out_of_new_ensembles() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        bad = BookieId("b1")
        cluster.bookies[bad].fault = _adds(Status.IO_ERROR)
        for _ in range(12):
            writer, _ = await _writer(client)
            await writer.append(b"one")
            await writer.close()
        assert bad not in client.writable_bookies
        for _ in range(5):
            writer, _ = await _writer(client)
            assert bad not in writer.metadata.segments[0].ensemble
        await asyncio.sleep(31)
        assert bad in client.writable_bookies

    run(scenario, bookies=4, settings=replace(QUICK, quarantine_errors=3, quarantine_s=30.0))


def test_a_close_waits_in_the_background_for_the_last_replica_or_marks_it() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        for fault, marked in ((1.0, False), (-1.0, True)):
            writer, _ = await _writer(client)
            slow = writer.metadata.segments[0].ensemble[2]
            cluster.bookies[slow].fault = _adds(fault)
            begun = cluster.loop.time()
            writer.submit([b"one", b"two"])
            await writer.close()
            assert cluster.loop.time() - begun < 0.5
            await asyncio.sleep(QUICK.add_timeout_s * 2)
            assert (await _marked(cluster, writer.ledger_id) == {slow}) is marked
            cluster.bookies[slow].fault = lambda request: None

    run(scenario)


def test_a_close_during_a_change_of_unknown_outcome_uses_the_stored_metadata() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer, _ = await _writer(client)
        await writer.append(b"before")
        cluster.metadata.unknown_chance = 1.0
        cluster.kill_bookie(writer.metadata.segments[0].ensemble[0])
        await writer.append(b"goes on")
        await asyncio.sleep(0.02)
        closing = asyncio.ensure_future(writer.close())
        await asyncio.sleep(0.2)
        cluster.metadata.unknown_chance = 0.0
        try:
            closed = await closing
        except Exception:  # noqa: BLE001  the outcome is unknown: the second attempt settles it
            closed = await writer.close()
        await asyncio.sleep(5)  # the marks are repeated every two seconds
        assert closed.last_entry == 1
        assert not client._writers, "no writer waits for a bookie that will never be sent anything"
        lacking = _missing(cluster, closed, writer.ledger_id, 1)
        assert set().union(*lacking.values()) <= await _marked(cluster, writer.ledger_id)

    for seed in range(8):
        run(scenario, bookies=4, seed=seed)
