"""An older snapshot of the metadata is restored while bookies keep their entries; then the epoch is raised.

Quire's clients and clients that act like BookKeeper's create ledgers, write, close and read before and after. The
latter do not ask the bookies: one kind takes the next number of the counter, the other chooses its own ids. Bookies
restart and collect garbage all the time; only the bookies' own marks protect ledgers that the snapshot lacks. A second
snapshot is restored afterwards: its counters are high, and only its epoch is older. Checked:

* no client of Quire creates a ledger under an id under which another ledger has entries;
* a reader gets only entries that the creator of the opened ledger submitted to it;
* a bookie that held a confirmed entry when a snapshot was restored serves the same bytes in the end;
* once the epoch is raised, clients of Quire create ledgers again.

A ledger is identified by its creator's `c_token`, not by its id. If several creators sent entries under one id, reads
are checked only if the reader opens the ledger of a stock client and all other creators are clients of Quire: the
tokens that bookies keep distinguish the two. For the other cases see "Limits" in docs/protocol.md, "Ledger ids: never
twice".
"""

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from quire_bookie.client import LedgerWriter
from quire_bookie.errors import LedgerError, QuireError
from quire_bookie.metadata import layout
from quire_bookie.metadata.collection_hold import HOLD_PATH
from quire_bookie.metadata.ledger_ids import LedgerIds
from quire_bookie.metadata.ledger_metadata import decode_ledger_metadata
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerMetadata
from quire_bookie.quorum.write_set import write_set
from quire_bookie.settings.collection import FuseSettings, GarbageCollectionSettings, QuarantineSettings
from tests.sim.history import HistoryError, LedgerHistory
from tests.sim.ledger_scenario import Listener, read_all
from tests.sim.loop import SimLoop
from tests.sim.metadata import SimMetadataStore, Snapshot
from tests.sim.plan import Step
from tests.sim.stored_entries import place_of, trouble_with
from tests.sim.world import SimClient, World, retry
from tests.support.epochs import raise_epoch
from tests.support.stock_client import without_tokens

QUORUMS = ((3, 3, 2), (3, 2, 2), (2, 2, 2))
BOOKIES = 4
BURNED = 40
"""Ids that are counted but get no ledger: no bookie knows them, so a later epoch assigns them."""
SETTLED_S = 3.0
"""Time to wait after a new ledger: bookies read the counters within a second."""
CREATES_AGAIN_S = 60.0


class CountedIds:
    """Simulates the ids of a stock client: takes the next number without asking a bookie."""

    def __init__(self, session: SimMetadataStore) -> None:
        self._ids = LedgerIds(session)

    async def next_id(self, _: Iterable[BookieId]) -> LedgerId:
        return await self._ids.next_id()

    def close(self) -> None:
        return


class ChosenIds:
    """Simulates `createAdv` of a stock client: the application chooses among ids that other ledgers may have."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    async def next_id(self, _: Iterable[BookieId]) -> LedgerId:
        return LedgerId(self._chance.choice((self._chance.randrange(1, 30), self._chance.randrange(1000, 1010))))

    def close(self) -> None:
        return


@dataclass(slots=True)
class Life:
    """Records one ledger as its creator wrote it."""

    ledger: LedgerId
    token: int
    ours: bool
    history: LedgerHistory = field(default_factory=LedgerHistory)

    @property
    def has_entries(self) -> bool:
        return self.history.confirmed_up_to >= 0

    def __str__(self) -> str:
        return f"ledger {self.ledger} of {'our' if self.ours else 'a stock'} client, token {self.token:x}"


@dataclass(slots=True)
class Scene:
    """Owns the world, all ledgers ever created in it, and a record of the entries that bookies served."""

    world: World
    lives: list[Life] = field(default_factory=list)
    held: dict[tuple[BookieId, int, int], tuple[Life, LedgerMetadata]] = field(default_factory=dict)
    """Acknowledged entries that bookies served, by bookie, token and entry."""

    # ---- clients
    async def client(self, host: str, kind: str) -> SimClient:
        """Start a client of one of the three kinds."""
        client = await self.world.start_client(host)
        if kind != "ours":
            without_tokens(client.ledgers)
            client.ledgers._ids.close()
            ids = CountedIds(client.session) if kind == "counted" else ChosenIds(self.world.chance)
            client.ledgers._ids = ids  # type: ignore[assignment]
        return client

    async def create(self, client: SimClient) -> tuple[Life, LedgerWriter]:
        """Create a ledger. HistoryError if a client of Quire took an id under which entries exist."""
        e, w, a = self.world.chance.choice(QUORUMS)
        ours = not isinstance(client.ledgers._ids, CountedIds | ChosenIds)
        before = [life for life in self.lives if life.has_entries]
        creating = client.ledgers.create_ledger(ensemble_size=e, write_quorum=w, ack_quorum=a)
        writer: LedgerWriter = await self.world.on(client, creating)
        assert writer.metadata.c_token
        life = Life(writer.ledger_id, writer.metadata.c_token, ours)
        self.lives.append(life)
        self.world.loop.note(f"created: {life}")
        taken = [other for other in before if other.ledger == life.ledger]
        if ours and taken:
            raise HistoryError(f"an id was assigned twice: {life}, and before {taken[0]}")
        return life, writer

    async def write(self, client: SimClient, count: int) -> None:
        """Create a ledger, append `count` times, and close it or leave it open; stop at an error of the cluster."""
        try:
            life, writer = await self.create(client)
        except QuireError as error:
            self.world.loop.note(f"not created: {error}")
            return
        listener = writer.listener = Listener(life.history)
        for _ in range(count):
            first = len(life.history.submitted)
            payloads = [b"%x/%d" % (life.token, first + at) for at in range(self.world.chance.choice((1, 3)))]
            if listener.stopped.is_set():
                return
            try:
                at = writer.submit(payloads)
            except LedgerError:
                return
            life.history.on_submit(at, payloads)
            await asyncio.sleep(self.world.chance.uniform(0.0, 0.3))
        if self.world.chance.random() < 0.6:
            try:
                await self.world.on(client, writer.close())
            except QuireError as error:
                self.world.loop.note(f"{life} was not closed: {error}")

    async def work(self, clients: list[SimClient], each: int) -> None:
        """Let every client write some ledgers, one after the other."""

        async def several(client: SimClient) -> None:
            for _ in range(each):
                await self.write(client, self.world.chance.randrange(1, 6))

        await asyncio.gather(*(several(client) for client in clients))

    async def read(self, client: SimClient) -> None:
        """Read every ledger of the metadata up to its end, closed or open, unless its id is shared."""
        for life in self.lives:
            metadata = self.metadata_of(life)
            if metadata is None or self.is_shared(life):
                continue
            try:
                recover = self.world.chance.random() < 0.2 and life.history.failed
                reader = await self.world.on(client, client.ledgers.open_ledger(life.ledger, recover=recover))
                await self.world.on(client, read_all(reader, life.history, str(life)))
            except QuireError as error:
                self.world.loop.note(f"{life} was not read: {error}")
        self.check_reads()

    def check_reads(self) -> None:
        """Raise HistoryError if a reader got entries that were never submitted there."""
        for life in self.lives:
            submitted = life.history.submitted
            for who, first, payloads in life.history.reads:
                if payloads != submitted[first : first + len(payloads)]:
                    raise HistoryError(f"{who}: entries from {first} on are not those that were submitted: {payloads}")
            life.history.reads.clear()

    # ---- records
    def metadata_of(self, life: Life) -> LedgerMetadata | None:
        """Return the ledger's current metadata; None if the id has none, or belongs to another ledger."""
        node = self.world.metadata.nodes.get(layout.ledger_path(life.ledger))
        metadata = None if node is None else decode_ledger_metadata(node.value)
        return metadata if metadata is not None and metadata.c_token == life.token else None

    def is_shared(self, life: Life) -> bool:
        """Whether another creator sent entries under its id that no token distinguishes from its own."""
        others = (one for one in self.lives if one is not life and one.ledger == life.ledger and one.history.submitted)
        return any(life.ours or not one.ours for one in others)

    async def note_held(self) -> None:
        """Record which bookie serves which confirmed entry that it is named for."""
        for life in self.lives:
            metadata = self.metadata_of(life)
            for number in range(life.history.confirmed_up_to + 1 if metadata is not None else 0):
                assert metadata is not None
                entry = EntryId(number)
                ensemble = metadata.ensemble_of(entry)
                for position in write_set(entry, metadata.ensemble_size, metadata.write_quorum):
                    bookie = ensemble[position]
                    if (bookie, life.token, number) in self.held or place_of(self.world, bookie) is None:
                        continue
                    payload = life.history.submitted[number]
                    try:
                        trouble = await trouble_with(self.world, life.ledger, metadata, bookie, entry, payload)
                    except HistoryError:
                        continue  # it refused this one: it had another ledger with the id before
                    if not trouble:
                        self.held[bookie, life.token, number] = life, metadata

    async def check_held(self) -> None:
        """Raise HistoryError if a bookie lost or replaced an entry that it served."""
        for (bookie, _token, number), (life, metadata) in self.held.items():
            entry, payload = EntryId(number), life.history.submitted[number]
            trouble = await trouble_with(self.world, life.ledger, metadata, bookie, entry, payload)
            if trouble:
                raise HistoryError(f"{bookie} held entry {number} of {life}: {trouble}")

    # ---- the cluster
    async def restarts(self, seconds: float) -> None:
        """Stop and start one bookie after the other."""
        world = self.world
        steps = [
            Step(world.chance.uniform(0.0, seconds), world.chance.choice(("crash", "kill", "stop")), f"b{number}")
            for number in world.chance.sample(range(1, BOOKIES + 1), 2)
        ]
        begun = world.loop.time()
        for step in world.loop.plan.choose(steps):
            await asyncio.sleep(max(0.0, begun + step.at_s - world.loop.time()))
            await self.restart(step)

    async def restart(self, step: Step) -> None:
        """Stop a bookie and start it a little later."""
        self.world.loop.note(f"fault: {step}")
        if step.kind == "crash":
            self.world.crash_bookie(step.who, "random")
        elif step.kind == "kill":
            self.world.kill_bookie(step.who)
        else:
            await self.world.stop_bookie(step.who)
        await asyncio.sleep(self.world.chance.uniform(0.1, 2.0))
        await self.world.start_bookie(step.who)

    async def go_back(self, snapshot: Snapshot, idle: SimClient) -> None:
        """Restore the snapshot while bookies keep running or are stopped, a while after the last new ledger.

        In half of the runs the snapshot holds the leases too, so that no session ends: connections alone break.
        `idle` has created no ledger since the snapshot, and creates one before it can notice the restore.
        """
        await asyncio.sleep(SETTLED_S)
        await self.note_held()
        stopped = [host for host in sorted(self.world.bookies) if self.world.chance.random() < 0.3]
        for host in stopped:
            await self.world.stop_bookie(host)
        self.world.metadata.away = True
        await asyncio.sleep(1.0)
        noticed = self.world.chance.random() < 0.5
        self.world.loop.note(f"an older snapshot is put back; stopped meanwhile: {stopped}; sessions notice: {noticed}")
        self.world.metadata.put_back(snapshot, noticed=noticed)
        self.world.metadata.away = False
        writing = asyncio.ensure_future(self.write(idle, 3))
        for host in stopped:
            await self.world.start_bookie(host)
        await writing

    async def operator(self) -> None:
        """Hold garbage collection, since it is unknown which ledgers the snapshot lacks, and raise the epoch."""
        store = SimMetadataStore(self.world.metadata)
        await store.put(HOLD_PATH, b"an older snapshot was put back")
        epoch = await raise_epoch(store, self.world.clock.now_ms())
        self.world.loop.note(f"the epoch is {epoch}")
        await store.close()

    async def creates_again(self, client: SimClient) -> None:
        """Create, write and close a ledger. Raises HistoryError, or the error of the step that fails."""
        life, writer = await retry(lambda: self.create(client), seconds=CREATES_AGAIN_S)
        writer.listener = Listener(life.history)
        payloads = [b"%x/0" % life.token]
        life.history.on_submit(writer.submit(payloads), payloads)
        await self.world.on(client, writer.close())
        if not life.has_entries:
            raise HistoryError(f"{life} was created after the epoch was raised, and accepts no entry")


async def run(loop: SimLoop, seed: int) -> list[tuple[int, int]]:
    """Run one seed. Raises HistoryError or AssertionError if a guarantee is violated."""
    world = World(loop, seed)
    chance = world.chance
    world.garbage_collection_settings = GarbageCollectionSettings(
        interval_s=chance.uniform(0.5, 2.0), fuse=FuseSettings(1.0), quarantine=QuarantineSettings(0.0)
    )
    await world.start_bookies(BOOKIES)
    scene = Scene(world)
    kinds = ("ours", "counted", "chosen")
    clients = [await scene.client(kind, kind) for kind in kinds]
    ours, idle, other_idle = clients[0], await scene.client("idle", "ours"), await scene.client("other", "ours")
    await scene.work([*clients, idle], chance.randrange(1, 3))
    early = world.metadata.snapshot()
    await asyncio.gather(scene.work(clients, chance.randrange(1, 4)), scene.restarts(4.0))
    burning = LedgerIds(SimMetadataStore(world.metadata))
    for _ in range(0 if loop.plan.calm else BURNED):
        await burning.next_id()
    await scene.work([other_idle], 1)
    late = world.metadata.snapshot()
    await scene.read(ours)
    if not loop.plan.calm:
        await scene.go_back(early, idle)
        clients.append(await scene.client("young", "ours"))
        await asyncio.gather(scene.work(clients, chance.randrange(1, 3)), scene.restarts(4.0))
        await scene.read(ours)
        await scene.operator()
        await scene.creates_again(ours)
        await scene.work(clients[:1] + clients[3:], 1)
        await scene.go_back(late, other_idle)
        clients.append(await scene.client("younger", "ours"))
        await asyncio.gather(scene.work(clients, 1), scene.restarts(4.0))
        await asyncio.sleep(SETTLED_S)
        await scene.read(ours)
        await scene.operator()
    await scene.creates_again(ours)
    await scene.creates_again(clients[-1])
    await scene.read(ours)
    await scene.note_held()
    await scene.check_held()
    return [(life.ledger, life.history.confirmed_up_to) for life in scene.lives]
