"""A managed ledger that shows the entries of another one: what it reads, and that it never touches the source."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from quire_broker.errors import NotAllowedError
from quire_broker.managed_ledger import ManagedLedger, ManagedLedgerFactory, Position
from quire_broker.managed_ledger.nodes.node_codec import SOURCE_PROPERTY
from quire_broker.managed_ledger.position import EARLIEST
from tests.unit.broker.managed_ledger.world import NAME, World, append, everything, numbered, run

SHADOW = "public/default/persistent/shadow"
SOURCE = "persistent://public/default/topic"


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  virtual time
        await asyncio.sleep(0.01)


async def shadow_of(factory: ManagedLedgerFactory) -> ManagedLedger:
    """The open shadow, created if necessary."""
    await factory.create(SHADOW, {SOURCE_PROPERTY: SOURCE})
    return await factory.open(SHADOW, create=False)


def two(work: Callable[[World, ManagedLedgerFactory, ManagedLedgerFactory], Awaitable[None]]) -> None:
    """Run with the factories of two processes: that of the source and that of the shadow."""

    async def play(world: World) -> None:
        first, second = world.process(), world.process()

        async def inside() -> None:
            await work(world, first.factory, second.factory)

        await second.run(inside())

    run(play)


def test_a_shadow_has_the_entries_of_closed_ledgers_and_of_the_one_being_written_with_their_ids() -> None:
    async def work(world: World, ours: ManagedLedgerFactory, theirs: ManagedLedgerFactory) -> None:
        source = await ours.open(NAME)
        source.tell_lacs(active=True)
        first = await append(source, *numbered(3))
        await source.roll()
        second = await append(source, *numbered(2, 3))
        await asyncio.sleep(1)
        shadow = await shadow_of(theirs)
        assert await everything(shadow) == numbered(5)
        cursor = await shadow.open_cursor("s", EARLIEST)
        entries = await cursor.read(100)
        assert [entry.position for entry in entries] == [*first, *second]
        more = await append(source, *numbered(2, 5))
        await until(lambda: shadow.last_confirmed == more[-1])
        assert [entry.position for entry in await cursor.read(100)] == more
        cursor.acknowledge_cumulative(more[0])
        assert cursor.backlog == 1

    two(work)


def test_the_last_entry_appears_without_a_word_of_the_source_when_its_ledger_is_closed() -> None:
    async def work(world: World, ours: ManagedLedgerFactory, theirs: ManagedLedgerFactory) -> None:
        source = await ours.open(NAME)
        shadow = await shadow_of(theirs)
        for entry in numbered(3):
            (last,) = await append(source, entry)
        await asyncio.sleep(1)
        assert shadow.last_confirmed == Position(last.ledger_id, last.entry_id - 1)
        await source.close()
        await until(lambda: shadow.last_confirmed == last)
        source = await ours.open(NAME)
        for entry in numbered(2, 3):
            (last,) = await append(source, entry)
        await until(lambda: shadow.entries == 4)
        assert await everything(shadow) == numbered(4)

    two(work)


def test_listeners_learn_of_new_entries() -> None:
    async def work(world: World, ours: ManagedLedgerFactory, theirs: ManagedLedgerFactory) -> None:
        source = await ours.open(NAME)
        source.tell_lacs(active=True)
        shadow = await shadow_of(theirs)
        heard = asyncio.Event()
        shadow.on_append(heard.set)
        (stored,) = await append(source, b"x")
        await until(lambda: shadow.last_confirmed == stored)
        assert heard.is_set()

    two(work)


def test_a_shadow_takes_no_appends_and_cannot_be_ended() -> None:
    async def work(world: World, ours: ManagedLedgerFactory, theirs: ManagedLedgerFactory) -> None:
        await append(await ours.open(NAME), b"x")
        shadow = await shadow_of(theirs)
        with pytest.raises(NotAllowedError, match="it takes none"):
            await append(shadow, b"y")
        with pytest.raises(NotAllowedError, match="it takes none"):
            await shadow.terminate()
        assert len(world.bookies.of_topic()) == 1

    two(work)


def test_a_shadow_trims_nothing_and_does_not_keep_the_source_from_trimming() -> None:
    async def work(world: World, ours: ManagedLedgerFactory, theirs: ManagedLedgerFactory) -> None:
        source = await ours.open(NAME)
        cursor = await source.open_cursor("s", EARLIEST)
        stored = []
        for number in range(3):
            stored += await append(source, b"%d" % number)
            await source.roll()
        shadow = await shadow_of(theirs)
        slow, fast = await shadow.open_cursor("slow", EARLIEST), await shadow.open_cursor("fast", EARLIEST)
        await until(lambda: shadow.entries == 3)
        fast.acknowledge_cumulative(stored[-1])
        await shadow.set_property("quire.policies", "{}")
        assert shadow.entries == 3
        assert await shadow.trim() == []
        await asyncio.sleep(300)
        assert len(world.bookies.of_topic()) == 4
        cursor.acknowledge_cumulative(stored[1])
        await source.trim()
        await until(lambda: shadow.entries == 1)
        assert [entry.data for entry in await slow.read(10)] == [b"2"]
        assert (slow.backlog, fast.backlog) == (1, 0)

    two(work)


@pytest.mark.parametrize("opened", [True, False])
def test_the_deletion_of_a_shadow_leaves_every_ledger_of_its_source(opened: bool) -> None:
    async def work(world: World, ours: ManagedLedgerFactory, theirs: ManagedLedgerFactory) -> None:
        source = await ours.open(NAME)
        await append(source, *numbered(3))
        await source.roll()
        await append(source, *numbered(3, 3))
        before = set(world.bookies.of_topic())
        shadow = await shadow_of(theirs)
        cursor = await shadow.open_cursor("s", EARLIEST)
        cursor.acknowledge_cumulative(shadow.first_position())
        if not opened:
            await shadow.close()
        await theirs.delete(SHADOW)
        await asyncio.sleep(60)
        assert not await theirs.exists(SHADOW)
        assert set(world.bookies.of_topic()) == before
        assert await everything(source) == numbered(6)

    two(work)


def test_a_shadow_without_its_source_is_empty_and_can_be_deleted() -> None:
    async def work(world: World, ours: ManagedLedgerFactory, theirs: ManagedLedgerFactory) -> None:
        source = await ours.open(NAME)
        source.tell_lacs(active=True)
        await append(source, *numbered(3))
        shadow = await shadow_of(theirs)
        await until(lambda: shadow.entries == 3)
        await ours.delete(NAME)
        await until(lambda: shadow.entries == 0)
        assert await shadow.read(EARLIEST) == []
        await shadow.close()
        again = await theirs.open(SHADOW, create=False)
        assert again.entries == 0
        await theirs.delete(SHADOW)

    two(work)


def test_acknowledgments_of_a_shadow_survive_its_owner() -> None:
    async def play(world: World) -> None:
        first, second, third = world.process(), world.process(), world.process()
        source = await first.open(NAME)
        source.tell_lacs(active=True)
        stored = await first.run(append(source, *numbered(5)))

        async def acknowledge() -> None:
            shadow = await shadow_of(second.factory)
            cursor = await shadow.open_cursor("s", EARLIEST)
            await until(lambda: shadow.entries == 5)
            cursor.acknowledge([stored[0], stored[1], stored[3]])
            await cursor.flush()

        async def after() -> None:
            shadow = await third.factory.open(SHADOW, create=False)
            cursor = shadow.cursors["s"]
            assert (cursor.mark_delete, cursor.backlog) == (stored[1], 2)
            assert [entry.position for entry in await cursor.read(10)] == [stored[2], stored[4]]

        await second.run(acknowledge())
        second.kill()
        await third.run(after())

    run(play)


def test_acknowledgments_of_a_shadow_survive_an_owner_that_does_not_know_their_entries_yet() -> None:
    async def play(world: World) -> None:
        first, second, third = world.process(), world.process(), world.process()
        source = await first.open(NAME)
        source.tell_lacs(active=True)
        stored = await first.run(append(source, *numbered(6)))

        async def acknowledge() -> None:
            shadow = await shadow_of(second.factory)
            mark, ranges = await shadow.open_cursor("mark", EARLIEST), await shadow.open_cursor("ranges", EARLIEST)
            await until(lambda: shadow.entries == 6)
            mark.acknowledge_cumulative(stored[4])
            ranges.acknowledge([stored[2], stored[4]])
            ranges.acknowledge_batch(stored[5], [1], 2)
            await mark.flush()
            await ranges.flush()

        async def after() -> None:
            shadow = await third.factory.open(SHADOW, create=False)
            mark, ranges = shadow.cursors["mark"], shadow.cursors["ranges"]
            assert (shadow.last_confirmed, mark.mark_delete, mark.backlog) == (stored[5], stored[4], 1)
            assert [entry.position for entry in await ranges.read(10)] == [stored[at] for at in (0, 1, 3, 5)]
            assert ranges.ack_set(stored[5]) == (1,)
            (later,) = await first.run(append(source, b"later"))
            await until(lambda: shadow.last_confirmed == later)

        await second.run(acknowledge())
        second.kill()
        for ledger in world.bookies.ledgers.values():
            ledger.known_end = min(ledger.known_end, 0)  # bookies that have it are away
        await third.run(after())

    run(play)


def test_the_end_is_told_again_after_bookies_did_not_take_it() -> None:
    async def work(world: World, ours: ManagedLedgerFactory, theirs: ManagedLedgerFactory) -> None:
        source = await ours.open(NAME)
        source.tell_lacs(active=True)
        world.bookies.deaf |= set(range(1000))
        shadow = await shadow_of(theirs)
        (stored,) = await append(source, b"x")
        await asyncio.sleep(10)
        assert shadow.entries == 0
        world.bookies.deaf.clear()
        await until(lambda: shadow.last_confirmed == stored)

    two(work)


def test_a_shadow_is_not_prepared_with_a_ledger_of_its_own() -> None:
    async def work(world: World, ours: ManagedLedgerFactory, theirs: ManagedLedgerFactory) -> None:
        await append(await ours.open(NAME), b"x")
        await theirs.create(SHADOW, {SOURCE_PROPERTY: SOURCE})
        created = len(world.bookies.created)
        await theirs.prepare(SHADOW)
        await theirs.open(SHADOW, create=False)
        assert len(world.bookies.created) == created

    two(work)
