"""Bits flip in the entry logs of running bookies; a scrub or a read finds them, and auto-recovery repairs them.

Ledgers have two or three copies of each entry; some are closed, some are written all the time. The disk of one bookie
at a time flips bits, in sealed logs and in those still written. If the scrub is on, it finds all of them, otherwise
readers do. Within minutes of virtual time that bookie serves all entries of its replicas again and lists no damaged
ledger; then another bookie is damaged. A byte that was not submitted is never served.
"""

import asyncio
import contextlib
import random
from dataclasses import dataclass, replace

from quire_bookie.client import LedgerWriter
from quire_bookie.errors import QuireError
from quire_bookie.limits import MIB
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.model import EntryId, LedgerId, LedgerMetadata, LedgerState
from quire_bookie.recovery.fragments import Fragment, closed_fragments
from quire_bookie.settings.recovery import RecoverySettings
from quire_bookie.settings.scrubbing import ScrubbingSettings
from quire_bookie.storage.formats.log_format import LOG_HEADER_BYTES
from tests.sim.autorecovery_scenario import Cluster, feed, replica_shortfall, settle
from tests.sim.history import LedgerHistory
from tests.sim.ledger_scenario import read_all, recover
from tests.sim.loop import SimLoop
from tests.sim.metadata import SimMetadataStore
from tests.sim.plan import Step
from tests.sim.world import World

QUORUMS = ((3, 3, 2), (3, 2, 2), (2, 2, 2))
VICTIMS = 2
REPAIRED_WITHIN_S = 300.0
WRITTEN_S = 100.0
"""How long the long-lived ledgers are written. Then they are closed, so that their last entries are checked too."""


@dataclass(slots=True)
class Scene:
    """Owns the world and its ledgers, and knows whether bookies scrub."""

    world: World
    ledgers: dict[LedgerId, LedgerHistory]
    scrubs: bool

    async def flip(self, step: Step) -> None:
        """Flip a bit in the records of an entry log, synced or not."""
        disk = self.world.bookies[step.who].disk
        logs = sorted(path for path in disk._names if path.endswith(".qlog"))
        sizes = [max(0, len(disk.content(path)) - LOG_HEADER_BYTES) for path in logs]
        if not sum(sizes):
            return
        at = int(step.value * sum(sizes))
        for path, size in zip(logs, sizes, strict=True):
            if at < size:
                disk.corrupt(path, LOG_HEADER_BYTES + at, 1 << (at % 8))
                return
            at -= size

    async def replicas(self, confirmed: dict[LedgerId, int]) -> list[tuple[LedgerId, LedgerMetadata, Fragment]]:
        """Return the fragments that must be on bookies: closed ones, and the last one up to the confirmed entry."""
        nodes = LedgerNodes(SimMetadataStore(self.world.metadata))
        found = []
        for ledger in self.ledgers:
            metadata = (await nodes.read(ledger)).value
            fragments = closed_fragments(metadata)
            first, last = metadata.segments[-1].first_entry, confirmed[ledger]
            if metadata.state is not LedgerState.CLOSED and last >= first:
                fragments.append(Fragment(first, EntryId(last), metadata.segments[-1].ensemble, metadata.write_quorum))
            found += [(ledger, metadata, fragment) for fragment in fragments]
        return found

    async def trouble(self, host: str, confirmed: dict[LedgerId, int]) -> str:
        """Describe what the bookie at a host cannot serve or still lists as damaged; empty if nothing."""
        place = self.world.bookies[host]
        assert place.running is not None and place.node is not None
        for ledger, metadata, fragment in await self.replicas(confirmed):
            for position, bookie in enumerate(fragment.ensemble):
                if bookie != place.running.bookie_id:
                    continue
                found = await replica_shortfall(self.world, ledger, metadata, fragment, position, self.ledgers[ledger])
                if found:
                    return found
        listed = [damage for damage in place.running.scrubbing.damage.findings if damage.first >= 0]
        return f"listed: {listed[0].line()}" if listed else ""

    async def silent_trouble(self, host: str, confirmed: dict[LedgerId, int]) -> str:
        """Return the same as `trouble`, with reads that report no damage: only the scrub or the readers may find it."""
        running = self.world.bookies[host].running
        assert running is not None
        report, running.storage.on_damage = running.storage.on_damage, None
        try:
            return await self.trouble(host, confirmed)
        finally:
            running.storage.on_damage = report

    async def read_everything(self, host: str, confirmed: dict[LedgerId, int]) -> None:
        """Read every entry of the bookie at a host, as readers do."""
        place = self.world.bookies[host]
        assert place.running is not None and place.node is not None
        for ledger, _metadata, fragment in await self.replicas(confirmed):
            for position, bookie in enumerate(fragment.ensemble):
                if bookie != place.running.bookie_id:
                    continue
                for first, last in fragment.stored(position):
                    for entry in range(first, last + 1):
                        with contextlib.suppress(QuireError):  # `trouble` checks; a read only has to meet the damage
                            reading = place.running.storage.read(ledger, EntryId(entry))
                            await self.world.loop.run_on(place.node, reading)

    async def damaged_and_repaired(self, host: str, steps: list[Step]) -> None:
        """Carry out the flips and wait until nothing is damaged there. AssertionError if that takes too long."""
        loop = self.world.loop
        begun = loop.time()
        for step in steps:
            await asyncio.sleep(max(0.0, begun + step.at_s - loop.time()))
            loop.note(f"fault: {step}")
            await self.flip(step)
        confirmed = {ledger: history.confirmed_up_to for ledger, history in self.ledgers.items()}
        end = loop.time() + REPAIRED_WITHIN_S
        while True:
            if not self.scrubs:
                await self.read_everything(host, confirmed)
            await asyncio.sleep(20.0)
            trouble = await self.silent_trouble(host, confirmed)
            if not trouble:
                return
            if loop.time() > end:
                raise AssertionError(f"{host} is not repaired after {REPAIRED_WITHIN_S:.0f} s: {trouble}")


async def run(loop: SimLoop, seed: int) -> dict[LedgerId, LedgerHistory]:
    """Run one seed. Raises HistoryError or AssertionError if a guarantee is violated."""
    world, script = World(loop, seed), random.Random(seed * 2 + 1)
    scrubs = script.random() < 0.5
    world.storage_settings = replace(
        world.storage_settings,
        entry_log_bytes_max=script.choice((2 * MIB, 64 * MIB)),
        read_cache_bytes=script.choice((256 * 1024, 16 * MIB)),
    )
    hosts = [f"b{number}" for number in range(1, script.choice((3, 4)) + 1)]
    for host in hosts:
        world.changes_of[host] = {"scrubbing": ScrubbingSettings(20.0 if scrubs else 0.0, 20 * MIB)}
    await world.start_bookies(len(hosts))
    settings = RecoverySettings(
        lost_bookie_delay_s=0, check_interval_s=0.0, open_ledger_grace_s=10.0, retry_s=(3.0, 10.0), poll_s=10.0
    )
    cluster = Cluster(world, settings)
    for host in ("ar1", "ar2"):
        await cluster.start(host)
    writing, reading = [await world.start_client(host) for host in ("writer", "reader")]
    ledgers: dict[LedgerId, LedgerHistory] = {}
    feeding = []
    for number in range(4):
        e, w, a = script.choice(QUORUMS)
        creating = writing.ledgers.create_ledger(ensemble_size=e, write_quorum=w, ack_quorum=a)
        writer: LedgerWriter = await world.on(writing, creating)
        history = ledgers[writer.ledger_id] = LedgerHistory()
        seconds, pause_s = (script.uniform(0.5, 2.0), 0.05) if number % 2 else (loop.plan.seconds(WRITTEN_S), 4.0)
        feeding.append(world.on(writing, feed(world, writing, writer, history, seconds, pause_s)))
    await asyncio.sleep(15.0)
    scene = Scene(world, ledgers, scrubs)
    for victim in script.sample(hosts, VICTIMS):
        flips = [
            Step(script.uniform(0.0, 10.0), "flip", victim, value=script.random())
            for _ in range(script.randrange(1, 12))
        ]
        await scene.damaged_and_repaired(victim, loop.plan.choose(flips))
    await asyncio.gather(*feeding)
    for ledger, history in ledgers.items():
        await recover(world, reading, ledger, history, "reader")
    await settle(world, ledgers)
    for ledger, history in ledgers.items():
        reader = await world.on(reading, reading.ledgers.open_ledger(ledger, recover=False))
        await world.on(reading, read_all(reader, history, "after"))
        history.check()
    return ledgers
