"""Tests how a bookie finds its rack, and that it publishes the rack before it is registered."""

import asyncio
import json
import random
from typing import Any

import pytest

from quire_bookie.errors import StartupError
from quire_bookie.limits import RACK_LATE_POLL_S
from quire_bookie.metadata.rack_map import RACK_MAP
from quire_bookie.model import BookieId
from quire_bookie.server.upkeep.own_rack import annotation_in, place_of, publish_late_rack, publish_rack
from quire_bookie.settings.rack import RackSettings
from tests.sim.disk import SimDisk
from tests.sim.loop import SimLoop, simulate
from tests.sim.metadata import SimMetadata, SimMetadataStore
from tests.sim.world import SimChance, World

BOOKIE = BookieId("b-1")
FILE = "/podinfo/annotations"
TEXT = 'kubernetes.io/config.seen="2026-01-01"\nquire.dev/zone="eu-1a"\nquire.dev/zones="x"\n'


@pytest.mark.parametrize(
    ("rack", "place"),
    [("eu-1a", "/eu-1a"), ("/eu-1/r7/", "/eu-1/r7"), ("", None), (" ", None), ("//", None)],
)
def test_a_rack_is_written_as_a_path(rack: str, place: str | None) -> None:
    assert place_of(rack) == place


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (TEXT, "eu-1a"),
        ('quire.dev/zone=""\n', ""),
        ('quire.dev/zone="a\\"b\\\\c"', 'a"b\\c'),
        ("", None),
        ('other="quire.dev/zone"', None),
        ('xquire.dev/zone="no"', None),
        ("quire.dev/zone=bare", None),
    ],
)
def test_an_annotation_is_read_as_kubernetes_writes_it(text: str, value: str | None) -> None:
    assert annotation_in(text, "quire.dev/zone") == value


class Scene:
    """Holds a store and a disk, and publishes the rack of a bookie."""

    def __init__(self) -> None:
        self.server = SimMetadata(random.Random(1))
        self.store = SimMetadataStore(self.server)
        self.disk = SimDisk()

    async def annotate(self, text: str) -> None:
        await self.disk.make_dirs("/podinfo")
        await self.disk.replace_file(FILE, text.encode())

    async def publish(self, settings: RackSettings, bookie: BookieId = BOOKIE) -> bool:
        return await publish_rack(settings, self.store, self.disk, SimChance(3), bookie, f"host-of-{bookie}")

    async def publish_late(self, settings: RackSettings) -> None:
        await publish_late_rack(settings, self.store, self.disk, SimChance(3), BOOKIE, f"host-of-{BOOKIE}")

    def map(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.server.nodes[RACK_MAP].value)
        return found


def test_a_configured_rack_is_published_and_the_entries_of_others_stay() -> None:
    async def scenario(_: SimLoop) -> None:
        scene = Scene()
        by_hand = {"default": {"b-9": {"rack": "/r9", "hostname": "h", "more": 1}}, "tight": {"b-1": {"rack": "/old"}}}
        scene.server.write(RACK_MAP, json.dumps(by_hand).encode(), None)
        await scene.publish(RackSettings(rack="eu-1a"))
        assert scene.map() == {
            "default": {"b-9": {"rack": "/r9", "hostname": "h", "more": 1}},
            "tight": {"b-1": {"rack": "/eu-1a", "hostname": "host-of-b-1"}},
        }
        version = scene.server.nodes[RACK_MAP].version
        await scene.publish(RackSettings(rack="eu-1a"))
        assert scene.server.nodes[RACK_MAP].version == version, "publishing it again writes nothing"

    simulate(scenario, seed=1)


def test_no_rack_is_published_without_settings_or_for_a_node_without_a_zone() -> None:
    async def scenario(_: SimLoop) -> None:
        scene = Scene()
        await scene.publish(RackSettings())
        await scene.annotate('quire.dev/zone=""\n')
        await scene.publish(RackSettings(annotations_path=FILE))
        assert RACK_MAP not in scene.server.nodes

    simulate(scenario, seed=1)


def test_a_start_waits_for_a_late_annotation() -> None:
    async def scenario(_: SimLoop) -> None:
        scene = Scene()
        publishing = asyncio.ensure_future(scene.publish(RackSettings(annotations_path=FILE, wait_s=60)))
        await asyncio.sleep(20)
        await scene.annotate('other="x"\n')
        await asyncio.sleep(20)
        assert not publishing.done()
        await scene.annotate(TEXT)
        await publishing
        assert scene.map()["default"]["b-1"]["rack"] == "/eu-1a"

    simulate(scenario, seed=1)


def test_a_new_bookie_without_its_annotation_fails_after_the_wait() -> None:
    async def scenario(loop: SimLoop) -> None:
        scene = Scene()
        await scene.publish(RackSettings(rack="eu-1b"), BookieId("b-2"))
        with pytest.raises(StartupError, match=r"quire\.dev/zone in /podinfo/annotations did not appear within 5 s"):
            await scene.publish(RackSettings(annotations_path=FILE, wait_s=5))
        assert loop.time() >= 5

    simulate(scenario, seed=1)


def test_a_known_bookie_starts_at_once_and_publishes_a_late_annotation() -> None:
    async def scenario(loop: SimLoop) -> None:
        scene = Scene()
        settings = RackSettings(annotations_path=FILE)
        assert not await scene.publish(RackSettings(rack="eu-1b")), "its rack is a setting"
        before_s = loop.time()
        assert await scene.publish(settings), "the annotation is missing"
        assert loop.time() - before_s < 1
        assert scene.map()["default"]["b-1"]["rack"] == "/eu-1b"
        late = asyncio.ensure_future(scene.publish_late(settings))
        await asyncio.sleep(600)
        assert not late.done()
        await scene.annotate(TEXT)
        await late
        assert scene.map()["default"]["b-1"]["rack"] == "/eu-1a"
        assert not await scene.publish(settings), "the annotation is there"

    simulate(scenario, seed=1)


def test_a_late_annotation_is_not_lost_while_the_store_is_unavailable() -> None:
    async def scenario(_: SimLoop) -> None:
        scene = Scene()
        await scene.publish(RackSettings(rack="eu-1b"))
        await scene.annotate(TEXT)
        scene.store.cut = True
        late = asyncio.ensure_future(scene.publish_late(RackSettings(annotations_path=FILE)))
        await asyncio.sleep(60)
        assert not late.done()
        scene.store.reach()
        await late
        assert scene.map()["default"]["b-1"]["rack"] == "/eu-1a"

    simulate(scenario, seed=1)


def test_a_map_that_does_not_parse_stays_unchanged_and_does_not_fail_a_start() -> None:
    async def scenario(_: SimLoop) -> None:
        scene = Scene()
        scene.server.write(RACK_MAP, b"[1]", None)
        await scene.publish(RackSettings(rack="eu-1a"))
        assert scene.server.nodes[RACK_MAP].value == b"[1]"

    simulate(scenario, seed=1)


def test_a_whole_pool_that_starts_at_once_is_in_the_map() -> None:
    async def scenario(_: SimLoop) -> None:
        scene = Scene()
        names = [BookieId(f"b-{number}") for number in range(40)]
        await asyncio.gather(*(scene.publish(RackSettings(rack=f"r{int(name[2:]) % 3}"), name) for name in names))
        assert set(scene.map()["default"]) == set(names)

    simulate(scenario, seed=1)


def test_a_restarted_bookie_serves_without_its_annotation_and_publishes_it_later() -> None:
    async def scenario(loop: SimLoop) -> None:
        world = World(loop, 1)
        world.changes_of["b1"] = {"rack": RackSettings(rack="eu-1b")}
        await world.start_bookies(1)
        place = world.bookies["b1"]
        world.kill_bookie("b1")
        world.changes_of["b1"] = {"rack": RackSettings(annotations_path=FILE)}
        before_s = loop.time()
        await world.start_bookie("b1")
        assert loop.time() - before_s < RackSettings().wait_s / 2
        assert place.running is not None
        await place.disk.make_dirs("/podinfo")
        await place.disk.replace_file(FILE, TEXT.encode())
        await asyncio.sleep(2 * RACK_LATE_POLL_S)
        groups = json.loads(world.metadata.nodes[RACK_MAP].value)
        assert groups["default"][place.running.bookie_id]["rack"] == "/eu-1a"

    simulate(scenario, seed=1)
