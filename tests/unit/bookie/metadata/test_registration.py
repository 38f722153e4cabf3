"""The registry of bookies follows the store, even if events are lost."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from quire_bookie.metadata.layout import read_only_path, writable_path
from quire_bookie.metadata.registration import BookieRegistry, bookie_of_path
from quire_bookie.metadata.service_info import (
    MACHINE,
    BookieAddress,
    BookieServiceInfo,
    bookie_endpoint,
    encode_service_info,
    http_endpoint,
)
from quire_bookie.model import BookieId
from tests.sim.metadata import SimMetadata, SimMetadataStore

A, B = BookieId("a-1"), BookieId("b-2")


def value(port: int) -> bytes:
    return encode_service_info(BookieServiceInfo((bookie_endpoint("h", port),)))


def sets(registry: BookieRegistry) -> tuple[set[BookieId], set[BookieId]]:
    """Return the writable and the read-only bookies."""
    return set(registry.writable), set(registry.read_only)


class Changes:
    """Counts calls, and waits for a condition."""

    def __init__(self, registry: BookieRegistry) -> None:
        self.count = 0
        self._event = asyncio.Event()
        self.remove = registry.on_change(self._called)

    def _called(self) -> None:
        self.count += 1
        self._event.set()

    async def next(self) -> None:
        async with asyncio.timeout(60):
            await self._event.wait()
        self._event.clear()


@pytest.fixture
async def registry(server: SimMetadata, store: SimMetadataStore) -> AsyncIterator[BookieRegistry]:
    """Return a registry over a store in which bookie A is already writable."""
    server.write("/ledgers/available", b"", None)
    server.write("/ledgers/available/readonly", b"", None)
    server.write(writable_path(A), value(1), 99)
    opened = await BookieRegistry.open(store)
    yield opened
    await opened.close()


async def test_existing_registrations_are_known_when_it_opens(registry: BookieRegistry) -> None:
    assert sets(registry) == ({A}, set())
    assert registry.address_of(A) == ("h", 1)
    assert registry.address_of(B) is None


async def test_a_bookie_registers_turns_read_only_and_leaves(server: SimMetadata, registry: BookieRegistry) -> None:
    changes = Changes(registry)
    server.write(writable_path(B), value(2), 99)
    await changes.next()
    assert (set(registry.writable), registry.address_of(B)) == ({A, B}, BookieAddress("h", 2))
    server.remove(writable_path(B))
    await changes.next()
    server.write(read_only_path(B), value(2), 99)
    await changes.next()
    assert sets(registry) == ({A}, {B})
    server.remove(read_only_path(B))
    await changes.next()
    assert sets(registry) == ({A}, set())
    assert registry.address_of(B) == ("h", 2), "its last address may still answer reads"
    changes.remove()
    changes.remove()
    assert changes.count == 4


async def test_a_bookie_that_moved_has_its_new_address(server: SimMetadata, registry: BookieRegistry) -> None:
    changes = Changes(registry)
    server.write(writable_path(A), value(7), 99)
    await changes.next()
    assert registry.address_of(A) == ("h", 7)


async def test_lost_events_are_compensated_by_listing_again(server: SimMetadata, registry: BookieRegistry) -> None:
    changes = Changes(registry)
    server.write(writable_path(B), value(2), 99)
    server.remove(writable_path(A))
    server.write(read_only_path(A), value(3), 99)
    for watch in server.watches:
        watch.lose_events()
    await changes.next()
    assert sets(registry) == ({B}, {A})
    assert registry.address_of(A) == ("h", 3)
    assert changes.count == 1, "one call for all of it"


async def test_an_unavailable_store_only_delays_the_change(server: SimMetadata, registry: BookieRegistry) -> None:
    changes = Changes(registry)
    server.away = True
    server.write(writable_path(B), value(2), 99)
    loop = asyncio.get_running_loop()
    loop.call_later(0.03, setattr, server, "away", False)
    await changes.next()
    assert registry.writable == {A, B}


async def test_an_invalid_registration_is_ignored(server: SimMetadata, registry: BookieRegistry) -> None:
    changes = Changes(registry)
    server.write(writable_path(BookieId("junk")), b"\xff\xff", 99)
    server.write(writable_path(BookieId("no-address")), b"", 99)
    only_http = encode_service_info(BookieServiceInfo((http_endpoint("h", 80),)))
    server.write(writable_path(B), only_http, 99)
    await changes.next()
    assert registry.writable == {A, B}
    assert registry.address_of(B) is None


@pytest.mark.parametrize(
    ("path", "bookie"),
    [
        ("/ledgers/available/h:1", "h:1"),
        ("/ledgers/available/readonly/h:1", "h:1"),
        ("/ledgers/available/readonly", None),
        ("/ledgers/available", None),
        ("/ledgers/available/a/b", None),
        ("/ledgers/cookies/h:1", None),
    ],
)
def test_only_paths_of_registrations_name_bookies(path: str, bookie: str | None) -> None:
    assert bookie_of_path(path) == bookie


async def test_the_last_address_of_a_bookie_that_left_is_used_until_another_one_has_it(
    server: SimMetadata, registry: BookieRegistry
) -> None:
    changes = Changes(registry)
    server.remove(writable_path(A))
    await changes.next()
    assert registry.address_of(A) == BookieAddress("h", 1), "it may still answer reads"
    server.write(read_only_path(B), value(1), 98)
    await changes.next()
    assert registry.address_of(A) is None, "a reader would receive *no such entry* there"
    assert registry.address_of(B) == BookieAddress("h", 1)
    server.remove(read_only_path(B))
    await changes.next()
    assert registry.address_of(A) is None, "the other one may still answer, or is about to be writable"
    assert registry.address_of(B) == BookieAddress("h", 1)
    server.write(writable_path(A), value(1), 99)
    await changes.next()
    server.remove(writable_path(A))
    await changes.next()
    assert (registry.address_of(A), registry.address_of(B)) == (BookieAddress("h", 1), None)


async def test_machines_follow_the_registrations_and_outlive_them(
    server: SimMetadata, store: SimMetadataStore, registry: BookieRegistry
) -> None:
    assert registry.machines == {A: "h"}
    changes = Changes(registry)
    named = encode_service_info(BookieServiceInfo((bookie_endpoint("h", 2),), {MACHINE: "node-1"}))
    server.write(read_only_path(B), named, 99)
    await changes.next()
    assert registry.machines == {A: "h", B: "node-1"}
    await store.delete(read_only_path(B))
    await changes.next()
    assert registry.machines == {A: "h", B: "node-1"}
