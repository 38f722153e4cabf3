"""Bookies are lost with their disks, fall behind, or lose entries; auto-recovery restores every ledger.

Two auto-recovery processes run the production code of auditor and workers beside writers, through crashes of anything,
partitions and lost answers of the metadata store. In the end every ledger is readable with its bytes, every fragment
names distinct registered bookies, each of which itself serves the entries it must hold, no mark is left, and write sets
are spread over racks and zones wherever the remaining bookies can satisfy the rules. At the end of every run one bookie
starts with an empty disk, and another one is lost permanently: only auto-recovery can restore their copies.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from quire_bookie.client import LedgerWriter
from quire_bookie.errors import BookieUnavailableError, QuireError
from quire_bookie.metadata import layout
from quire_bookie.metadata.cookies import Cookies
from quire_bookie.metadata.ledger_metadata import decode_ledger_metadata
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.recovery_controls import RecoveryControls
from quire_bookie.metadata.under_replication import UnderReplication
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState
from quire_bookie.recovery.fragments import Fragment, closed_fragments
from quire_bookie.recovery.process import RunningAutoRecovery, start_auto_recovery
from quire_bookie.server.process import RunningBookie
from quire_bookie.server.settings import BookieSettings
from quire_bookie.server.start.storage_folders import CURRENT, FolderState, StorageFolders, stamp
from quire_bookie.settings.client import ClientSettings
from quire_bookie.settings.recovery import RecoverySettings
from quire_bookie.wire.digest import Digest
from tests.sim.disk import SimDisk
from tests.sim.faults import Faults, Targets, disturb
from tests.sim.history import HistoryError, LedgerHistory
from tests.sim.ledger_scenario import read_all, recover, write
from tests.sim.loop import Node, SimLoop
from tests.sim.metadata import SimMetadataStore
from tests.sim.placement import Places
from tests.sim.plan import Step
from tests.sim.world import BOOKIE_PORT, DATA_DIR, SimBookie, SimChance, SimClient, World

QUORUMS = ((3, 3, 2), (3, 2, 2), (2, 2, 2), (3, 3, 3))
"""One bookie may be lost with its disk, so an acknowledgement needs two."""
PATIENCE_S = 1500.0


@dataclass(slots=True)
class Recoverer:
    """A host for an auto-recovery process, running or not."""

    host: str
    node: Node | None = None
    session: SimMetadataStore | None = None
    running: RunningAutoRecovery | None = None


@dataclass(slots=True)
class Cluster:
    """Owns the world and its auto-recovery processes."""

    world: World
    settings: RecoverySettings
    client_settings: dict[str, Any] = field(default_factory=dict)
    recoverers: list[Recoverer] = field(default_factory=list)

    async def start(self, host: str) -> Recoverer:
        """Start an auto-recovery process at a host, also after it was killed."""
        place = next((one for one in self.recoverers if one.host == host), None)
        if place is None:
            place = Recoverer(host)
            self.recoverers.append(place)
        world = self.world
        node = place.node = world.loop.start_node(host)
        session = place.session = world.sessions[host] = SimMetadataStore(world.metadata)
        node.on_kill.append(session.cut_for_good)
        starting = start_auto_recovery(
            self.settings,
            metadata=session,
            clock=world.clock_of(host),
            chance=SimChance(world.chance.randrange(1 << 30)),
            name=host,
            client_settings=ClientSettings(
                add_timeout_s=5.0, read_timeout_s=5.0, connect_timeout_s=3.0, **self.client_settings
            ),
            end_limbo=self.end_limbo,
            set_read_only=self.set_read_only,
        )
        place.running = await world.loop.run_on(node, starting)
        return place

    def kill(self, place: Recoverer) -> None:
        """Kill the process; its lease expires later."""
        assert place.node is not None and place.session is not None
        self.world.loop.kill(place.node)
        self.world.loop.call_later(self.world.metadata.session_timeout_s, place.session.lease_ran_out)
        place.node = place.running = place.session = None

    async def end_limbo(self, bookie: BookieId, ledger: LedgerId) -> None:
        """End limbo of a ledger, as the admin HTTP does in production."""
        await self._ask(bookie, lambda running: running.storage.end_limbo(ledger))

    async def set_read_only(self, bookie: BookieId, on: bool) -> None:
        """Set the read-only mode, as the admin HTTP does in production."""
        await self._ask(bookie, lambda running: running.set_read_only(on))

    async def _ask(self, bookie: BookieId, work: Callable[[RunningBookie], Coroutine[Any, Any, None]]) -> None:
        """Run `work` on a bookie. The task never ends if the bookie dies, and cannot be cancelled: it is abandoned."""
        for place in self.world.bookies.values():
            if place.running is not None and place.node is not None and place.running.bookie_id == bookie:
                asked = self.world.loop.run_on(place.node, work(place.running))
                await asyncio.wait((asked,), timeout=10)
                if not asked.done() or asked.cancelled():
                    raise BookieUnavailableError(f"{bookie} did not answer")
                error = asked.exception()
                if error is not None:
                    raise BookieUnavailableError(f"{bookie} refused: {error}") from error
                return
        raise BookieUnavailableError(f"{bookie} is down")

    async def disturb(self, seconds: float) -> None:
        """Kill auto-recovery processes at random moments."""
        loop, steps, at_s = self.world.loop, [], 0.0
        while (at_s := at_s + self.world.chance.uniform(0.5, 8.0)) < seconds:
            host = self.world.chance.choice(self.recoverers).host
            steps.append(Step(at_s, "kill auto-recovery", host, value=self.world.chance.uniform(0.1, 2.0)))
        begun = loop.time()
        for step in loop.plan.choose(steps):
            await asyncio.sleep(max(0.0, begun + step.at_s - loop.time()))
            loop.note(f"fault: {step}")
            place = next(one for one in self.recoverers if one.host == step.who)
            if place.node is not None:
                self.kill(place)
            await self.start_again(place, step.value)

    async def start_again(self, place: Recoverer, pause_s: float) -> None:
        """Start a killed process after a pause, with retries."""
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self.start(place.host)
                return
            except QuireError:
                continue


def lose(world: World, host: str) -> None:
    """Remove a machine and its disks permanently."""
    world.crash_bookie(host, "none")
    del world.bookies[host]


async def wipe(world: World, host: str) -> None:
    """Replace the disk silently by an empty one with a valid cookie: the bookie has no ledger and notices no loss."""
    place = world.bookies[host]
    assert place.running is not None
    stored = await Cookies(SimMetadataStore(world.metadata)).read(place.running.bookie_id)
    assert stored is not None
    world.crash_bookie(host, "none")
    disk = place.disk = SimDisk(chance=random.Random(world.chance.randrange(1 << 30)), latency_s=0.0005)
    settings = BookieSettings(DATA_DIR, port=BOOKIE_PORT, advertise=host)
    folders = StorageFolders(settings.journal_paths, settings.ledger_paths, settings.index_dir)
    for path in folders.places():
        await disk.make_dirs(f"{path}/{CURRENT}")
        await stamp(disk, folders, path, stored.value, FolderState.NEW)
    await world.start_bookie(host)


async def holders(world: World, ledgers: dict[LedgerId, LedgerHistory]) -> list[str]:
    """Return the hosts on which some ledger expects entries."""
    nodes = LedgerNodes(SimMetadataStore(world.metadata))
    named: set[BookieId] = set()
    for ledger in ledgers:
        for fragment in closed_fragments((await nodes.read(ledger)).value):
            named.update(b for position, b in enumerate(fragment.ensemble) if fragment.ends(position) is not None)
    return sorted(
        host for host, place in world.bookies.items() if place.running is not None and place.running.bookie_id in named
    )


async def lasting_damage(world: World, ledgers: dict[LedgerId, LedgerHistory], places: Places) -> None:
    """An emptied bookie gets its entries back; a permanently lost one is replaced, by a new bookie if necessary."""
    world.bookies["b9"] = SimBookie("b9", SimDisk(chance=random.Random(world.chance.randrange(1 << 30))))
    await world.start_bookie("b9")
    await places.write_rack_map()
    hosts = await holders(world, ledgers)
    if not hosts:
        return  # not one entry was confirmed
    early: list[str] = []
    guard = asyncio.ensure_future(watch_replacements(world, ledgers, early))
    await asyncio.sleep(0.1)
    await wipe(world, world.chance.choice(hosts))
    assert await shortfall(world, ledgers), "an empty bookie is named for a replica that it does not have"
    await settle(world, ledgers)
    lose(world, world.chance.choice(await holders(world, ledgers)))
    assert await shortfall(world, ledgers), "a lost bookie is named for a replica"
    await settle(world, ledgers)
    if guard.done():
        guard.result()
    guard.cancel()
    if early:
        raise HistoryError(f"a bookie joined an ensemble before it had the entries: {early}")


async def watch_replacements(world: World, ledgers: dict[LedgerId, LedgerHistory], early: list[str]) -> None:
    """Check, when the metadata begins to name a bookie for a closed fragment, whether it has all of its entries."""
    store = SimMetadataStore(world.metadata)
    nodes = LedgerNodes(store)
    named = {ledger: closed_fragments((await nodes.read(ledger)).value) for ledger in ledgers}
    async for event in await store.watch(f"{layout.ROOT}/"):
        ledger = layout.ledger_of_path(event.key)
        if ledger not in ledgers:
            continue
        metadata = decode_ledger_metadata(world.metadata.nodes[event.key].value)
        fragments = closed_fragments(metadata)
        fresh = [fragment for fragment in fragments if fragment not in named[ledger]]
        before = {fragment.first: set(fragment.ensemble) for fragment in named[ledger]}
        named[ledger] = fragments
        for fragment in fresh:
            for position, bookie in enumerate(fragment.ensemble):
                if bookie not in before.get(fragment.first, ()):
                    trouble = await replica_shortfall(world, ledger, metadata, fragment, position, ledgers[ledger])
                    early += [trouble] if trouble else []


async def shortfall(world: World, ledgers: dict[LedgerId, LedgerHistory]) -> str:
    """Describe the first ledger that is not fully replicated yet; empty if all are."""
    store = SimMetadataStore(world.metadata)
    marks = [mark.ledger async for page in UnderReplication(store, world.clock).marks() for mark in page]
    if marks:
        return f"marked: {marks}"
    for ledger, history in ledgers.items():
        metadata = (await LedgerNodes(store).read(ledger)).value
        if metadata.state is not LedgerState.CLOSED:
            return f"ledger {ledger} is {metadata.state.name}"
        trouble = await ledger_shortfall(world, ledger, metadata, history)
        if trouble:
            return trouble
    return ""


async def ledger_shortfall(
    world: World,
    ledger: LedgerId,
    metadata: LedgerMetadata,
    history: LedgerHistory,
) -> str:
    """Describe the first replica of a fragment that lacks entries. HistoryError for wrong bytes."""
    for fragment in closed_fragments(metadata):
        if len(set(fragment.ensemble)) != len(fragment.ensemble):
            raise HistoryError(f"ledger {ledger}: a bookie is named for two replicas: {fragment}")
        for position in range(len(fragment.ensemble)):
            trouble = await replica_shortfall(world, ledger, metadata, fragment, position, history)
            if trouble:
                return trouble
    return ""


async def replica_shortfall(
    world: World,
    ledger: LedgerId,
    metadata: LedgerMetadata,
    fragment: Fragment,
    position: int,
    history: LedgerHistory,
) -> str:
    """Describe the first entry that a replica lacks; empty if none. HistoryError for wrong bytes."""
    digest = Digest(metadata.digest_type, metadata.password)
    bookie = fragment.ensemble[position]
    running = [place for place in world.bookies.values() if place.running is not None]
    place = next((one for one in running if one.running is not None and one.running.bookie_id == bookie), None)
    if place is None or place.node is None or place.running is None:
        return f"ledger {ledger}: {bookie} is not running: {fragment}"
    for first, last in fragment.stored(position):
        for entry in range(first, last + 1):
            reading = place.running.storage.read(ledger, EntryId(entry))
            try:
                data = await world.loop.run_on(place.node, reading)
            except QuireError as error:
                return f"ledger {ledger} entry {entry} at {bookie}: {error}"
            payload = bytes(digest.decode_entry(data, ledger, EntryId(entry)).payload)
            if payload != history.submitted[entry]:
                raise HistoryError(f"ledger {ledger} entry {entry} at {bookie} has other bytes")
    return ""


async def fill(
    world: World, client: SimClient, count: int, *, pause_s_max: float = 0.05
) -> tuple[dict[LedgerId, LedgerHistory], list["asyncio.Task[None]"]]:
    """Create ledgers of several quorums; some are closed soon, others written until the faults end.

    `pause_s_max`: the longest pause between two appends.
    """
    ledgers: dict[LedgerId, LedgerHistory] = {}
    feeding = []
    for number in range(count):
        e, w, a = world.chance.choice(QUORUMS)
        writer: LedgerWriter = await world.on(
            client, client.ledgers.create_ledger(ensemble_size=e, write_quorum=w, ack_quorum=a)
        )
        history = ledgers[writer.ledger_id] = LedgerHistory()
        seconds = 2.0 if number % 2 else world.chance.uniform(5.0, 20.0)
        feeding.append(world.on(client, feed(world, client, writer, history, seconds, pause_s_max)))
    return ledgers, feeding


async def feed(
    world: World,
    client: SimClient,
    writer: LedgerWriter,
    history: LedgerHistory,
    seconds: float,
    pause_s_max: float = 0.05,
) -> None:
    """Write for a while, then close; a failed writer leaves its ledger to a recovery."""
    await write(world, client, writer, history, world.loop.time() + seconds, pause_s_max=pause_s_max)
    try:
        await writer.close()
    except QuireError:
        return


async def run(loop: SimLoop, seed: int) -> dict[LedgerId, LedgerHistory]:
    """Run one seed. Raises HistoryError or AssertionError if a guarantee is violated."""
    world = World(loop, seed)
    places = Places.draw(world, random.Random(seed * 2 + 1))
    await world.start_bookies(world.chance.choice((4, 5)))
    settings = RecoverySettings(
        workers=world.chance.choice((1, 2)),
        lost_bookie_delay_s=world.chance.choice((0, 5, 40)),
        rate_bytes_s=world.chance.choice((0, 1 << 20)),
        check_interval_s=60.0,
        placement_check_interval_s=30.0,
        repair_placement=True,
        open_ledger_grace_s=10.0,
        retry_s=(3.0, 30.0),
        poll_s=10.0,
    )
    await places.write_rack_map()
    cluster = Cluster(world, settings, places.client_settings)
    for host in ("ar1", "ar2"):
        await cluster.start(host)
    writing, reading = [await world.start_client(host, **places.client_settings) for host in ("writer", "reader")]
    ledgers, feeding = await fill(world, writing, world.chance.randrange(2, 6))
    await asyncio.sleep(world.chance.uniform(0.0, 6.0))
    if not loop.plan.calm:
        await inject_faults(cluster)
    await asyncio.gather(*feeding)
    for ledger, history in ledgers.items():
        await recover(world, reading, ledger, history, "reader")
    await settle(world, ledgers)
    await places.settle([*ledgers], PATIENCE_S)
    if not loop.plan.calm:
        await lasting_damage(world, ledgers, places)
        await places.settle([*ledgers], PATIENCE_S)
        await settle(world, ledgers)
    for ledger, history in ledgers.items():
        reader = await world.on(reading, reading.ledgers.open_ledger(ledger, recover=False))
        await world.on(reading, read_all(reader, history, "after"))
        history.check()
    return ledgers


async def inject_faults(cluster: Cluster) -> None:
    """Let one bookie be lost, lose entries or stay away amid all the other faults; then end those faults."""
    world, loop = cluster.world, cluster.world.loop
    lost = world.chance.choice(sorted(world.bookies))
    kind = world.chance.choice(("lost", "lost", "limbo", "away"))
    loop.note(f"{lost}: {kind}")
    if kind == "lost":
        lose(world, lost)
    elif kind == "limbo":
        place = world.bookies[lost]
        assert place.node is not None and place.running is not None
        await loop.run_on(place.node, place.running.storage.enter_limbo([LedgerId(1000)]))
    else:
        world.crash_bookie(lost, "random")
    seconds = world.chance.uniform(5.0, 25.0)
    faults = [asyncio.ensure_future(cluster.disturb(seconds))]
    if kind != "lost" or world.chance.random() < 0.5:
        # A second bookie is down at a time, but not lost: the entries that it acknowledged are on its disk.
        faults.append(asyncio.ensure_future(disturb(world, ("writer", "reader", "ar1", "ar2"), seconds, down_max=1)))
    else:
        world.metadata.unknown_chance = world.chance.choice((0.0, 0.02, 0.1))
    await asyncio.gather(*faults)
    await Faults(world, Targets(sorted(world.bookies), ())).heal()


async def settle(world: World, ledgers: dict[LedgerId, LedgerHistory]) -> None:
    """Wait until all ledgers are fully replicated, with an administrator's help on the way."""
    end = world.loop.time() + PATIENCE_S
    asked = False
    while trouble := await shortfall(world, ledgers):
        if world.loop.time() > end:
            raise AssertionError(f"not fully replicated after {PATIENCE_S:.0f} s: {trouble}")
        await asyncio.sleep(5.0)
        if not asked and world.loop.time() > end - PATIENCE_S + 60:
            asked = True
            controls = RecoveryControls(SimMetadataStore(world.metadata))
            await controls.set_lost_bookie_delay_s(await controls.lost_bookie_delay_s() or 0)
