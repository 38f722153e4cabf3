"""Tests that no client asks a bookie for entries of an earlier bookie with the same address."""

import asyncio
import random

import pytest

from quire_bookie.errors import StartupError
from quire_bookie.metadata import layout
from quire_bookie.metadata.service_info import BookieAddress, BookieServiceInfo, bookie_endpoint, encode_service_info
from quire_bookie.model import BookieId
from quire_bookie.server.start.address_claim import predecessors, wait_until_free
from tests.sim.loop import SimLoop, simulate
from tests.sim.metadata import SimMetadata, SimMetadataStore

OURS, OTHER = BookieId("h-00000001"), BookieId("h-00000002")
ADDRESS = BookieAddress("h", 3181)


def register(server: SimMetadata, bookie: BookieId, host: str = "h", port: int = 3181, *, reads: bool = False) -> None:
    path = layout.read_only_path(bookie) if reads else layout.writable_path(bookie)
    server.write(path, encode_service_info(BookieServiceInfo((bookie_endpoint(host, port),))), None)


@pytest.mark.parametrize("reads", [False, True])
def test_a_start_waits_until_the_other_bookie_of_its_address_is_gone(reads: bool) -> None:
    async def scenario(loop: SimLoop) -> None:
        server = SimMetadata(random.Random(1))
        register(server, OTHER, reads=reads)
        waiting = asyncio.ensure_future(wait_until_free(SimMetadataStore(server), OURS, ADDRESS, 35))
        await asyncio.sleep(20)
        assert not waiting.done()
        server.remove(layout.read_only_path(OTHER) if reads else layout.writable_path(OTHER))
        await waiting

    simulate(scenario, seed=1)


def test_another_bookie_that_stays_registered_fails_the_start() -> None:
    async def scenario(loop: SimLoop) -> None:
        server = SimMetadata(random.Random(1))
        register(server, OTHER)
        with pytest.raises(StartupError, match=f"h:3181 is registered for bookie {OTHER}"):
            await wait_until_free(SimMetadataStore(server), OURS, ADDRESS, 35)
        assert 35 <= loop.time() < 60

    simulate(scenario, seed=1)


def test_a_start_does_not_wait_for_its_own_former_run_or_for_bookies_on_other_ports() -> None:
    async def scenario(loop: SimLoop) -> None:
        server = SimMetadata(random.Random(1))
        register(server, OURS)
        register(server, OTHER, port=3182)
        register(server, BookieId("g-1"), host="g")
        server.write(layout.writable_path(BookieId("broken")), b"\xff\xff", None)
        await wait_until_free(SimMetadataStore(server), OURS, ADDRESS, 35)
        assert loop.time() < 1

    simulate(scenario, seed=1)


def test_predecessors_are_unregistered_bookies_of_this_host_with_a_cookie() -> None:
    async def scenario(_: SimLoop) -> None:
        server = SimMetadata(random.Random(1))
        neighbour = BookieId("h-00000003")
        others = [BookieId(name) for name in ("h-x-00000004", "h-nothex00", "hh-00000005", "h:3182")]
        java = BookieId("h:3181")
        for bookie in (OURS, OTHER, neighbour, java, *others):
            server.write(layout.cookie_path(bookie), b"4\n", None)
        register(server, neighbour, port=3182, reads=True)
        assert await predecessors(SimMetadataStore(server), OURS, ADDRESS) == [OTHER, java]

    simulate(scenario, seed=1)
