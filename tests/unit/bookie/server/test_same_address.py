"""Tests of new volumes under an old address: a new bookie must not be asked for entries of the old one."""

import asyncio

import pytest

from quire_bookie.errors import StartupError
from quire_bookie.metadata import layout
from quire_bookie.settings.rack import RackSettings
from tests.sim.disk import SimDisk
from tests.sim.loop import SimLoop, simulate
from tests.sim.world import World


def test_a_bookie_on_wiped_volumes_serves_once_every_client_knows_that_it_is_another_one() -> None:
    async def scenario(loop: SimLoop) -> None:
        world = World(loop, 1)
        await world.start_bookies(1)
        place = world.bookies["b1"]
        assert place.running is not None
        old = place.running.bookie_id
        world.kill_bookie("b1")
        place.disk = SimDisk()
        world.metadata.history.clear()
        crashed_s = loop.time()
        starting = asyncio.ensure_future(world.start_bookie("b1"))
        refused_until_s = crashed_s
        while not starting.done():
            if await listens(place.host):
                break
            refused_until_s = loop.time()
            await asyncio.sleep(0.1)
        await starting
        assert place.running is not None
        new = place.running.bookie_id
        assert new != old
        events = [event for event in world.metadata.history if event[1].startswith(layout.AVAILABLE)]
        assert events == [
            ("deleted", layout.writable_path(old)),
            ("created", layout.read_only_path(new)),
            ("deleted", layout.read_only_path(new)),
            ("created", layout.writable_path(new)),
        ]
        assert refused_until_s - crashed_s >= world.metadata.session_timeout_s

    simulate(scenario, seed=1)


def test_a_start_that_ended_before_the_handover_of_its_address_repeats_it() -> None:
    async def scenario(loop: SimLoop) -> None:
        world = World(loop, 1)
        await world.start_bookies(1)
        place = world.bookies["b1"]
        world.kill_bookie("b1")
        place.disk = SimDisk()
        world.changes_of["b1"] = {"rack": RackSettings(annotations_path="/nothing", wait_s=1)}
        with pytest.raises(StartupError, match="did not appear within"):
            await world.start_bookie("b1")
        world.kill_bookie("b1")
        world.changes_of.clear()
        world.metadata.history.clear()
        await world.start_bookie("b1")
        assert place.running is not None
        bookie = place.running.bookie_id
        assert [event for event in world.metadata.history if event[1].startswith(layout.AVAILABLE)] == [
            ("created", layout.read_only_path(bookie)),
            ("deleted", layout.read_only_path(bookie)),
            ("created", layout.writable_path(bookie)),
        ]

    simulate(scenario, seed=1)


async def listens(host: str) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, 3181)
    except OSError:
        return False
    writer.close()
    return True


def test_a_bookie_that_returns_with_its_own_volumes_does_not_wait() -> None:
    async def scenario(loop: SimLoop) -> None:
        world = World(loop, 1)
        await world.start_bookies(2)
        before = world.bookies["b1"].running
        assert before is not None
        world.kill_bookie("b1")
        crashed_s = loop.time()
        await world.start_bookie("b1")
        after = world.bookies["b1"].running
        assert after is not None
        assert after.bookie_id == before.bookie_id
        assert loop.time() - crashed_s < 5

    simulate(scenario, seed=1)
