"""Delayed entries whose times are saved in ledgers: on a real managed ledger, through crashes, seeks and damage."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from quire_bookie.errors import BookieUnavailableError
from quire_bookie.model import LedgerId
from quire_broker.dispatch import delayed_index
from quire_broker.managed_ledger.position import EARLIEST
from tests.unit.broker.dispatch.delayed_world import TICK_MS, Book, Owner, owner
from tests.unit.broker.managed_ledger.world import World, run

HOUR_MS = 3_600_000


def bucket_ledgers(world: World) -> list[int]:
    """Return the ledgers of the buckets that the cursor's node names."""
    return [record.ledger_id for record in world.cursor_node("sub").buckets]


def existing(world: World) -> set[int]:
    """Return the ledgers of cursors that exist."""
    return set(world.bookies.of_topic(cursor=True))


def test_an_owner_that_takes_over_reads_only_what_is_in_no_bucket() -> None:
    async def scenario(world: World) -> None:
        book = Book()
        first = await owner(world, book)
        delayed = await first.publish(*[HOUR_MS + 100 * number for number in range(42)])
        await asyncio.sleep(1)
        assert len(bucket_ledgers(world)) == 10, "of four entries each; two are in no bucket yet"
        assert len(first.dispatcher.delayed) == 42 and first.dispatcher.delayed.in_memory == 2
        first.process.kill()

        reads = world.bookies.reads
        second = await owner(world, book)
        await asyncio.sleep(1)
        assert len(second.dispatcher.delayed) == 42 and second.dispatcher.delayed.in_memory == 2
        assert world.bookies.reads - reads <= 2 * 10 + 2, "heads and positions, and one read of entries"
        (live,) = await second.publish(0)
        await asyncio.sleep(1)
        assert [position for position, _ in second.came] == [live]
        await asyncio.sleep(HOUR_MS / 1000 + 10)
        assert sorted(second.held) == [*delayed, live]
        assert all(at - book.due_ms[position] < TICK_MS for position, at in second.came[1:]), "exact to the tick"
        second.acknowledge(*second.held)
        await asyncio.sleep(10)
        assert bucket_ledgers(world) == []
        await second.stop()

    run(scenario)


@pytest.mark.parametrize("key_shared", [False, True])
def test_slots_of_keys_are_saved_and_buckets_with_others_are_not_used(key_shared: bool) -> None:
    async def scenario(world: World) -> None:
        book = Book()
        first = await owner(world, book, key_shared=key_shared)
        await first.publish(*[HOUR_MS] * 9)
        await asyncio.sleep(1)
        first.process.kill()
        second = await owner(world, book, key_shared=True)
        await asyncio.sleep(1)
        assert second.dispatcher.delayed.in_memory == 1, "the rest was saved, now or before"
        await asyncio.sleep(HOUR_MS / 1000 + 1)
        assert len(second.held) == 9
        await second.stop()

    run(scenario)


def lose_pages(world: World, ledger: int) -> None:
    world.bookies.broken_reads[ledger] = BookieUnavailableError("its bookies are away")


def change_a_byte(entry: int) -> Callable[[World, int], None]:
    def change(world: World, ledger: int) -> None:
        stored = world.bookies.ledger(ledger).entries
        stored[entry] = stored[entry][:-1] + bytes([stored[entry][-1] ^ 1])

    return change


def delete(world: World, ledger: int) -> None:
    del world.bookies.ledgers[ledger]


def take_the_head_of_another(world: World, ledger: int) -> None:
    other = next(known for known in bucket_ledgers(world) if known != ledger)
    world.bookies.ledger(ledger).entries[-1] = world.bookies.ledger(other).entries[-1].replace(b'"sub"', b'"bus"')


DAMAGE = {
    "unreadable": lose_pages,
    "damaged page": change_a_byte(0),
    "damaged positions": change_a_byte(1),
    "damaged head": change_a_byte(2),
    "missing": delete,
    "foreign head": take_the_head_of_another,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.parametrize("taken_over", [False, True], ids=["same owner", "next owner"])
def test_a_bucket_that_cannot_be_read_is_replaced_by_its_entries(
    taken_over: bool, damage: Callable[[World, int], None]
) -> None:
    async def scenario(world: World) -> None:
        book = Book()
        now = await owner(world, book)
        delayed = await now.publish(*[HOUR_MS] * 10, 0)
        await asyncio.sleep(1)
        broken = bucket_ledgers(world)[0]
        damage(world, broken)
        if taken_over:
            now.process.kill()
            now = await owner(world, book)
        await asyncio.sleep(HOUR_MS / 1000 + 5)
        assert sorted(now.held) == delayed
        assert broken not in bucket_ledgers(world)
        now.acknowledge(*now.held)
        await asyncio.sleep(10)
        assert bucket_ledgers(world) == [] and broken not in existing(world)
        await now.stop()

    run(scenario)


async def skip_all(now: Owner) -> None:
    now.skip_through(now.ledger.last_confirmed)


async def clear_without_a_dispatcher(now: Owner) -> None:
    await now.stop()
    now.cursor.acknowledge_cumulative(now.ledger.last_confirmed)


async def seek_back(now: Owner) -> None:
    await now.stop()
    await now.cursor.reset(EARLIEST)


async def delete_subscription(now: Owner) -> None:
    await now.stop()
    await now.ledger.delete_cursor("sub")


async def delete_topic(now: Owner) -> None:
    await now.stop()
    await now.process.factory.delete(now.ledger.name)


REMOVALS = [skip_all, clear_without_a_dispatcher, seek_back, delete_subscription, delete_topic]


@pytest.mark.parametrize("remove", REMOVALS, ids=lambda remove: remove.__name__)
def test_no_ledger_of_a_bucket_is_left_behind(remove: Callable[[Owner], Any]) -> None:
    async def scenario(world: World) -> None:
        book = Book()
        now = await owner(world, book)
        await now.publish(*[HOUR_MS + number for number in range(500)])
        await asyncio.sleep(5)
        buckets = set(bucket_ledgers(world))
        assert len(buckets) == 125
        await now.process.run(remove(now))
        await asyncio.sleep(60)
        assert not buckets & existing(world)
        assert not [key for key in world.metadata.nodes if key.startswith("/quire/unreferenced-ledgers/")]

    run(scenario)


def test_after_a_seek_skipped_entries_come_out_again() -> None:
    async def scenario(world: World) -> None:
        book = Book()
        now = await owner(world, book)
        delayed = await now.publish(*[HOUR_MS] * 30)
        await asyncio.sleep(1)
        now.skip_through(delayed[20])
        await now.process.run(now.seek(delayed[3]))
        await asyncio.sleep(HOUR_MS / 1000 + 1)
        assert sorted(now.held) == delayed[3:]
        await now.stop()

    run(scenario)


def test_a_crash_at_any_step_of_saving_loses_nothing_and_leaves_no_ledger() -> None:
    """The broker dies at each half millisecond in turn while the first bucket is written and recorded."""
    seen: set[int] = set()

    def at(step: int) -> None:
        async def scenario(world: World) -> None:
            book = Book()
            first = await owner(world, book)
            delayed = await first.publish(HOUR_MS, HOUR_MS, HOUR_MS, HOUR_MS)
            await asyncio.sleep(step / 2000)
            seen.add(len(bucket_ledgers(world)))
            first.process.kill()
            second = await owner(world, book)
            await asyncio.sleep(HOUR_MS / 1000 + 5)
            assert sorted(second.held) == delayed
            second.acknowledge(*delayed)
            await asyncio.sleep(30)
            assert bucket_ledgers(world) == []
            unused = {ledger for ledger in existing(world) if ledger != world.cursor_node("sub").ledger_id}
            assert all(not world.bookies.ledger(ledger).entries for ledger in unused), "at most one that never was used"
            await second.stop()

        run(scenario, seed=step)

    for step in range(40):
        at(step)
    assert seen == {0, 1}, "some crashes are before the bucket is recorded, some after it"


def test_while_no_bucket_can_be_saved_live_entries_flow_and_delayed_ones_come_in_time() -> None:
    async def scenario(world: World) -> None:
        book = Book()
        now = await owner(world, book)
        world.away(True)
        delayed = await now.publish(*[60_000] * 20, *[HOUR_MS] * 20)
        live = await now.publish(0, 0)
        await asyncio.sleep(70)
        assert sorted(now.held) == [*delayed[:20], *live]
        assert now.dispatcher.delayed.in_memory == 20
        world.away(False)
        await asyncio.sleep(200)
        assert now.dispatcher.delayed.in_memory < 4 and len(bucket_ledgers(world)) >= 4
        await asyncio.sleep(HOUR_MS / 1000)
        assert sorted(now.held) == [*delayed, *live]
        await now.stop()

    run(scenario)


def test_buckets_that_are_almost_empty_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed_index, "DELAYED_BUCKETS_MAX", 5)

    async def scenario(world: World) -> None:
        book = Book()
        now = await owner(world, book)
        late = []
        for _ in range(30):
            *early, last = await now.publish(1_000, 1_000, 1_000, HOUR_MS)
            late.append(last)
            await asyncio.sleep(20)
            assert len(bucket_ledgers(world)) <= 5
            now.acknowledge(*early)
        assert len(now.dispatcher.delayed) == 30
        await asyncio.sleep(10)
        assert len(existing(world)) <= 5 + 1, "the ledgers of joined buckets are deleted; one is the cursor's"
        now.process.kill()
        now = await owner(world, book)
        await asyncio.sleep(HOUR_MS / 1000 + 5)
        assert late[0] in now.held and set(late) == now.held.keys()
        now.acknowledge(*late)
        await asyncio.sleep(10)
        assert bucket_ledgers(world) == []
        await now.stop()

    run(scenario)


def test_a_bucket_that_cannot_be_read_when_it_is_joined_is_replaced_by_its_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delayed_index, "DELAYED_BUCKETS_MAX", 2)

    async def scenario(world: World) -> None:
        book = Book()
        now = await owner(world, book)
        delayed = await now.publish(*[HOUR_MS] * 8)
        await asyncio.sleep(1)
        for ledger in bucket_ledgers(world):
            world.bookies.broken_reads[ledger] = BookieUnavailableError("its bookies are away")
        delayed += await now.publish(*[HOUR_MS] * 8)
        await asyncio.sleep(HOUR_MS / 1000 + 5)
        assert sorted(now.held) == delayed
        await now.stop()

    run(scenario)


def test_buckets_of_a_later_time_than_the_topic_knows_are_dropped() -> None:
    async def scenario(world: World) -> None:
        book = Book()
        first = await owner(world, book)
        delayed = await first.publish(*[HOUR_MS] * 8)
        await asyncio.sleep(1)
        first.process.kill()
        for ledger in world.list_node().ledgers:  # the last entries are lost
            del world.bookies.ledger(LedgerId(ledger.ledger_id)).entries[6:]
        second = await owner(world, book)
        await asyncio.sleep(1)
        assert len(bucket_ledgers(world)) == 1
        more = await second.publish(0, 0, 0)
        await asyncio.sleep(HOUR_MS / 1000 + 5)
        assert sorted(second.held) == [*delayed[:6], *more]
        await second.stop()

    run(scenario)


def test_a_subscription_whose_delays_were_turned_off_delivers_at_once() -> None:
    async def scenario(world: World) -> None:
        book = Book()
        first = await owner(world, book)
        delayed = await first.publish(*[HOUR_MS] * 8)
        await asyncio.sleep(1)
        first.process.kill()
        book.due_ms = dict.fromkeys(book.due_ms, 0)
        second = await owner(world, book, delayed_delivery=False)
        await asyncio.sleep(1)
        assert sorted(second.held) == delayed and bucket_ledgers(world) == []
        await second.stop()

    run(scenario)


async def walk(world: World, chance: random.Random, key_shared: bool) -> None:
    book = Book()
    now = await owner(world, book, key_shared=key_shared)
    for _ in range(60):
        what = chance.choice(["publish", "publish", "publish", "pass", "pass", "ack", "skip", "seek", "leave", "crash"])
        if what == "publish":
            await now.publish(*[chance.choice([0, chance.randint(1, 90_000)]) for _ in range(chance.randint(1, 9))])
        elif what == "pass":
            await asyncio.sleep(chance.choice([0, 0.001, 0.05, 1, 30]) * chance.random())
        elif what == "ack" and now.held:
            now.acknowledge(*chance.sample(sorted(now.held), chance.randint(1, len(now.held))))
        elif what == "skip" and book.due_ms and chance.random() < 0.3:
            now.skip_through(chance.choice(sorted(book.due_ms)))
        elif what == "seek" and book.due_ms and chance.random() < 0.4:
            await now.process.run(now.seek(chance.choice(sorted(book.due_ms))))
        elif what == "leave" and chance.random() < 0.5:
            now.leave()
            now.join()
        elif what == "crash" and chance.random() < 0.5:
            await now.cursor.flush()
            now.process.kill()
            now = await owner(world, book, key_shared=key_shared)
    for _ in range(20):
        await asyncio.sleep(10)
        now.acknowledge(*now.held)
    assert book.acked == book.due_ms.keys(), "an entry never came out"
    assert len(now.dispatcher.delayed) == 0 and now.cursor.backlog == 0
    await asyncio.sleep(60)
    assert bucket_ledgers(world) == []
    await now.stop()


@pytest.mark.parametrize("seed", range(30))
def test_a_long_walk_with_crashes_loses_doubles_and_sends_early_nothing(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 3 == 0:
        monkeypatch.setattr(delayed_index, "DELAYED_BUCKETS_MAX", 3)

    async def scenario(world: World) -> None:
        await walk(world, random.Random(seed), key_shared=seed % 2 == 1)

    run(scenario, seed=seed)
