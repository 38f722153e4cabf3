"""Tests of a bookie's registration as seen by clients, with lost sessions, stale runs and lost responses."""

import asyncio
import random
from typing import Any

import pytest

from quire_bookie.errors import MetadataUnavailableError, StartupError
from quire_bookie.metadata.cookies import Cookies
from quire_bookie.metadata.service_info import BookieServiceInfo, bookie_endpoint, encode_service_info
from quire_bookie.metadata.store import ABSENT
from quire_bookie.model import BookieId
from quire_bookie.server.start.registration import BookieRegistration, RegistrationSettings
from tests.sim.metadata import SimMetadata, SimMetadataStore

BOOKIE = BookieId("b-1")
WRITABLE, READ_ONLY = "/ledgers/available/b-1", "/ledgers/available/readonly/b-1"
INFO = BookieServiceInfo((bookie_endpoint("h", 3181),))
VALUE = encode_service_info(INFO)


COOKIE = "/ledgers/cookies/b-1"


def metadata(seed: int = 1, unknown_chance: float = 0.0) -> SimMetadata:
    """Return a server that has the bookie's cookie."""
    server = SimMetadata(random.Random(seed), delay_s=(0.0, 0.0), unknown_chance=unknown_chance)
    server.write(COOKIE, b"its cookie", None)
    server.history.clear()
    return server


@pytest.fixture
def server() -> SimMetadata:
    return metadata()


@pytest.fixture
def store(server: SimMetadata) -> SimMetadataStore:
    return SimMetadataStore(server)


def registered(server: SimMetadata) -> list[str]:
    return [key for key in (WRITABLE, READ_ONLY) if key in server.nodes]


async def settle() -> None:
    """Let everything that is ready run."""
    for _ in range(200):
        await asyncio.sleep(0)


async def test_a_started_bookie_is_registered_with_its_address_and_gone_after_stop(
    server: SimMetadata, store: SimMetadataStore
) -> None:
    registration = BookieRegistration(store, BOOKIE, INFO)
    await registration.start()
    assert registered(server) == [WRITABLE]
    assert server.nodes[WRITABLE].value == VALUE
    assert server.nodes[WRITABLE].session is not None
    assert registration.registered and not registration.read_only
    await registration.stop()
    assert registered(server) == []
    assert not registration.registered


async def test_a_bookie_may_start_read_only(server: SimMetadata, store: SimMetadataStore) -> None:
    registration = BookieRegistration(store, BOOKIE, INFO)
    await registration.start(read_only=True)
    assert registered(server) == [READ_ONLY]
    await registration.stop()


async def test_changing_the_mode_deletes_the_old_node_before_it_creates_the_new_one(
    server: SimMetadata, store: SimMetadataStore
) -> None:
    registration = BookieRegistration(store, BOOKIE, INFO)
    await registration.start()
    await registration.set_read_only(True)
    assert registered(server) == [READ_ONLY]
    await registration.set_read_only(True)
    await registration.set_read_only(False)
    assert registered(server) == [WRITABLE]
    await registration.stop()
    assert server.history == [
        ("created", WRITABLE),
        ("deleted", WRITABLE),
        ("created", READ_ONLY),
        ("deleted", READ_ONLY),
        ("created", WRITABLE),
        ("deleted", WRITABLE),
    ]


async def test_a_stale_registration_is_replaced_in_one_step_so_that_no_client_finds_none(
    server: SimMetadata, store: SimMetadataStore
) -> None:
    server.write(WRITABLE, VALUE, 99)
    server.history.clear()
    registration = BookieRegistration(store, BOOKIE, INFO)
    await registration.start()
    assert ("deleted", WRITABLE) not in server.history
    assert registration.stats.takeovers == 1
    await registration.stop()


async def test_after_a_lost_session_the_bookie_registers_again_in_its_mode(
    server: SimMetadata, store: SimMetadataStore
) -> None:
    registration = BookieRegistration(store, BOOKIE, INFO)
    await registration.start()
    await registration.set_read_only(True)
    store.expire()
    await settle()
    assert registration.registered
    assert registered(server) == [READ_ONLY]
    node = await store.get(READ_ONLY)
    assert node is not None and node.owned
    assert registration.stats.sessions_lost == 1
    await registration.stop()


async def test_a_bookie_whose_cookie_is_gone_does_not_start(server: SimMetadata, store: SimMetadataStore) -> None:
    server.remove(COOKIE)
    with pytest.raises(StartupError, match="its cookie is gone"):
        await BookieRegistration(store, BOOKIE, INFO).start(read_only=True)
    assert ("created", READ_ONLY) not in server.history and server.watches == []


async def test_a_cookie_that_is_removed_while_the_bookie_registers_takes_the_registration_with_it(
    server: SimMetadata, store: SimMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = store.put

    async def put_late(path: str, value: bytes, **options: Any) -> int:
        await Cookies(store).delete(BOOKIE)  # checks in the same step that there is no registration
        return await put(path, value, **options)

    monkeypatch.setattr(store, "put", put_late)
    with pytest.raises(StartupError, match="its cookie is gone"):
        await BookieRegistration(store, BOOKIE, INFO).start()
    assert [one for one in server.history if one[1] == WRITABLE] == [("created", WRITABLE), ("deleted", WRITABLE)]
    assert registered(server) == []


async def test_a_bookie_whose_cookie_was_deleted_while_its_session_was_lost_does_not_register_again(
    server: SimMetadata, store: SimMetadataStore, caplog: pytest.LogCaptureFixture
) -> None:
    registration = BookieRegistration(store, BOOKIE, INFO)
    await registration.start()
    server.remove(COOKIE)
    server.history.clear()
    store.expire()
    await settle()
    assert (registered(server), server.history) == ([], [("deleted", WRITABLE)])
    assert not registration.registered and "was removed from the cluster" in caplog.text
    await registration.stop()


async def test_a_deleted_registration_is_restored(server: SimMetadata, store: SimMetadataStore) -> None:
    registration = BookieRegistration(store, BOOKIE, INFO)
    await registration.start()
    server.remove(WRITABLE)
    await settle()
    assert registered(server) == [WRITABLE]
    for watch in server.watches:
        watch.lose_events()
    server.nodes.pop(WRITABLE)  # without an event
    await settle()
    assert registered(server) == [WRITABLE]
    await registration.stop()


@pytest.mark.parametrize("read_only", [False, True], ids=["writable", "read-only"])
async def test_a_creation_that_takes_effect_after_a_change_of_mode_is_undone(
    server: SimMetadata, store: SimMetadataStore, read_only: bool
) -> None:
    registration = BookieRegistration(store, BOOKIE, INFO)
    await registration.start(read_only=not read_only)
    await registration.set_read_only(read_only)
    wanted, late = (READ_ONLY, WRITABLE) if read_only else (WRITABLE, READ_ONLY)
    await store.put(late, VALUE, expected=ABSENT, ephemeral=True)
    await settle()
    assert registered(server) == [wanted]
    assert server.nodes[wanted].session is not None
    await registration.stop()


@pytest.mark.parametrize("stale", [[WRITABLE], [READ_ONLY], [WRITABLE, READ_ONLY]])
async def test_stale_registrations_of_the_previous_run_are_replaced_at_once(
    server: SimMetadata, store: SimMetadataStore, stale: list[str]
) -> None:
    for key in stale:
        server.write(key, VALUE, 99)
    registration = BookieRegistration(store, BOOKIE, INFO)
    await registration.start()
    server.expire(99)
    await settle()
    assert registered(server) == [WRITABLE]
    node = await store.get(WRITABLE)
    assert node is not None and node.owned
    await registration.stop()


async def test_a_start_fails_while_another_address_stays_registered_under_its_id(
    server: SimMetadata, store: SimMetadataStore
) -> None:
    other = encode_service_info(BookieServiceInfo((bookie_endpoint("elsewhere", 1),)))
    server.write(WRITABLE, other, 99)
    registration = BookieRegistration(store, BOOKIE, INFO, RegistrationSettings(takeover_timeout_s=0.0))
    with pytest.raises(StartupError, match="another address"):
        await registration.start()
    assert server.nodes[WRITABLE].value == other
    assert server.watches == []


async def test_a_start_waits_for_the_lease_of_another_address_and_logs_that_once(
    server: SimMetadata, store: SimMetadataStore, caplog: pytest.LogCaptureFixture
) -> None:
    server.write(WRITABLE, encode_service_info(BookieServiceInfo((bookie_endpoint("before", 1),))), 99)
    asyncio.get_running_loop().call_later(0.02, server.expire, 99)
    registration = BookieRegistration(store, BOOKIE, INFO, RegistrationSettings(takeover_timeout_s=20.0))
    await registration.start()
    assert server.nodes[WRITABLE].value == VALUE
    assert caplog.text.count("waiting up to 20 s to register: bookie") == 1
    await registration.stop()


async def test_an_unavailable_store_fails_the_start_and_delays_a_change_of_mode(
    server: SimMetadata, store: SimMetadataStore
) -> None:
    server.away = True
    with pytest.raises(MetadataUnavailableError):
        await BookieRegistration(store, BOOKIE, INFO).start()
    server.away = False
    registration = BookieRegistration(store, BOOKIE, INFO)
    await registration.start()
    server.away = True
    change = asyncio.ensure_future(registration.set_read_only(True))
    await settle()
    assert not change.done()
    assert not registration.registered
    server.away = False
    async with asyncio.timeout(60):
        await change
    assert registered(server) == [READ_ONLY]
    await registration.stop()


@pytest.mark.parametrize("seed", range(15))
async def test_lost_responses_never_leave_the_bookie_in_both_modes_or_in_none(seed: int) -> None:
    server = metadata(seed, unknown_chance=0.3)
    store = SimMetadataStore(server)
    registration = BookieRegistration(store, BOOKIE, INFO)
    async with asyncio.timeout(30):
        await registration.start()
        for read_only in (True, False):
            await registration.set_read_only(read_only)
            assert registered(server) == [READ_ONLY if read_only else WRITABLE]
    present: set[str] = set()
    for kind, key in server.history:
        present = present - {key} if kind == "deleted" else present | {key}
        assert len(present) <= 1
    server.unknown_chance = 0.0
    await registration.stop()


async def test_a_second_stop_leaves_the_next_run_alone(server: SimMetadata, store: SimMetadataStore) -> None:
    first = BookieRegistration(store, BOOKIE, INFO)
    await first.stop()  # never started: nothing to do
    await first.start()
    await first.stop()
    second = BookieRegistration(store, BOOKIE, INFO)
    await second.start()
    await first.stop()
    async with asyncio.timeout(60):
        await first.set_read_only(True)
    await settle()
    assert registered(server) == [WRITABLE]
    await second.stop()


async def test_stop_gives_up_on_an_unavailable_store(server: SimMetadata, store: SimMetadataStore) -> None:
    registration = BookieRegistration(store, BOOKIE, INFO)
    await registration.start()
    server.away = True
    await registration.stop()
    assert not registration.registered
