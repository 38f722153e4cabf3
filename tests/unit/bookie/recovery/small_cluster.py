"""Real bookies on a simulated loop, and ledgers whose replicas hold exactly the entries that a test chooses.

Tests only.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from quire_bookie.client.ledger_entry import LedgerEntry
from quire_bookie.env.rate_limit import RateLimit
from quire_bookie.errors import QuireError
from quire_bookie.metadata.recovery_controls import RecoveryControls
from quire_bookie.metadata.under_replication import Mark, ReplicationLocks
from quire_bookie.model import LEDGER_TOKEN, BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState, Segment
from quire_bookie.recovery.access import ClusterAccess
from quire_bookie.recovery.fragment_check import LedgerCheck, ReplicaReport
from quire_bookie.recovery.fragments import closed_fragments
from quire_bookie.recovery.ledger_repair import LedgerRepair, Result
from quire_bookie.recovery.replica_writer import ReplicaWriter
from quire_bookie.recovery.stats import RecoveryStats
from quire_bookie.settings.client import ClientSettings
from quire_bookie.settings.recovery import RecoverySettings
from tests.sim.loop import SimLoop, simulate
from tests.sim.metadata import SimMetadataStore
from tests.sim.world import SimBookie, SimChance, World

T = TypeVar("T")
LEDGER = LedgerId(7)
SETTINGS = RecoverySettings(
    lost_bookie_delay_s=0,
    rate_bytes_s=0,
    operations_s=0,
    list_timeout_s=2.0,
    open_ledger_grace_s=5.0,
    retry_s=(1.0, 8.0),
    poll_s=2.0,
)
QUICK = ClientSettings(add_timeout_s=3.0, read_timeout_s=3.0, connect_timeout_s=1.0, suspect_s=4.0)


def payload(entry: int) -> bytes:
    """Return the payload of entry `entry` of every ledger."""
    return b"entry %d" % entry


@dataclass
class SmallCluster:
    """A simulated world with all that a repair needs."""

    world: World
    access: ClusterAccess
    locks: ReplicationLocks
    repair: LedgerRepair
    stats: RecoveryStats
    limbo_ended: list[tuple[BookieId, LedgerId]] = field(default_factory=list)
    limbo_asked: "asyncio.Queue[LedgerId]" = field(default_factory=asyncio.Queue)
    """Ledgers of `held_up` whose limbo a repair wants to end."""
    held_up: dict[LedgerId, asyncio.Event] = field(default_factory=dict)
    """Requests to end the limbo of these ledgers wait for their event."""

    @property
    def bookies(self) -> list[BookieId]:
        """The ids of the bookies, b1 first."""
        found = [self.world.bookies[host].running for host in sorted(self.world.bookies)]
        return [running.bookie_id for running in found if running is not None]

    def place(self, bookie: BookieId) -> SimBookie:
        """Return the simulated host of a bookie."""
        return next(
            place
            for place in self.world.bookies.values()
            if place.running is not None and place.running.bookie_id == bookie
        )

    async def write(
        self,
        held: Mapping[BookieId, Sequence[int]],
        *,
        last: int,
        ledger: LedgerId = LEDGER,
        quorums: tuple[int, int] = (3, 2),
        state: LedgerState = LedgerState.CLOSED,
        segments: tuple[Segment, ...] = (),
        custom: Mapping[str, bytes] | None = None,
    ) -> LedgerMetadata:
        """Create a ledger on the first three bookies (or `segments`); replicas hold the entries in `held`."""
        metadata = LedgerMetadata(
            ensemble_size=len(segments[0].ensemble) if segments else 3,
            write_quorum=quorums[0],
            ack_quorum=quorums[1],
            segments=segments or (Segment(EntryId(0), tuple(self.bookies[:3])),),
            state=state,
            last_entry=EntryId(last if state is LedgerState.CLOSED else -1),
            c_token=ledger,
            custom=custom or {},
        )
        await self.send(held, metadata, ledger)
        await self.access.nodes.create(ledger, metadata)
        return metadata

    async def send(
        self, held: Mapping[BookieId, Sequence[int]], metadata: LedgerMetadata, ledger: LedgerId = LEDGER
    ) -> None:
        """Send entries to these bookies as the ledger's writer would."""
        handle = self.access.handle(ledger, metadata)
        for bookie, entries in held.items():
            writer = ReplicaWriter(handle, bookie)
            await writer.store([self.entry(ledger, entry) for entry in entries])
            writer.close()

    def entry(self, ledger: LedgerId, entry: int) -> LedgerEntry:
        """Return one entry as its writer would have sent it."""
        length = sum(len(payload(number)) for number in range(entry + 1))
        return LedgerEntry(ledger, EntryId(entry), EntryId(entry - 1), length, memoryview(payload(entry)))

    async def held(self, bookie: BookieId, last: int, ledger: LedgerId = LEDGER) -> list[int]:
        """Return the entries that a bookie serves byte for byte as the writer sent them."""
        place = self.place(bookie)
        assert place.node is not None and place.running is not None
        metadata = (await self.access.nodes.read(ledger)).value
        digest = self.access.handle(ledger, metadata).digest
        found = []
        for number in range(last + 1):
            try:
                data = await self.world.loop.run_on(place.node, place.running.storage.read(ledger, EntryId(number)))
            except QuireError:
                continue
            wanted = self.entry(ledger, number)
            head = digest.encode_entry(ledger, wanted.entry_id, wanted.lac, wanted.length, (wanted.payload,))
            assert bytes(data) == head + payload(number)
            found.append(number)
        return found

    async def check(
        self,
        ledger: LedgerId = LEDGER,
        *,
        listed: frozenset[BookieId] | None = None,
        suspected: frozenset[BookieId] = frozenset(),
    ) -> list[ReplicaReport]:
        """Check a ledger."""
        metadata = (await self.access.nodes.read(ledger)).value
        check = LedgerCheck(self.access, self.access.handle(ledger, metadata), RateLimit(0))
        return await check.check(closed_fragments(metadata), listed=listed, suspected=suspected)

    async def hold_another(self, held: Mapping[BookieId, Sequence[int]]) -> None:
        """Let these bookies hold an older ledger with this id, which no metadata name any more."""
        segments = (Segment(EntryId(0), tuple(self.bookies[:3])),)
        await self.send(held, LedgerMetadata(3, 3, 2, segments, custom={LEDGER_TOKEN: b"older"}))

    async def repair_marked(self, *bookies: BookieId, ledger: LedgerId = LEDGER, version: int = 0) -> Result:
        """Mark these bookies and repair the ledger under its lock."""
        assert await self.locks.acquire(ledger)
        result = await self.repair.repair(Mark(ledger, bookies, None, version))
        await self.locks.release(ledger)
        return result

    async def lose(self, bookie: BookieId) -> None:
        """Remove a bookie with its disks and its lease."""
        host = self.place(bookie).host
        session = self.world.bookies[host].session
        assert session is not None
        self.world.crash_bookie(host, "none")
        session.lease_ran_out()
        del self.world.bookies[host]
        await self.settle()

    async def settle(self) -> None:
        """Wait until changed registrations are noticed."""
        await asyncio.sleep(1.0)


def run(
    scenario: Callable[[SmallCluster], Coroutine[Any, Any, T]],
    *,
    bookies: int = 4,
    settings: RecoverySettings = SETTINGS,
) -> T:
    """Run a scenario on fresh bookies."""

    async def work(loop: SimLoop) -> T:
        world = World(loop, 1)
        await world.start_bookies(bookies)
        store = SimMetadataStore(world.metadata)
        access = await ClusterAccess.open(store, settings, QUICK, clock=world.clock, chance=SimChance(3))
        locks, stats = ReplicationLocks(store, "test"), RecoveryStats()
        await RecoveryControls(store).ensure_layout()
        ended: list[tuple[BookieId, LedgerId]] = []

        async def end_limbo(bookie: BookieId, ledger: LedgerId) -> None:
            if ledger in cluster.held_up:
                cluster.limbo_asked.put_nowait(ledger)
                await cluster.held_up[ledger].wait()
            place = cluster.place(bookie)
            assert place.node is not None and place.running is not None
            await loop.run_on(place.node, place.running.storage.end_limbo(ledger))
            ended.append((bookie, ledger))

        repair = LedgerRepair(access, locks, end_limbo, stats)
        cluster = SmallCluster(world, access, locks, repair, stats, ended)
        try:
            result = await scenario(cluster)
        finally:
            await access.close()
        assert loop.failures == []
        return result

    return simulate(work, seed=1)
