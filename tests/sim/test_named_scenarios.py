"""Bugs that BookKeeper had, or that its design invites, each as a run of the whole cluster for a few seeds.

The docstring of each test describes the bug. The guarantees are the same everywhere: no confirmed entry is lost, all
clients agree on the last entry, no bookie answers *no such entry* for an entry that it has lost.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from quire_bookie.client import LedgerWriter
from quire_bookie.errors import LedgerError, NoSuchLedgerError, QuireError, StartupError
from quire_bookie.model import EntryId
from quire_bookie.settings.collection import GarbageCollectionSettings, QuarantineSettings
from tests.sim.disk import SimDisk
from tests.sim.history import LedgerHistory
from tests.sim.ledger_scenario import read_all, recover
from tests.sim.loop import SimLoop, simulate
from tests.sim.stored_entries import check_copies
from tests.sim.world import SimClient, World, retry

HOSTS = ("b1", "b2", "b3")
SEEDS = pytest.mark.parametrize("seed", range(2))


@dataclass
class Stage:
    """Owns three bookies, a writer and two openers, and one ledger with quorums 3/3/2."""

    world: World
    writing: SimClient
    openers: dict[str, SimClient]
    writer: LedgerWriter
    history: LedgerHistory = field(default_factory=LedgerHistory)

    def on_confirmed(self, up_to: EntryId) -> None:
        """See WriterListener."""
        self.history.on_confirm(up_to)

    def on_failed(self, error: LedgerError) -> None:
        """See WriterListener."""
        self.history.failed = True

    async def write(self, count: int, *, pause_s: float = 0.005) -> None:
        """Submit `count` entries, until the writer refuses one."""
        for _ in range(count):
            payloads = [b"%d" % len(self.history.submitted) + bytes(self.world.chance.choice((0, 300)))]
            try:
                first = self.writer.submit(payloads)
            except QuireError:
                return
            self.history.on_submit(first, payloads)
            await asyncio.sleep(self.world.chance.uniform(0, 2 * pause_s))

    async def confirmed(self) -> None:
        """Wait until all submitted entries are confirmed."""
        while self.history.confirmed_up_to < len(self.history.submitted) - 1:  # noqa: ASYNC110  virtual time
            await asyncio.sleep(0.01)

    async def take_over(self, *names: str) -> None:
        """Let these openers recover the ledger at once, and check their reads."""
        ledger = self.writer.ledger_id
        await asyncio.gather(
            *(recover(self.world, self.openers[name], ledger, self.history, name) for name in names or self.openers)
        )

    async def check(self) -> None:
        """Check the history after 30 seconds without activity."""
        await asyncio.sleep(30)
        self.history.check()
        assert self.history.closings, "no client closed the ledger"
        await check_copies(self.world, self.writer.ledger_id, self.history, EntryId(self.history.closings[-1]))

    def crash(self, host: str) -> SimDisk:
        """Cut the power of a bookie and return its disk."""
        self.world.crash_bookie(host, "none")
        return self.world.bookies[host].disk


def run_scenario(seed: int, scenario: Callable[[Stage], Awaitable[None]], *, collects_each_s: float = 3600.0) -> None:
    """Build the cluster and run the scenario on it."""

    async def run(loop: SimLoop) -> None:
        world = World(loop, seed)
        world.flush_interval_s = (0.2, 1.0)
        world.garbage_collection_settings = GarbageCollectionSettings(
            interval_s=collects_each_s, quarantine=QuarantineSettings(0.0)
        )
        await world.start_bookies(len(HOSTS))
        writing = await world.start_client("writer")
        openers = {name: await world.start_client(name) for name in ("opener", "other")}
        created = writing.ledgers.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        stage = Stage(world, writing, openers, await world.on(writing, created))
        stage.writer.listener = stage
        await scenario(stage)
        assert not loop.failures, loop.failures

    simulate(run, seed=seed)


@SEEDS
def test_a_bookie_that_the_first_round_of_a_recovery_did_not_reach_is_fenced_by_its_reads(seed: int) -> None:
    """Fencing gap: Java's recovery reads did not fence, so a bookie that was silent at first accepted the writer's adds
    after it had answered *no such entry* to the recovery."""

    async def scenario(stage: Stage) -> None:
        network = stage.world.loop.network
        feeding = stage.world.on(stage.writing, stage.write(400))
        await asyncio.sleep(0.5)
        behind, unreached = stage.world.chance.sample(HOSTS, 2)
        network.cut_one_way("writer", behind)
        for name in stage.openers:
            network.partition(name, unreached)
        stage.world.loop.call_later(stage.world.chance.uniform(0.01, 0.2), network.heal)
        await stage.take_over()
        await feeding
        await stage.check()
        assert stage.history.failed, "the writer did not notice the fence"

    run_scenario(seed, scenario)


@SEEDS
def test_a_damaged_log_does_not_end_a_ledger_early(seed: int) -> None:
    """Truncation: a bookie that could not read an entry answered *no such entry*, and recovery closed the ledger there
    although it was confirmed."""

    async def scenario(stage: Stage) -> None:
        await stage.world.on(stage.writing, stage.write(60))
        await stage.confirmed()
        await asyncio.sleep(3.0)  # until it is flushed
        stage.world.kill_client(stage.writing)
        host = stage.world.chance.choice(HOSTS)
        disk = stage.crash(host)
        logs = [path for path in disk._names if "/ledgers/" in path and len(disk.content(path)) > 2000]
        assert logs, sorted(disk._names)
        for path in logs:
            for offset in range(1100, len(disk.content(path)), 97):
                disk.corrupt(path, offset)
        await stage.world.start_bookie(host)
        await stage.take_over()
        await asyncio.sleep(30)
        stage.history.check()
        assert stage.history.closings[-1] == stage.history.confirmed_up_to == 59

    run_scenario(seed, scenario)


@SEEDS
def test_what_a_writer_adds_after_the_deletion_is_collected_too(seed: int) -> None:
    """Write after delete: adds that arrived after a ledger was collected brought it back, and it stayed forever."""

    async def scenario(stage: Stage) -> None:
        feeding = stage.world.on(stage.writing, stage.write(600, pause_s=0.01))
        await asyncio.sleep(1.0)
        deleting = stage.openers["opener"]
        await retry(
            lambda: stage.world.on(deleting, deleting.ledgers.delete_ledger(stage.writer.ledger_id)), seconds=60
        )
        await feeding
        stage.world.kill_client(stage.writing)
        await asyncio.sleep(20)
        for place in stage.world.bookies.values():
            assert place.node is not None and place.running is not None
            assert await stage.world.loop.run_on(place.node, place.running.storage.ledgers()) == []

    run_scenario(seed, scenario, collects_each_s=0.3)


@SEEDS
def test_a_recovery_that_races_garbage_collection_neither_loses_nor_revives(seed: int) -> None:
    """Recovery against garbage collection: copies that a recovery stored while bookies collected were removed as those
    of a deleted ledger, or brought a deleted ledger back."""

    async def scenario(stage: Stage) -> None:
        world = stage.world
        client = stage.writing
        doomed = await world.on(client, client.ledgers.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2))
        for number in range(30):
            doomed.submit([b"%d" % number])
        await world.on(client, stage.write(100))
        world.kill_client(client)
        one, other = stage.openers.values()

        async def revive() -> None:
            try:
                await world.on(one, one.ledgers.open_ledger(doomed.ledger_id, recover=True))
            except QuireError:
                return

        reviving = asyncio.ensure_future(revive())
        await asyncio.sleep(world.chance.uniform(0.0, 0.05))
        await retry(lambda: world.on(other, other.ledgers.delete_ledger(doomed.ledger_id)), seconds=60)
        await stage.take_over()
        await reviving
        await asyncio.sleep(20)
        with pytest.raises(NoSuchLedgerError):
            await world.on(one, one.ledgers.open_ledger(doomed.ledger_id, recover=True))
        for place in world.bookies.values():
            assert place.node is not None and place.running is not None
            assert doomed.ledger_id not in await world.loop.run_on(place.node, place.running.storage.ledgers())
        await stage.check()

    run_scenario(seed, scenario, collects_each_s=0.1)


@SEEDS
def test_two_recoveries_and_a_writer_agree_on_one_end(seed: int) -> None:
    """Two recoveries that had asked different bookies closed the ledger at different entries, while adds of its writer
    were still acknowledged."""

    async def scenario(stage: Stage) -> None:
        network = stage.world.loop.network
        feeding = stage.world.on(stage.writing, stage.write(400))
        await asyncio.sleep(stage.world.chance.uniform(0.2, 1.0))
        network.partition("opener", "b1")
        network.partition("other", "b3")
        stage.world.loop.call_later(2.0, network.heal)
        await stage.take_over()
        await feeding
        await stage.check()
        assert len(stage.history.closings) == 2

    run_scenario(seed, scenario)


@SEEDS
def test_a_bookie_that_returns_with_an_old_disk_makes_no_confirmed_entry_unreadable(seed: int) -> None:
    """A bookie came back with a week-old image of its disk and answered *no such entry* for entries acknowledged since,
    and readers believed it. With an empty disk it is a different bookie."""

    async def scenario(stage: Stage) -> None:
        world = stage.world
        host = world.chance.choice(HOSTS)
        await world.on(stage.writing, stage.write(20))
        await stage.confirmed()
        kept = stage.crash(host)
        old = kept.crash("none")
        kept.crashed = False  # it was set only for the copy
        await world.start_bookie(host)
        await world.on(stage.writing, stage.write(40))
        await stage.confirmed()
        await retry(lambda: world.on(stage.writing, stage.writer.close()), seconds=60)
        await asyncio.sleep(5.0)
        stage.crash(host)
        world.bookies[host].disk = old
        await world.start_bookie(host)
        for name, client in stage.openers.items():
            opened = client.ledgers.open_ledger(stage.writer.ledger_id, recover=True)
            reader = await world.on(client, opened)
            assert reader.last_add_confirmed == stage.history.confirmed_up_to == 59
            await world.on(client, read_all(reader, stage.history, name))
        stage.history.check()
        stage.crash(host)
        world.bookies[host].disk = SimDisk()
        await world.start_bookie(host)
        running = world.bookies[host].running
        assert running is not None and running.bookie_id not in stage.writer.metadata.segments[-1].ensemble

    run_scenario(seed, scenario)


@SEEDS
def test_a_wiped_journal_beside_an_old_ledger_disk_does_not_end_a_ledger_early(seed: int) -> None:
    """A bookie whose journal disk was replaced started with its ledger disk alone, and answered *no such entry* for
    entries that only the journal had: together with a replica that never had such an entry this closed the ledger
    before it."""

    async def scenario(stage: Stage) -> None:
        world = stage.world
        await world.on(stage.writing, stage.write(30))
        await stage.confirmed()
        host, behind = world.chance.sample(HOSTS, 2)
        await asyncio.sleep(3.0)
        world.loop.network.cut_one_way("writer", behind)  # the following entries are on two bookies
        await world.on(stage.writing, stage.write(10, pause_s=0.001))
        await stage.confirmed()
        world.kill_client(stage.writing)
        disk = stage.crash(host)
        for path in [path for path in disk._names if "journal" in path]:
            del disk._names[path]
            disk._durable_names.pop(path, None)
        world.loop.network.heal()
        try:
            await world.start_bookie(host)
        except StartupError:
            world.crash_bookie(host, "none")  # it needs an administrator: treat it as down
        await stage.take_over()
        await asyncio.sleep(30)
        stage.history.check()
        assert stage.history.closings[-1] >= stage.history.confirmed_up_to == 39

    run_scenario(seed, scenario)
