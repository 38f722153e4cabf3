"""The metadata is lost and restored from a backup that is older than what the bookies hold.

Ledgers are written before, during and after the backup, and some are deleted after it. Bookies collect garbage all the
time, and keep running through the loss or are restarted after it. The restore itself meets lost responses, and is
repeated. Orphans and outdated ledgers are adopted or dropped, as an administrator would; then the hold is released. No
acknowledged entry of a ledger that was not deleted is lost, and no new ledger gets an id that was ever used. Without
faults nothing is newer than the backup.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Self
from unittest import mock

from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from quire_bookie.admin.holdings_api import HoldingsApi
from quire_bookie.admin.routes import ROUTES, register
from quire_bookie.backup.adoption import adopt, gather_evidence
from quire_bookie.backup.format import BackupError, Manifest
from quire_bookie.backup.holdings import BookieQuestions
from quire_bookie.backup.restore import inspect_backup, inspect_store, restore
from quire_bookie.backup.review import Kind, review
from quire_bookie.backup.settling import release, settle_ids, undecided, under_review
from quire_bookie.backup.taking import take_backup
from quire_bookie.client import LedgerWriter
from quire_bookie.env.disk import Disk
from quire_bookie.errors import BookieUnavailableError, ObjectMissingError, ObjectStoreError, QuireError
from quire_bookie.metadata.restoration import give_up, given_up
from quire_bookie.model import BookieId, LedgerId
from quire_bookie.recovery.access import ClusterAccess
from quire_bookie.server.process import RunningBookie
from quire_bookie.settings.client import ClientSettings
from quire_bookie.settings.collection import GarbageCollectionSettings, QuarantineSettings
from quire_bookie.settings.recovery import RecoverySettings
from tests.sim.history import LedgerHistory
from tests.sim.ledger_scenario import Listener, read_all, recover
from tests.sim.loop import SimLoop
from tests.sim.metadata import SimMetadataStore
from tests.sim.world import SimChance, SimClient, World, retry

QUORUMS = ((3, 3, 2), (3, 2, 2), (2, 2, 2))
BOOKIES = 4
MARGIN = 20
"""Ids skipped by a restore, instead of a thousand, as each costs a write."""


class MemoryObjectStore:
    """Replaces a bucket."""

    url = "sim://backups"

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}

    async def put(self, name: str, data: bytes, **_: Any) -> None:
        if name in self._objects:
            raise ObjectStoreError(f"{name} exists")
        self._objects[name] = bytes(data)

    async def get_range(self, name: str, start: int, end: int) -> bytes:
        if name not in self._objects:
            raise ObjectMissingError(f"{name} does not exist")
        return self._objects[name][start:end]


class SimQuestions(BookieQuestions):
    """Calls the admin handlers of the simulated bookies directly, without HTTP."""

    def __init__(self, access: ClusterAccess, world: World) -> None:
        super().__init__(access)
        self._world = world

    async def __aenter__(self) -> Self:
        return self

    async def _get(self, bookie: BookieId, path: str) -> Mapping[str, Any]:
        for place in self._world.bookies.values():
            running = place.running
            if running is not None and place.node is not None and running.bookie_id == bookie:
                return await self._world.loop.run_on(place.node, _answer(running, place.disk, path))
        raise BookieUnavailableError(f"{bookie} is down")


async def _answer(running: RunningBookie, disk: Disk, path: str) -> Mapping[str, Any]:
    app = web.Application()
    register(app, ROUTES, HoldingsApi(lambda: running, disk).routes())
    request = make_mocked_request("GET", path)
    match = await app.router.resolve(request)
    request._match_info = match
    answer: Any = await match.handler(request)
    found: Mapping[str, Any] = json.loads(answer.text)
    return found


async def fill(world: World, client: SimClient, count: int, seconds: float) -> dict[LedgerId, LedgerHistory]:
    """Create ledgers, write them for a while, and close some of them."""
    found: dict[LedgerId, LedgerHistory] = {}
    feeding = []
    for _ in range(count):
        e, w, a = world.chance.choice(QUORUMS)
        writer = await world.on(client, client.ledgers.create_ledger(ensemble_size=e, write_quorum=w, ack_quorum=a))
        history = found[writer.ledger_id] = LedgerHistory()
        feeding.append(world.on(client, write_slowly(world, writer, history, world.chance.uniform(0.1, seconds))))
    await asyncio.gather(*feeding)
    return found


async def write_slowly(world: World, writer: LedgerWriter, history: LedgerHistory, seconds: float) -> None:
    """Write a few entries a second: the scenario is about ledgers rather than entries, and a run must stay short."""
    listener = writer.listener = Listener(history)
    end_s = world.loop.time() + seconds
    while world.loop.time() < end_s and not listener.stopped.is_set():
        payloads = [b"%d:" % (len(history.submitted) + each) for each in range(world.chance.choice((1, 3)))]
        try:
            first = writer.submit(payloads)
        except QuireError:
            return
        history.on_submit(first, payloads)
        await asyncio.sleep(world.chance.uniform(0.0, 0.5))


async def lose_the_metadata(world: World, *, running: bool) -> None:
    """Remove all metadata while the bookies keep running, or after they were stopped."""
    if not running:
        for host in sorted(world.bookies):
            world.crash_bookie(host, "random")
    world.metadata.away = True
    await asyncio.sleep(1.0)
    for key in sorted(world.metadata.nodes):
        world.metadata.remove(key)
    world.metadata.away = False
    for place in world.bookies.values():
        if place.session is not None:
            place.session.expire()  # the new store has no leases
    await asyncio.sleep(world.chance.uniform(0.0, 3.0))


async def bring_back(world: World, objects: Any, manifest: Manifest) -> None:
    """Repeat `quire metadata restore --yes` until it succeeds."""
    store = SimMetadataStore(world.metadata)

    async def attempt() -> None:
        seen = await inspect_store(store, manifest)
        await restore(store, objects, manifest, seen, await inspect_backup(objects, manifest), clock=world.clock)

    world.metadata.unknown_chance = 0.0 if world.loop.plan.calm else world.chance.choice((0.0, 0.01, 0.05))
    try:
        await retry(attempt, seconds=300)
    finally:
        world.metadata.unknown_chance = 0.0


async def settle(world: World, access: ClusterAccess, living: dict[LedgerId, LedgerHistory]) -> None:
    """Review the restore: adopt the live ledgers, drop the others, and release the hold."""
    store = access.metadata
    async with SimQuestions(access, world) as questions:
        found = await review(access.nodes, questions, await questions.holdings())
        backup = (await under_review(store)).value.backup
        for one in found.differences:
            if one.kind is Kind.GONE:
                continue
            world.loop.note(f"{one.ledger} is {one.kind.value}: {one.why}")
            if one.ledger not in living:
                await give_up(store, one.ledger)
                continue
            evidence = await gather_evidence(access, questions, one.ledger, (), await questions.known())
            # Entries that were never acknowledged may be missing on all bookies.
            await adopt(access, one.ledger, evidence, backup, b"", accept_missing=True)
        holdings = await questions.holdings()
        open_ = undecided(await review(access.nodes, questions, holdings), holdings, await given_up(store), ())
        if open_.lines:
            raise BackupError("; ".join(open_.lines))
        under = await under_review(store)
        await settle_ids(store, under.value, holdings, complete=not holdings.silent)
        await release(store, await under_review(store))


async def run(loop: SimLoop, seed: int) -> dict[LedgerId, int]:
    """Run one seed. Raises HistoryError or AssertionError if a guarantee is violated."""
    with (
        mock.patch("quire_bookie.backup.restore.COUNTER_MARGIN", MARGIN),
        mock.patch("quire_bookie.backup.settling.COUNTER_MARGIN", MARGIN),
    ):
        return await _run(loop, seed)


async def _run(loop: SimLoop, seed: int) -> dict[LedgerId, int]:
    world = World(loop, seed)
    chance, calm = world.chance, loop.plan.calm
    world.garbage_collection_settings = GarbageCollectionSettings(
        interval_s=chance.uniform(0.3, 2.0),
        quarantine=QuarantineSettings(0.0),  # only the restore protects the ledgers
    )
    await world.start_bookies(BOOKIES)
    client = await world.start_client("writer")
    everything = await fill(world, client, 3, 2.0)
    across = asyncio.ensure_future(fill(world, client, 0 if calm else 2, 6.0))  # open in the backup
    await asyncio.sleep(chance.uniform(0.5, 1.0))
    objects: Any = MemoryObjectStore()
    chances = SimChance(chance.randrange(1 << 30))
    manifest = await take_backup(SimMetadataStore(world.metadata), objects, clock=world.clock, chance=chances)
    gone: list[LedgerId] = []
    if not calm:
        if chance.random() < 0.5:
            world.crash_bookie(chance.choice(sorted(world.bookies)), "random")  # so that ensembles change
        everything |= await across
        everything |= await fill(world, client, chance.randrange(1, 5), 3.0)
        for host in sorted(world.bookies):
            await world.start_bookie(host)
        gone = chance.sample(sorted(everything), 1)
        for ledger in gone:
            await retry(lambda one=ledger: world.on(client, client.ledgers.delete_ledger(one)), seconds=60)
    else:
        await across
    living = {ledger: history for ledger, history in everything.items() if ledger not in gone}
    world.kill_client(client)
    running = chance.random() < 0.4
    loop.note("bookies keep running" if running else "bookies are stopped")
    await lose_the_metadata(world, running=running)
    await bring_back(world, objects, manifest)
    for host in sorted(world.bookies):
        await world.start_bookie(host)
    await asyncio.sleep(chance.uniform(3.0, 15.0))  # long enough for several garbage collections
    settings = ClientSettings(add_timeout_s=5.0, read_timeout_s=5.0, connect_timeout_s=3.0)
    opening = ClusterAccess.open(
        SimMetadataStore(world.metadata), RecoverySettings(), settings, clock=world.clock, chance=chances
    )
    access = await opening
    await retry(lambda: settle(world, access, living), seconds=120)
    await access.close()
    await asyncio.sleep(chance.uniform(3.0, 15.0))
    after = await world.start_client("reader")
    fresh = await fill(world, after, 3, 1.0)
    used = sorted(set(fresh) & set(everything))
    assert not used, f"ids were assigned a second time: {used}"
    for ledger, history in (living | fresh).items():
        history.closings.clear()  # an adoption may end a ledger after entries that were never acknowledged
        await recover(world, after, ledger, history, "reader")
        reader = await world.on(after, after.ledgers.open_ledger(ledger, recover=False))
        await world.on(after, read_all(reader, history, "after"))
        history.check()
    return {ledger: history.confirmed_up_to for ledger, history in (living | fresh).items()}
