"""A topic that is compacted again and again by one owner after the other: killed, closed, or cut off and still alive.

Every owner appends messages with keys and deletes keys, compacts, and trims its ledgers as soon as a first compaction
has succeeded. Bookies crash, and the metadata store is away for seconds, so owners die at every step of a compaction.
A reader with readCompacted always gets a value of each key that is as new as the last acknowledged one, each message at
one position, in order. A compaction that succeeded is known to all later owners: the horizon never goes back.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from quire_bookie.env.background import Background
from quire_bookie.errors import QuireError
from quire_broker.compaction.compacted_cursor import CompactedCursor
from quire_broker.compaction.topic_compaction import Compactions, TopicCompaction
from quire_broker.managed_ledger import EARLIEST, ManagedLedger, ManagedLedgerFactory, Position
from quire_broker.names import parse_topic
from quire_broker.settings.compaction import CompactionSettings
from quire_broker.settings.managed_ledger import ManagedLedgerSettings
from quire_broker.wire.entry import peek, seal
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.sim.faults import disturb
from tests.sim.history import HistoryError
from tests.sim.loop import SimLoop
from tests.sim.world import SimChance, SimClient, World, retry

TOPIC = parse_topic("persistent://public/default/simulated")
DRAINED = "drained"
KEYS = 8
NOTHING = Position(-1, -1)
SUCCESS_S = 120.0
"""A compaction succeeds within this time when all faults are over."""


@dataclass(slots=True)
class KeyedHistory:
    """The messages of each key in the order of their appends, and what readers got. An empty value deletes a key."""

    values: dict[str, list[bytes]] = field(default_factory=lambda: {f"k{number}": [] for number in range(KEYS)})
    acknowledged: dict[str, int] = field(default_factory=dict)
    """The last acknowledged message of each key, as an index of its values."""
    seen: dict[bytes, Position] = field(default_factory=dict)
    horizon: Position = NOTHING
    """The highest one of all compactions that succeeded."""

    def on_append(self, key: str, value: bytes) -> int:
        """Record a requested append; return its number among those of its key."""
        self.values[key].append(value)
        return len(self.values[key]) - 1

    def on_appended(self, key: str, number: int) -> None:
        """Record that it was acknowledged."""
        self.acknowledged[key] = max(number, self.acknowledged.get(key, -1))

    def on_seen(self, key: str, value: bytes, position: Position) -> None:
        """Check a message that a reader got."""
        if value not in self.values[key]:
            raise HistoryError(f"{value!r} of {key} at {position} was never appended")
        if value and self.seen.setdefault(value, position) != position:
            raise HistoryError(f"{value!r} of {key} is at {position} and was at {self.seen[value]}")

    def check(self, found: Mapping[str, bytes], acknowledged: Mapping[str, int]) -> None:
        """Check the last values that a reader got. `acknowledged`: when it began to read."""
        for key, values in self.values.items():
            first = acknowledged.get(key, -1)
            allowed = values[first:] if first >= 0 else [b"", *values]
            if found.get(key, b"") not in allowed:
                raise HistoryError(f"{key} has the value {found.get(key)!r}, but {values[first]!r} was acknowledged")

    def on_compacted(self, horizon: Position) -> None:
        """Record a compaction that succeeded."""
        self.horizon = max(self.horizon, horizon)


@dataclass(slots=True)
class Owner:
    """A broker process, reduced to one topic."""

    client: SimClient
    ledger: ManagedLedger
    compaction: TopicCompaction
    tasks: "list[asyncio.Task[None]]" = field(default_factory=list)
    views: int = 0


class Run:
    """One run, with the present owner."""

    def __init__(self, world: World, settings: ManagedLedgerSettings) -> None:
        self.world, self.history = world, KeyedHistory()
        self._settings = settings
        self._started = self._appended = 0
        self.owner: Owner | None = None

    # ---- owners
    async def next_owner(self) -> Owner:
        """Replace the owner."""
        await self._leave()
        self._started += 1
        world, host = self.world, f"owner{self._started}"
        client = await world.start_client(host)
        chance, clock = SimChance(world.chance.randrange(1 << 30)), world.clock_of(host)

        async def build() -> ManagedLedgerFactory:
            return ManagedLedgerFactory(client.ledgers, client.session, self._settings, clock, chance)

        factory = await world.on(client, build())
        ledger: ManagedLedger = await retry(lambda: world.on(client, factory.open(TOPIC.ledger_name)), seconds=600)

        async def compaction() -> TopicCompaction:
            return TopicCompaction(TOPIC, ledger, Compactions(CompactionSettings(), clock), Background())

        self.owner = owner = Owner(client, ledger, await world.on(client, compaction()))
        current = ledger.compacted.current
        horizon = NOTHING if current is None else current.horizon
        if horizon < self.history.horizon:
            raise HistoryError(f"the horizon is {horizon}, but a compaction succeeded up to {self.history.horizon}")
        await retry(lambda: world.on(client, self._open(ledger)), seconds=600)
        return owner

    @staticmethod
    async def _open(ledger: ManagedLedger) -> None:
        await ledger.open_cursor(DRAINED, EARLIEST)

    def work(self, owner: Owner, *works: Coroutine[Any, Any, None]) -> None:
        """Let the owner do these until it leaves."""
        owner.tasks += [self.world.on(owner.client, each) for each in works]

    async def _leave(self) -> None:
        owner, self.owner = self.owner, None
        if owner is None:
            return
        manner = self.world.chance.randrange(3)
        if manner == 0:
            self.world.kill_client(owner.client)
        elif manner == 1:
            try:
                await self.world.on(owner.client, owner.compaction.stop())
                await self.world.on(owner.client, owner.ledger.close())
            except QuireError as error:
                self.world.loop.note(f"to the next owner a failed close is a crash: {error}")
        else:
            owner.client.session.cut = True
            self.world.loop.call_later(self.world.chance.uniform(0.0, 5.0), stop, owner)
            return
        stop(owner)

    # ---- what owners do
    async def produce(self, owner: Owner) -> None:
        """Append messages until one fails."""
        chance, history = self.world.chance, self.history
        failed = asyncio.Event()

        def append(key: str, value: bytes) -> None:
            number = history.on_append(key, value)

            def done(position: Position | None, error: QuireError | None) -> None:
                if position is None:
                    failed.set()
                else:
                    history.on_appended(key, number)

            metadata = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1, partition_key=key)
            metadata.uncompressed_size = len(value)
            owner.ledger.append(seal(metadata, value), done)

        while not failed.is_set():
            for _ in range(chance.choice((1, 1, 3, 10))):
                self._appended += 1
                append(f"k{chance.randrange(KEYS)}", b"%d" % self._appended if chance.random() < 0.9 else b"")
            await asyncio.sleep(chance.uniform(0.0, 0.2))

    async def drain(self, owner: Owner) -> None:
        """Consume everything once there is a compacted ledger: from then on the topic trims what compaction keeps."""
        cursor = owner.ledger.cursors[DRAINED]
        while True:
            try:
                if owner.ledger.compacted.current is not None:
                    entries = await cursor.read(entries_max=100, bytes_max=1 << 20)
                    cursor.acknowledge([entry.position for entry in entries])
            except QuireError:
                await asyncio.sleep(0.2)
            await asyncio.sleep(self.world.chance.uniform(0.0, 0.5))

    async def compact(self, owner: Owner) -> None:
        """Compact again and again."""
        while True:
            await asyncio.sleep(self.world.chance.uniform(0.0, 1.5))
            await self.compact_once(owner)

    async def compact_once(self, owner: Owner) -> bool:
        """Compact. Return whether that succeeded."""
        compaction = owner.compaction
        compaction.start()
        while compaction.running:  # noqa: ASYNC110  virtual time
            await asyncio.sleep(0.05)
        succeeded, current = compaction.stats.status == "SUCCESS", owner.ledger.compacted.current
        if succeeded and current is not None:
            self.history.on_compacted(current.horizon)
        return succeeded

    async def look(self, owner: Owner) -> None:
        """Read the topic again and again, and check what a client would know of it."""
        while True:
            await asyncio.sleep(self.world.chance.uniform(0.1, 1.0))
            acknowledged = dict(self.history.acknowledged)
            try:
                found = await self.view(owner)
            except QuireError:
                continue
            if self.owner is owner:
                self.history.check(found, acknowledged)

    async def view(self, owner: Owner) -> dict[str, bytes]:
        """Return the last value of each key, as a table view finds it."""
        owner.views += 1
        cursor = owner.ledger.open_reader_cursor(f"view {owner.views}", EARLIEST)
        reader = CompactedCursor(cursor, owner.compaction, EARLIEST)
        found: dict[str, bytes] = {}
        last = NOTHING
        try:
            while entries := await reader.read(self.world.chance.choice((1, 7, 50)), 1 << 20):
                for entry in entries:
                    if entry.position <= last:
                        raise HistoryError(f"a reader got the message at {entry.position} after that at {last}")
                    last = entry.position
                    summary = peek(entry.data)
                    value = bytes(memoryview(entry.data)[summary.payload_offset :])
                    assert summary.partition_key is not None
                    self.history.on_seen(summary.partition_key, value, entry.position)
                    found[summary.partition_key] = value
        finally:
            owner.ledger.close_reader_cursor(cursor)
        return found

    # ---- the end
    async def end(self) -> None:
        """Check what a last owner has, before and after a last compaction."""
        owner = await self.next_owner()

        async def check() -> None:
            self.history.check(await self.view(owner), self.history.acknowledged)

        await retry(lambda: self.world.on(owner.client, check()), seconds=300)
        end_s = self.world.loop.time() + SUCCESS_S
        while not await self.world.on(owner.client, self.compact_once(owner)):
            if self.world.loop.time() > end_s:
                raise HistoryError(f"no compaction succeeds for {SUCCESS_S:.0f} s: {owner.compaction.stats.last_error}")
            await asyncio.sleep(1.0)
        await retry(lambda: self.world.on(owner.client, check()), seconds=300)


def stop(owner: Owner) -> None:
    """End what an owner does."""
    for task in owner.tasks:
        task.cancel()


async def run(loop: SimLoop, seed: int) -> KeyedHistory:
    """Run one seed. Raises HistoryError or AssertionError if a guarantee is violated."""
    world = World(loop, seed)
    await world.start_bookies(3)
    settings = ManagedLedgerSettings(
        ledger_entries_max=world.chance.choice((15, 60)),
        rollover_age_min_s=0.0,
        retention_s=0,
        retention_bytes=0,
        trim_interval_s=0.3,
        tick_interval_s=0.3,
    )
    run_ = Run(world, settings)
    for _ in range(world.chance.randrange(2, 5)):
        owner = await run_.next_owner()
        run_.work(owner, run_.produce(owner), run_.drain(owner), run_.compact(owner), run_.look(owner))
        await disturb(world, (owner.client.node.host,), world.chance.uniform(1.0, 6.0), down_max=2)
    await run_.end()
    return run_.history
