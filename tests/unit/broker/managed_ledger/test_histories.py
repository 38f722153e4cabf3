"""Random histories of appends, acknowledgments, faults and crashes, against a plain model of the guarantees.

Never lost: an append that was answered. Never delivered again: an entry whose acknowledgment was flushed (unless the
cursor was moved back on purpose). Never skipped: the mark-delete position does not move over an unacknowledged entry.
Order: positions grow in the order of the appends.
"""

import asyncio
import random

import pytest

from quire_bookie.errors import BookieUnavailableError, QuireError
from quire_broker.managed_ledger import Cursor, ManagedLedger, Position
from quire_broker.managed_ledger.errors import ManagedLedgerFencedError
from tests.unit.broker.managed_ledger.world import Answers, Process, World, append, everything, run

_STEPS = 40


class _History:
    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.chance = random.Random(seed)
        self.answers = Answers()
        self.sent: list[bytes] = []
        self.acked: set[Position] = set()
        """Acknowledgments that were requested and are known to the present owner, flushed or not."""
        self.asked: set[Position] = set()
        """Acknowledgments that were requested of any owner; a former owner may have saved them late."""
        self.flushed: set[Position] = set()
        self.process: Process
        self.ledger: ManagedLedger
        self.cursor: Cursor

    async def start(self) -> None:
        self.process = self.world.process()
        for _ in range(20):
            try:
                self.ledger = await self.process.open()
                break
            except ManagedLedgerFencedError:
                continue  # the former owner changed its ledger meanwhile and still has the topic
        self.cursor = await self.process.run(self.ledger.open_cursor("sub"))
        await self.check()

    async def play(self) -> None:
        await self.start()
        steps = [
            (10, self.append_some),
            (6, self.acknowledge_some),
            (2, self.acknowledge_all_before),
            (4, self.flush),
            (2, self.wait),
            (2, self.fail_the_ledger),
            (1, self.lose_answers),
            (1, self.crash),
            (1, self.restart),
            (1, self.take_over),
        ]
        weighted = [step for weight, step in steps for _ in range(weight)]
        for _ in range(_STEPS):
            await self.chance.choice(weighted)()
        await self.crash()

    async def append_some(self) -> None:
        for _ in range(self.chance.randint(1, 12)):
            entry = b"%d" % len(self.sent)
            self.sent.append(entry)
            self.ledger.append(entry, self.answers(entry))
        if self.chance.random() < 0.5:
            await asyncio.sleep(self.chance.choice([0, 0.001, 0.05]))

    async def acknowledge_some(self) -> None:
        known = sorted(self.answers.stored.values())
        chosen = self.chance.sample(known, min(len(known), self.chance.randint(1, 10)))
        self.cursor.acknowledge(chosen)
        self.acked.update(chosen)
        self.asked.update(chosen)

    async def acknowledge_all_before(self) -> None:
        known = sorted(self.answers.stored.values())
        if known:
            position = self.chance.choice(known)
            self.cursor.acknowledge_cumulative(position)
            # all other entries stored up to there, answered or not
            stored = await self.stored_positions()
            self.acked.update(found for found in stored if found <= position)
            self.asked.update(found for found in stored if found <= position)

    async def stored_positions(self) -> list[Position]:
        found: list[Position] = []
        position = self.ledger.first_position()
        while entries := await self.ledger.read(position, 1000):
            found += [entry.position for entry in entries]
            position = self.ledger.next_position(entries[-1].position)
        return found

    async def flush(self) -> None:
        covered = set(self.acked)
        try:
            await self.process.run(self.cursor.flush())
        except QuireError:
            return
        self.flushed |= covered

    async def wait(self) -> None:
        await asyncio.sleep(self.chance.choice([0.01, 1, 15]))

    async def fail_the_ledger(self) -> None:
        tail = self.process.client.tail()
        tail.held = True
        await self.append_some()
        await asyncio.sleep(0.001)
        if tail.ledger_id not in self.world.bookies.ledgers:
            return  # an earlier failure emptied it, and its successor is already being written
        durable = len(self.world.bookies.ledger(tail.ledger_id).entries)
        if self.chance.random() < 0.5 and durable:
            tail.confirm(self.chance.randrange(durable))
        tail.fail(BookieUnavailableError("the ack quorum is lost"))

    async def lose_answers(self) -> None:
        self.world.metadata.unknown_chance = self.chance.choice([0, 0.3])

    async def crash(self) -> None:
        self.process.kill()
        await self.start()

    async def restart(self) -> None:
        covered = set(self.acked)
        await self.process.run(self.ledger.close())
        self.flushed |= covered
        await self.start()

    async def take_over(self) -> None:
        """Let a second owner open it while the first one still writes."""
        old, stale = self.ledger, self.process
        await self.start()
        old.append(b"stale", lambda position, error: self._no_stale_answer(position))
        await asyncio.sleep(1)
        stale.kill()

    @staticmethod
    def _no_stale_answer(position: Position | None) -> None:
        assert position is None, "a fenced owner acknowledged an append"

    async def check(self) -> None:
        """Check the guarantees after each start."""
        contents = await everything(self.ledger)
        positions = await self.stored_positions()
        by_position = dict(zip(positions, contents, strict=True))
        first = self.ledger.first_position()
        for entry, position in self.answers.stored.items():
            if position >= first:
                assert by_position.get(position) == entry, f"{entry!r} was answered with {position}"
            else:
                assert position in self.asked, f"{position} was trimmed without an acknowledgment"
        own = [self.answers.stored[entry] for entry in self.sent if entry in self.answers.stored]
        assert own == sorted(own), "positions grow in the order of the appends"
        assert len(set(own)) == len(own)
        for position in self.flushed:
            assert self.cursor.is_acknowledged(position), f"{position} was flushed and is delivered again"
        for position in positions:
            if self.cursor.is_acknowledged(position):
                assert position in self.asked, f"{position} was skipped without an acknowledgment"
        unacked = [found for found in positions if not self.cursor.is_acknowledged(found)]
        assert self.cursor.backlog == len(unacked)
        delivered: list[Position] = []
        while found := await self.cursor.read(5):
            delivered += [entry.position for entry in found]
        assert delivered == unacked
        self.cursor.rewind()
        # Acknowledgments that were not flushed may be lost with the process: from here on only the known ones count.
        self.acked = {position for position in self.acked if self.cursor.is_acknowledged(position)}


@pytest.mark.parametrize("seed", range(60))
def test_no_answered_append_is_lost_and_no_flushed_acknowledgment_is_undone(seed: int) -> None:
    async def scenario(world: World) -> None:
        await _History(world, seed).play()

    run(
        scenario,
        seed=seed,
        ledger_entries_max=9,
        cursor_ledger_entries_max=4,
        degraded_rollover_interval_s=1.0,
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_leak_never_outlives_the_next_owner(seed: int) -> None:
    """After a crash at any moment and one more open, only listed ledgers and cursor ledgers in use exist."""

    async def scenario(world: World) -> None:
        chance = random.Random(seed)
        process = world.process()
        ledger = await process.open()
        cursor: Cursor = await process.run(ledger.open_cursor("sub"))
        for _ in range(chance.randint(1, 4)):
            positions = await append(ledger, *[b"x"] * chance.randint(1, 20))
            cursor.acknowledge(positions)
        await asyncio.sleep(chance.uniform(0, 0.03))
        process.kill()
        again = await world.process().open()
        await asyncio.sleep(10)
        listed = {record.ledger_id for record in again.ledgers}
        created_and_never_listed = [ledger_id for ledger_id in world.bookies.of_topic() if ledger_id not in listed]
        for ledger_id in created_and_never_listed:
            # The only tolerated leak: a ledger created just before the crash, in no list, without entries.
            assert not world.bookies.ledger(ledger_id).entries
        assert len(created_and_never_listed) <= 1
        assert not [key for key in world.metadata.nodes if key.startswith("/quire/")]

    run(scenario, seed=seed, ledger_entries_max=5)
