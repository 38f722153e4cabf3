"""Tests ledgers with the id of another ledger at bookies: no data of that one reach a writer, reader or recovery."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace

import pytest

from quire_bookie.client import LedgerClient, LedgerWriter
from quire_bookie.client.links.bookie_link import Purpose
from quire_bookie.client.links.bound_links import BoundLinks
from quire_bookie.client.reading.lac_read import read_lac
from quire_bookie.client.reading.range_read import RangeReader
from quire_bookie.errors import BookieUnavailableError, ForeignLedgerError, LedgerError, QuorumError
from quire_bookie.metadata import layout
from quire_bookie.metadata.ledger_metadata import encode_ledger_metadata
from quire_bookie.model import LEDGER_TOKEN, BookieId, EntryId, IdCounters, LedgerId, LedgerMetadata
from quire_bookie.wire.messages import AddRequest, ReadRequest, Status, WriteLacRequest
from tests.unit.bookie.client.cluster import Cluster, run
from tests.unit.bookie.client.fake_bookie import FakeBookie

OLD = [b"old 0", b"old 1", b"old 2"]
ours_or_stock = pytest.mark.parametrize("token", [b"newer", b""], ids=["ours", "stock"])


async def written(client: LedgerClient, payloads: list[bytes]) -> LedgerWriter:
    """Create an open ledger on three bookies, with these entries on all of them."""
    writer = await client.create_ledger()
    if payloads:
        writer.submit(payloads)
        await asyncio.sleep(1)
    return writer


def goes_back(cluster: Cluster, writer: LedgerWriter, token: bytes) -> LedgerMetadata:
    """Replace the metadata by those of a new ledger with the same id and this token, open and without entries."""
    custom = {LEDGER_TOKEN: token} if token else {}
    metadata = replace(writer.metadata, custom=custom, c_token=77)
    cluster.metadata.write(layout.ledger_path(writer.ledger_id), encode_ledger_metadata(metadata), None)
    return metadata


def holders(cluster: Cluster, metadata: LedgerMetadata) -> list[FakeBookie]:
    return [cluster.bookies[bookie] for bookie in metadata.segments[0].ensemble]


@ours_or_stock
def test_a_reader_receives_neither_lac_nor_entries_of_the_older_ledger(token: bytes) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await written(client, OLD)
        metadata = goes_back(cluster, writer, token)
        with pytest.raises(QuorumError, match="holds another ledger with the id"):
            await client.open_ledger(writer.ledger_id, recover=False)
        handle = client._handle_of(writer.ledger_id, metadata, b"", None)
        with pytest.raises(QuorumError):
            await read_lac(handle.read_way, metadata, explicit=True)
        reader = RangeReader(handle.read_way, handle.settings)
        for last in (0, 2):  # a single read, and a batch
            with pytest.raises(ForeignLedgerError):
                await reader.read(metadata, EntryId(0), EntryId(last), None)
        assert await reader.read_stored(metadata, EntryId(0), EntryId(2), 1 << 20) is None
        assert client.replica_health.foreign_answers > 0

    run(scenario)


@ours_or_stock
def test_a_recovery_neither_fences_the_older_ledger_nor_uses_it_to_close_the_new_one(token: bytes) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await written(client, OLD)
        goes_back(cluster, writer, token)
        with pytest.raises(QuorumError, match="or delete this one"):
            await client.open_ledger(writer.ledger_id, recover=True)
        assert not any(bookie.ledgers[writer.ledger_id].fenced for bookie in cluster.bookies.values())
        writer.submit([b"old 3"])
        await asyncio.sleep(1)
        assert writer.last_add_confirmed == 3, "its writer continues"

    run(scenario)


@ours_or_stock
def test_one_bookie_with_the_older_ledger_stops_neither_readers_nor_a_recovery(token: bytes) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await written(client, [])
        metadata = goes_back(cluster, writer, token)
        foreign, *others = holders(cluster, metadata)
        for bookie in others:
            del bookie.ledgers[writer.ledger_id]
        handle = client._handle_of(writer.ledger_id, metadata, b"", None)
        payloads = [b"new 0", b"new 1"]
        for bookie in others:  # as written by a client without tokens
            frames, _ = writer._frames.encode(EntryId(0), EntryId(-1), 0, payloads)
            client._pool.link(BookieId(bookie.name), Purpose.ADD).send_adds(writer.ledger_id, frames, writer._pipeline)
        await asyncio.sleep(1)
        foreign.ledgers[writer.ledger_id].entries = dict(enumerate(OLD))
        reader = await client.open_ledger(writer.ledger_id, recover=True)
        assert [bytes(entry.payload) for entry in await reader.read(EntryId(0), EntryId(1))] == payloads
        assert reader.last_add_confirmed == 1
        assert foreign.ledgers[writer.ledger_id].entries == dict(enumerate(OLD)), "no copy was added to them"
        assert not foreign.ledgers[writer.ledger_id].fenced
        del handle

    run(scenario)


def test_a_new_ledger_gets_no_id_under_which_a_bookie_holds_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        first = await written(client, OLD)
        for bookie in cluster.bookies.values():
            bookie.ledgers[first.ledger_id].token = None  # created by a version without tokens
            bookie.deleted.add(int(first.ledger_id) + 1)
            bookie.ledgers.pop(LedgerId(int(first.ledger_id) + 1), None)

        async def counted(_: Iterable[BookieId]) -> LedgerId:
            return await client._ids._ids.next_id()

        del cluster.metadata.nodes[layout.ID_COUNTER]
        del cluster.metadata.nodes[layout.ledger_path(first.ledger_id)]
        monkeypatch.setattr(client._ids, "next_id", counted)
        writer = await client.create_ledger()
        assert writer.ledger_id == first.ledger_id + 1 or writer.ledger_id == first.ledger_id + 2
        assert layout.ledger_path(first.ledger_id) not in cluster.metadata.nodes, "the attempt leaves nothing behind"
        for bookie in cluster.bookies.values():
            assert len(bookie.ledgers[first.ledger_id].entries) == 3

    run(scenario)


def test_bookies_without_tokens_are_trusted() -> None:
    """Java bookies ignore the request for the token, and ledgers of stock clients have no token."""

    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        for bookie in cluster.bookies.values():
            bookie.seen = None
        writer = await written(client, OLD)
        reader = await client.open_ledger(writer.ledger_id, recover=True)
        assert [bytes(entry.payload) for entry in await reader.read(EntryId(0), EntryId(2))] == OLD
        for bookie in cluster.bookies.values():
            bookie.seen = IdCounters()
            assert bookie.ledgers[writer.ledger_id].token is None
        again = await client.open_ledger(writer.ledger_id, recover=False)
        assert [bytes(entry.payload) for entry in await again.read(EntryId(0), EntryId(2))] == OLD
        assert client.replica_health.foreign_answers == 0

    run(scenario)


def test_each_bookie_is_asked_once_by_a_writer_and_once_by_a_reader() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        asked: list[tuple[BookieId, bool]] = []
        verdict = BoundLinks._verdict

        def counted(self: BoundLinks, bookie: BookieId, declares: bool, answer: object) -> object:
            asked.append((bookie, declares))
            return verdict(self, bookie, declares, answer)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BoundLinks, "_verdict", counted)
            writer = await written(client, OLD)
            for _ in range(20):
                await writer.append(b"more")
            await writer.close()
            assert sorted(asked) == [(bookie, True) for bookie in sorted(cluster.bookies)]
            asked.clear()
            reader = await client.open_ledger(writer.ledger_id, recover=False)
            for entry in range(20):
                await reader.read(EntryId(entry), EntryId(entry))
            assert len(asked) == len(set(asked)) and not any(declares for _, declares in asked)

    run(scenario)


def test_the_first_add_waits_for_the_token_and_a_bookie_that_does_not_respond_is_replaced() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        await client.create_ledger(ensemble_size=4, write_quorum=4)  # every bookie was asked for ids
        chosen = tuple(sorted(cluster.bookies))[:3]
        mute = cluster.bookies[chosen[0]]
        mute.silent_on_ids = True
        writer = await client.create_ledger(bookies=chosen)
        await writer.append(b"first")
        assert LedgerId(writer.ledger_id) not in mute.ledgers or not mute.ledgers[writer.ledger_id].entries
        await asyncio.sleep(10)
        await writer.append(b"second")
        await asyncio.sleep(1)
        assert chosen[0] not in writer.ensemble and cluster.copies(writer, 1) == 3

    run(scenario, bookies=4)


def test_an_ensemble_change_declares_the_token_to_the_new_bookie_before_its_first_entry() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await written(client, OLD)
        spare = next(bookie for bookie in cluster.bookies if bookie not in writer.ensemble)
        cluster.kill_bookie(writer.ensemble[0])
        writer.submit([b"more"])
        await asyncio.sleep(10)
        assert spare in writer.ensemble
        assert cluster.bookies[spare].ledgers[writer.ledger_id].token == writer.metadata.token

    run(scenario, bookies=4)


def test_an_ensemble_change_does_not_use_a_bookie_that_holds_another_ledger() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await written(client, OLD)
        spare = next(bookie for bookie in cluster.bookies if bookie not in writer.ensemble)
        older = BoundLinks(client._pool, writer.ledger_id, b"older", writer._handle.master_key)
        assert await older.declare([spare]) is None
        cluster.kill_bookie(writer.ensemble[0])
        writer.submit([b"more"])
        await asyncio.sleep(10)
        assert writer.last_add_confirmed == 3
        assert not cluster.bookies[spare].ledgers[writer.ledger_id].entries

    run(scenario, bookies=4)


def test_a_response_of_a_bookie_that_does_not_report_its_token_is_not_used() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await written(client, OLD)
        for bookie in cluster.bookies.values():
            bookie.silent_on_ids = True
        handle = client._handle_of(writer.ledger_id, writer.metadata, b"", None)
        with pytest.raises(BookieUnavailableError):
            await handle.read_way.ask(writer.ensemble[0], EntryId(0))
        for bookie in cluster.bookies.values():
            bookie.silent_on_ids = False
        assert bytes(await handle.read_way.ask(writer.ensemble[0], EntryId(0))).endswith(OLD[0])

    run(scenario)


def test_the_token_is_requested_again_if_a_ledger_appears_between_request_and_read() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await written(client, [])
        other = await cluster.client()
        name = writer.ensemble[0]
        bookie = cluster.bookies[name]
        del bookie.ledgers[writer.ledger_id]
        handle = other._handle_of(writer.ledger_id, replace(writer.metadata, custom={}), b"", None)

        def late(request: AddRequest | ReadRequest | object) -> Status | float | None:
            return 2.0 if isinstance(request, ReadRequest) else None

        bookie.fault = late
        reading = asyncio.ensure_future(handle.read_way.ask(name, EntryId(0)))
        await asyncio.sleep(1)
        again = client._handle_of(writer.ledger_id, writer.metadata, b"", None)
        assert await again.links.declare([name]) is None
        frames, _ = writer._frames.encode(EntryId(0), EntryId(-1), 0, OLD)
        again.links.link(name, Purpose.ADD).send_adds(writer.ledger_id, frames, writer._pipeline)
        with pytest.raises(ForeignLedgerError):
            await reading

    run(scenario)


def test_an_explicit_lac_of_the_older_ledger_is_ignored() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        writer = await written(client, OLD)
        await writer.tell_lac()
        assert any(isinstance(one, WriteLacRequest) for one in cluster.bookies[writer.ensemble[0]].asked)
        metadata = goes_back(cluster, writer, b"newer")
        handle = client._handle_of(writer.ledger_id, metadata, b"", None)
        with pytest.raises(LedgerError, match="another ledger"):
            await read_lac(handle.read_way, metadata, explicit=True)

    run(scenario)
