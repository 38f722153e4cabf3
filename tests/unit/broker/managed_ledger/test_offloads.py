"""Offloading on simulated metadata, with bookies and a bucket in memory: attempts, copies, reads, crashes."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from quire_bookie.errors import LedgerError
from quire_bookie.model import LedgerId
from quire_broker.errors import ConflictError, OffloadError
from quire_broker.managed_ledger import ManagedLedger, ManagedLedgerState, Position
from quire_broker.managed_ledger.errors import ManagedLedgerFencedError
from quire_broker.managed_ledger.list_store import node_path
from quire_broker.managed_ledger.nodes.node_codec import decode_list, encode_list
from quire_broker.managed_ledger.nodes.offload_attempts import OffloadRefusedError
from quire_broker.managed_ledger.reading.tiers import OffloadedReadError
from quire_broker.offload.format import data_key, index_key
from quire_broker.offload.segment_writer import write_segment
from quire_broker.offload.settings import OffloadSettings, ReadFirst
from quire_broker.offload.target import OffloadTarget
from quire_broker.offload.tier import Tier
from tests.unit.broker.managed_ledger.memory_object_store import MemoryObjectStore
from tests.unit.broker.managed_ledger.world import NAME, Process, World, append, run

TARGET = OffloadTarget("aws-s3", "memory", "", "http://s3")
PAUSES_S = (0.02, 0.5, 0.07, 11.3, 0.3, 110.2, 0.011, 10.05, 101.1, 0.04, 120.0, 12.5)
"""Lifetimes of brokers: some end within an offload, some within the deletion of the bookies' copies, some later."""
PAYLOADS = [b"entry %03d" % number for number in range(20)]


def settings(**changes: Any) -> dict[str, Any]:
    """Return settings for retained ledgers of 5 entries, with `changes` of the offload settings."""
    offload = OffloadSettings(**{"target": TARGET, "deletion_lag_s": 100.0, **changes})
    kept = {"retention_s": -1, "retention_bytes": -1, "trim_interval_s": 10.0}
    return {"ledger_entries_max": 5, "offload": offload, **kept}


class Bucketed:
    """A topic of 20 entries in ledgers of 5, and a bucket."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.bucket = MemoryObjectStore()
        self.process = self._process()
        self.ledger: ManagedLedger

    def _process(self) -> Process:
        process = self.world.process()
        process.tier = Tier(opened=lambda target: self.bucket)
        return process

    async def fill(self) -> list[int]:
        """Return the closed ledgers."""
        self.ledger = await self.process.open()
        for payload in PAYLOADS:
            await self.process.run(append(self.ledger, payload))
        await self.process.run(self.ledger.roll())
        return [record.ledger_id for record in self.ledger.ledgers if record.closed_ms]

    async def take_over(self, *, kill: bool = True) -> None:
        """Let another broker take the topic over."""
        if kill:
            self.process.kill()
        self.process = self._process()
        self.ledger = await self.process.open()

    async def write(self, ledger: int, uuid: str) -> Any:
        reader = await self.process.client.open_ledger(LedgerId(ledger), recover=False)
        return await write_segment(self.bucket, reader, uuid)

    async def offload(self, ledger: int) -> str:
        """Offload one ledger as a job does."""
        uuid, _ = await self.ledger.offloads.begin(ledger, TARGET, {})
        summary = await self.write(ledger, uuid)
        await self.ledger.offloads.complete(ledger, uuid, summary.entries, summary.payload_bytes)
        return uuid

    async def read_all(self) -> list[bytes]:
        found = await self.ledger.read(self.ledger.first_position(), 1000)
        return [bytes(entry.data) for entry in found]

    def context(self, ledger: int) -> Any:
        return next(record.offload for record in self.world.list_node().ledgers if record.ledger_id == ledger)


def play(scenario: Any, **changes: Any) -> None:
    """Run `scenario(bucketed, closed ledgers)`."""

    async def work(world: World) -> None:
        bucketed = Bucketed(world)
        closed = await bucketed.fill()
        await bucketed.process.run(scenario(bucketed, closed))

    run(work, **settings(**changes))


def test_after_a_complete_attempt_the_bookies_copy_is_deleted_after_the_lag() -> None:
    async def scenario(at: Bucketed, closed: list[int]) -> None:
        uuid = await at.offload(closed[0])
        context = at.context(closed[0])
        assert (context.uuid, context.driver) == (uuid, "aws-s3")
        assert context.complete and not context.bookies_deleted
        assert dict(context.properties) == TARGET.properties
        await asyncio.sleep(50)
        assert closed[0] in at.world.bookies.ledgers
        await asyncio.sleep(80)
        assert at.context(closed[0]).bookies_deleted
        assert closed[0] not in at.world.bookies.ledgers and closed[1] in at.world.bookies.ledgers
        assert await at.read_all() == PAYLOADS
        assert not [key for key in at.world.metadata.nodes if key.startswith("/quire/unreferenced")]

    play(scenario)


def test_ledgers_that_cannot_be_offloaded_are_refused_with_the_reason() -> None:
    async def scenario(at: Bucketed, closed: list[int]) -> None:
        offloads, tail = at.ledger.offloads, at.ledger.ledgers[-1].ledger_id
        for ledger, reason in ((999, "is not listed"), (tail, "is open")):
            with pytest.raises(OffloadRefusedError, match=reason):
                await offloads.begin(ledger, TARGET, {})
        uuid, record = await offloads.begin(closed[0], TARGET, {})
        assert (record.entries, record.size_bytes) == (5, 45)
        with pytest.raises(OffloadRefusedError, match="is in progress for 0 s"):
            await offloads.begin(closed[0], TARGET, {})
        with pytest.raises(OffloadRefusedError, match="5 entries of 45 bytes; the offload has 5 of 44"):
            await offloads.complete(closed[0], uuid, 5, 44)
        with pytest.raises(OffloadRefusedError, match="could not verify the objects"):
            await offloads.complete(closed[0], uuid, 5, 45)
        with pytest.raises(OffloadRefusedError, match="aborted or replaced"):
            await offloads.complete(closed[0], "00000000-0000-4000-8000-000000000000", 5, 45)
        with pytest.raises(OffloadRefusedError, match="no longer listed"):
            await offloads.complete(999, uuid, 5, 45)
        await at.write(closed[0], uuid)
        await offloads.complete(closed[0], uuid, 5, 45)
        await offloads.complete(closed[0], uuid, 5, 45)
        await offloads.abort(closed[0], uuid)
        assert at.context(closed[0]).complete
        with pytest.raises(OffloadRefusedError, match="already offloaded"):
            await offloads.begin(closed[0], TARGET, {})

    play(scenario)


def test_objects_of_another_ledger_do_not_complete_an_attempt() -> None:
    async def scenario(at: Bucketed, closed: list[int]) -> None:
        uuid, record = await at.ledger.offloads.begin(closed[0], TARGET, {})
        await at.write(closed[0], uuid)
        name = index_key(uuid, closed[0])
        data = at.bucket.objects[data_key(uuid, closed[0])]
        at.bucket.objects[data_key(uuid, closed[0])] = data[:-1]
        with pytest.raises(OffloadRefusedError, match="ends before"):
            await at.ledger.offloads.complete(closed[0], uuid, record.entries, record.size_bytes)
        at.bucket.objects[name] = b"no index"
        with pytest.raises(OffloadRefusedError, match="an index of 8 bytes"):
            await at.ledger.offloads.complete(closed[0], uuid, record.entries, record.size_bytes)
        assert not at.context(closed[0]).complete

    play(scenario)


def test_an_abort_and_an_abandoned_attempt_lose_their_objects() -> None:
    async def scenario(at: Bucketed, closed: list[int]) -> None:
        offloads = at.ledger.offloads
        first, _ = await offloads.begin(closed[0], TARGET, {}, "job-1")
        await at.write(closed[0], first)
        await offloads.abort(closed[0], first)
        await offloads.abort(closed[0], first)
        await asyncio.sleep(1)
        assert at.context(closed[0]) is None and at.bucket.objects == {}
        second, _ = await offloads.begin(closed[0], TARGET, {}, "job-1")
        await at.write(closed[0], second)
        with pytest.raises(OffloadRefusedError, match="an attempt of job-1"):
            await offloads.begin(closed[0], TARGET, {}, "job-2")
        third, _ = await offloads.begin(closed[0], TARGET, {}, "job-1")
        await asyncio.sleep(1)
        assert third != second and at.bucket.objects == {}
        await asyncio.sleep(121)
        fourth, _ = await offloads.begin(closed[0], TARGET, {}, "job-2")
        assert at.context(closed[0]).uuid == fourth

    play(scenario, abandoned_after_s=120.0)


def test_a_pinned_ledger_is_not_trimmed_until_its_attempt_ends() -> None:
    async def scenario(at: Bucketed, closed: list[int]) -> None:
        cursor = await at.ledger.open_cursor("all")
        uuid, _ = await at.ledger.offloads.begin(closed[1], TARGET, {})
        cursor.acknowledge_cumulative(at.ledger.last_confirmed)
        await at.ledger.trim()
        assert closed[1] in [record.ledger_id for record in at.ledger.ledgers]
        assert closed[0] not in [record.ledger_id for record in at.ledger.ledgers]
        await at.ledger.offloads.abort(closed[1], uuid)
        await at.ledger.trim()
        assert closed[1] not in [record.ledger_id for record in at.ledger.ledgers]

    async def work(world: World) -> None:
        bucketed = Bucketed(world)
        closed = await bucketed.fill()
        await bucketed.process.run(scenario(bucketed, closed))

    run(work, **(settings() | {"retention_s": 0, "retention_bytes": 0}))


def test_trimming_and_deletion_delete_the_objects_too() -> None:
    async def scenario(at: Bucketed, closed: list[int]) -> None:
        for ledger in closed[:2]:
            await at.offload(ledger)
        assert len(at.bucket.objects) == 4
        cursor = await at.ledger.open_cursor("all")
        cursor.acknowledge_cumulative(Position(closed[0], 4))
        await at.ledger.trim()
        await asyncio.sleep(1)
        assert len(at.bucket.objects) == 2
        await at.process.factory.delete(NAME)
        assert at.bucket.objects == {} and node_path(NAME) not in at.world.metadata.nodes

    async def work(world: World) -> None:
        bucketed = Bucketed(world)
        closed = await bucketed.fill()
        await bucketed.process.run(scenario(bucketed, closed))

    run(work, **(settings() | {"retention_s": 0, "retention_bytes": 0}))


def test_objects_that_could_not_be_deleted_are_deleted_by_the_next_owner() -> None:
    async def work(world: World) -> None:
        at = Bucketed(world)
        closed = await at.fill()

        async def given_up() -> None:
            uuid, _ = await at.ledger.offloads.begin(closed[0], TARGET, {})
            await at.write(closed[0], uuid)
            at.bucket.broken = True
            await at.ledger.offloads.abort(closed[0], uuid)
            await asyncio.sleep(5)

        await at.process.run(given_up())
        assert len(at.bucket.objects) == 2
        at.bucket.broken = False
        await at.take_over()
        await at.process.run(asyncio.sleep(2))
        assert at.bucket.objects == {}
        assert not [key for key in world.metadata.nodes if key.startswith("/quire/unreferenced")]

    run(work, **settings())


@pytest.mark.parametrize("read_first", list(ReadFirst))
def test_each_copy_replaces_the_other(read_first: ReadFirst) -> None:
    async def scenario(at: Bucketed, closed: list[int]) -> None:
        stats = at.process.factory.tier.stats
        for ledger in closed:
            await at.offload(ledger)
        reads, ranges = at.world.bookies.reads, at.bucket.ranges
        assert await at.read_all() == PAYLOADS
        assert (at.world.bookies.reads == reads) == (read_first is ReadFirst.BUCKET)
        assert (at.bucket.ranges == ranges) == (read_first is ReadFirst.BOOKIES)
        assert stats.fallbacks == 0
        for ledger in closed:
            if read_first is ReadFirst.BUCKET:
                del at.bucket.objects[data_key(at.context(ledger).uuid, ledger)]
            else:
                at.world.bookies.broken_reads[ledger] = LedgerError("the bookies are away")
        at.process.factory.tier.windows.drop()
        assert await at.read_all() == PAYLOADS
        assert stats.fallbacks == len(closed)

    play(scenario, read_first=read_first)


def test_a_vanished_object_is_read_from_the_bookies_and_its_ledger_offloaded_again() -> None:
    async def scenario(at: Bucketed, closed: list[int]) -> None:
        uuid = await at.offload(closed[0])
        del at.bucket.objects[data_key(uuid, closed[0])]
        at.process.factory.tier.windows.drop()
        assert await at.read_all() == PAYLOADS
        assert at.process.factory.tier.stats.fallbacks > 0
        await asyncio.sleep(130)
        assert closed[0] in at.world.bookies.ledgers, "the bookies' copy went though the object is gone"
        assert at.context(closed[0]) is None
        await asyncio.sleep(1)
        assert at.bucket.objects == {}
        await at.offload(closed[0])

    play(scenario)


def test_an_unavailable_bucket_keeps_the_bookies_copies_and_is_not_reported_as_a_missing_entry() -> None:
    async def scenario(at: Bucketed, closed: list[int]) -> None:
        await at.offload(closed[0])
        at.bucket.broken = True
        await asyncio.sleep(130)
        assert closed[0] in at.world.bookies.ledgers
        assert await at.read_all() == PAYLOADS
        at.bucket.broken = False
        await asyncio.sleep(30)
        assert closed[0] not in at.world.bookies.ledgers
        at.bucket.broken = True
        with pytest.raises(OffloadedReadError, match="is offloaded and cannot be read"):
            await at.ledger.read(Position(closed[0], 0), 5)
        at.bucket.broken = False
        assert await at.read_all() == PAYLOADS

    play(scenario)


def test_the_broker_offloads_by_thresholds_and_on_request() -> None:
    async def scenario(at: Bucketed, closed: list[int]) -> None:
        await asyncio.sleep(60)
        assert [record.ledger_id for record in at.ledger.ledgers if record.offloaded] == closed[:2]
        assert at.ledger.offloads.status.state == "SUCCESS"
        at.ledger.offloads.run_up_to(at.ledger.ledgers[-1].ledger_id)
        with pytest.raises(ConflictError, match="already in progress"):
            at.ledger.offloads.run_up_to(999)
        assert at.ledger.offloads.status.state == "RUNNING"
        await asyncio.sleep(5)
        assert not at.ledger.offloads.running
        assert [record.ledger_id for record in at.ledger.ledgers if record.offloaded] == closed
        assert at.ledger.offloads.status.first_left == Position(at.ledger.ledgers[-1].ledger_id, 0)
        assert await at.read_all() == PAYLOADS

    play(scenario, threshold_bytes=90)


def test_a_request_without_a_target_names_the_missing_setting() -> None:
    async def scenario(at: Bucketed, closed: list[int]) -> None:
        with pytest.raises(OffloadError, match="set managedLedgerOffloadDriver"):
            at.ledger.offloads.run_up_to(999)

    play(scenario, target=None)


@pytest.mark.parametrize("writes", [0, 1])
def test_a_failed_upload_aborts_its_attempt_and_reports_the_reason(writes: int) -> None:
    async def scenario(at: Bucketed, closed: list[int]) -> None:
        at.bucket.fail_after = writes
        at.ledger.offloads.run_up_to(closed[1])
        await asyncio.sleep(5)
        assert not at.ledger.offloads.running
        await asyncio.sleep(5)
        assert at.ledger.offloads.status.state == "ERROR"
        assert "injected" in at.ledger.offloads.status.last_error
        assert at.context(closed[0]) is None and at.bucket.objects == {}
        at.ledger.offloads.run_up_to(closed[1])
        await asyncio.sleep(5)
        assert not at.ledger.offloads.running
        assert at.context(closed[0]).complete

    play(scenario)


def test_an_owner_that_lost_the_topic_is_fenced_by_its_attempt() -> None:
    async def work(world: World) -> None:
        at = Bucketed(world)
        closed = await at.fill()
        former, process = at.ledger, at.process
        await at.take_over(kill=False)
        with pytest.raises(ManagedLedgerFencedError):
            await process.run(former.offloads.begin(closed[0], TARGET, {}))
        assert former.state is ManagedLedgerState.FENCED
        assert at.context(closed[0]) is None

    run(work, **settings())


@pytest.mark.parametrize("whole", [True, False])
def test_an_attempt_that_holds_the_only_copy_is_completed_instead_of_replaced(*, whole: bool) -> None:
    """The metadata were restored from before its completion; the bookies' copy was deleted since."""

    async def scenario(at: Bucketed, closed: list[int]) -> None:
        uuid, _ = await at.ledger.offloads.begin(closed[0], TARGET, {}, "job")
        await at.write(closed[0], uuid)
        if not whole:
            del at.bucket.objects[index_key(uuid, closed[0])]
        del at.world.bookies.ledgers[closed[0]]
        if not whole:
            assert (await at.ledger.offloads.begin(closed[0], TARGET, {}, "job"))[0] != uuid
            return
        at.bucket.broken = True
        with pytest.raises(OffloadRefusedError, match="only copy and cannot be checked now"):
            await at.ledger.offloads.begin(closed[0], TARGET, {}, "job")
        at.bucket.broken = False
        with pytest.raises(OffloadRefusedError, match="already offloaded"):
            await at.ledger.offloads.begin(closed[0], TARGET, {}, "job")
        assert at.context(closed[0]).complete and at.context(closed[0]).uuid == uuid
        assert await at.read_all() == PAYLOADS

    play(scenario)


def test_remaining_objects_of_a_deleted_topic_are_deleted_by_the_next_topic_of_its_name() -> None:
    async def scenario(at: Bucketed, closed: list[int]) -> None:
        for ledger in closed:
            await at.offload(ledger)
        at.bucket.broken = True
        await at.process.factory.delete(NAME)
        assert node_path(NAME) not in at.world.metadata.nodes
        noted = [key for key in at.world.metadata.nodes if key.startswith("/quire/unreferenced-segments")]
        assert len(noted) == len(closed) and len(at.bucket.objects) == 2 * len(closed)
        at.bucket.broken = False
        at.ledger = await at.process.open()
        await asyncio.sleep(5)
        assert at.bucket.objects == {}
        assert not [key for key in at.world.metadata.nodes if key.startswith("/quire/unreferenced")]

    play(scenario)


def test_a_bucket_that_cannot_be_opened_does_not_delay_the_copies_of_another() -> None:
    async def scenario(at: Bucketed, closed: list[int]) -> None:
        for ledger in closed[:2]:
            await at.offload(ledger)
        node = at.world.metadata.nodes[node_path(NAME)]
        kept = decode_list(node.value)
        foreign = replace(kept.ledgers[0].offload, driver="filesystem")  # type: ignore[type-var]
        records = (replace(kept.ledgers[0], offload=foreign), *kept.ledgers[1:])
        await at.ledger.close()
        node = at.world.metadata.nodes[node_path(NAME)]
        await at.process.store.put(node_path(NAME), encode_list(replace(kept, ledgers=records)), expected=node.version)
        at.ledger = await at.process.open()
        await asyncio.sleep(130)
        assert closed[0] in at.world.bookies.ledgers and closed[1] not in at.world.bookies.ledgers

    play(scenario)


def test_a_ledger_without_a_readable_copy_is_unreadable_and_not_missing() -> None:
    async def scenario(at: Bucketed, closed: list[int]) -> None:
        await at.offload(closed[0])
        del at.world.bookies.ledgers[closed[0]]
        at.bucket.broken = True
        with pytest.raises(OffloadedReadError, match="is offloaded and cannot be read"):
            await at.ledger.read(Position(closed[0], 0), 5)

    play(scenario)


def test_a_last_ledger_that_only_the_bucket_has_is_not_dropped_at_opening() -> None:
    """Another broker implementation may have deleted the bookies' copy of the newest ledger."""

    async def work(world: World) -> None:
        at = Bucketed(world)
        closed = await at.fill()
        await at.process.run(at.offload(closed[-1]))
        await at.process.run(at.ledger.close())
        node = world.metadata.nodes[node_path(NAME)]
        kept = decode_list(node.value)
        records = tuple(record for record in kept.ledgers if record.ledger_id <= closed[-1])
        await at.process.run(
            at.process.store.put(node_path(NAME), encode_list(replace(kept, ledgers=records)), expected=node.version)
        )
        del world.bookies.ledgers[closed[-1]]
        await at.take_over()
        assert at.ledger.entries == len(PAYLOADS)
        assert await at.process.run(at.read_all()) == PAYLOADS

    run(work, **settings())


@pytest.mark.parametrize("seed", range(12))
def test_a_broker_killed_at_any_moment_leaves_a_state_that_the_next_owner_completes(seed: int) -> None:
    """Killed while offloading, deleting copies or answering; the next owner reaches the same final state."""

    async def work(world: World) -> None:
        at = Bucketed(world)
        await at.fill()
        world.metadata.unknown_chance = 0.1 if seed % 2 else 0.0
        for life in range(4):
            pause_s = PAUSES_S[(seed + life * 5) % len(PAUSES_S)]
            await world.loop.run_on(world.loop.start_node(f"clock-{life}"), asyncio.sleep(pause_s))
            await at.take_over()
            assert await at.process.run(at.read_all()) == PAYLOADS
        await at.process.run(asyncio.sleep(300))
        assert await at.process.run(at.read_all()) == PAYLOADS
        world.metadata.unknown_chance = 0.0
        records = world.list_node().ledgers
        assert all(record.offloaded for record in records[:4])
        named = {record.offload.uuid for record in records if record.offload is not None}
        leftovers = {name[:36] for name in at.bucket.objects} - named
        assert len(leftovers) <= 4  # of uploads that continued while their attempt was replaced
        assert not any(record.ledger_id in world.bookies.ledgers for record in records[:4])

    run(work, seed=seed, **settings(threshold_bytes=0))


def test_other_policies_apply_to_the_next_ledger_of_a_loaded_topic() -> None:
    async def scenario(at: Bucketed, closed: list[int]) -> None:
        await asyncio.sleep(300)
        assert at.context(closed[0]) is None, "nothing is offloaded without a threshold"
        base = at.world.settings
        at.ledger.use(replace(base, offload=replace(base.offload, threshold_bytes=0)))
        await asyncio.sleep(300)
        assert all(at.context(ledger).complete for ledger in closed)
        at.ledger.use(replace(base, offload=replace(base.offload, target=None)))
        with pytest.raises(OffloadError, match="no offload target"):
            at.ledger.offloads.run_up_to(closed[-1])

    play(scenario)
