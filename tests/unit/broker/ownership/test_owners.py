"""Owner nodes: taking, redirecting, losing the session, a dead predecessor."""

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from quire_bookie.errors import (
    BadVersionError,
    MetadataError,
    MetadataUnavailableError,
    MetadataUnknownError,
    NodeMissingError,
)
from quire_bookie.metadata.store import Node, SessionState
from quire_broker.errors import NotFoundError, ServiceNotReadyError
from quire_broker.names import NamespaceName, parse_topic
from quire_broker.ownership.lookup import Lookups
from quire_broker.ownership.offers import Offer
from quire_broker.ownership.owners import BrokerUrls, Bundle, Owners
from quire_broker.ownership.registration import Registration
from quire_broker.policies.store import PolicyStore, encode_json
from quire_broker.server.ports import Ports, PortSettings
from tests.sim.metadata import SimMetadata, SimMetadataStore

A, B = BrokerUrls("pulsar://a:1", "http://a:2"), BrokerUrls("pulsar://b:1", "http://b:2")
BUNDLE = Bundle(NamespaceName("public", "default"), "0x00000000_0xffffffff")
KEY = "/namespace/public/default/0x00000000_0xffffffff"


class Clock:
    def now_ms(self) -> int:
        return 1


def owners(server: SimMetadata, urls: BrokerUrls) -> tuple[SimMetadataStore, Owners]:
    session = SimMetadataStore(server)
    return session, Owners(session, PolicyStore(session, "c1"), urls)


@pytest.fixture
def server() -> SimMetadata:
    return SimMetadata(random.Random(1), delay_s=(0.0, 0.0))


async def test_a_free_bundle_is_taken_and_other_brokers_redirect_to_its_owner(server: SimMetadata) -> None:
    _, first = owners(server, A)
    _, second = owners(server, B)
    assert await second.owner_of(BUNDLE, take=False) is None
    mine = await first.owner_of(BUNDLE)
    assert mine is not None
    assert mine.ours
    theirs = await second.owner_of(BUNDLE)
    assert theirs is not None
    assert (theirs.ours, theirs.urls) == (False, A)
    assert server.nodes[KEY].value == (
        b'{"nativeUrl":"pulsar://a:1","httpUrl":"http://a:2","disabled":false,"advertisedListeners":{}}'
    )


async def test_one_of_two_brokers_that_take_a_bundle_at_once_wins(server: SimMetadata) -> None:
    server.delay_s = (0.001, 0.01)
    pairs = [owners(server, urls)[1] for urls in (A, B)]
    answers = await asyncio.gather(*(each.owner_of(BUNDLE) for each in pairs))
    assert sorted(answer.ours for answer in answers if answer) == [False, True]
    assert len({answer.urls for answer in answers if answer}) == 1


async def test_many_lookups_of_one_bundle_take_it_once(server: SimMetadata) -> None:
    _, mine = owners(server, A)
    answers = await asyncio.gather(*(mine.owner_of(BUNDLE) for _ in range(20)))
    assert all(answer and answer.ours for answer in answers)
    assert server.version(KEY) == 0


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110  no event tells; the loop is idle soon
            await asyncio.sleep(0)


class Doubts:
    """Records the callbacks for a broker's bundles while `run` runs."""

    def __init__(self, mine: Owners) -> None:
        self.lost: list[Bundle] = []
        self.retaken: list[Bundle] = []
        mine.on_lost, mine.on_retaken = self.lost.append, self.retaken.append
        self._running = asyncio.create_task(mine.run(retry_s=0.0))

    def stop(self) -> None:
        self._running.cancel()


async def test_a_bundle_stays_ours_in_doubt_while_the_session_is_lost(server: SimMetadata) -> None:
    session, mine = owners(server, A)
    heard = Doubts(mine)
    await mine.owner_of(BUNDLE)
    before = mine.tenure(BUNDLE)
    server.away = True
    session._tell(SessionState.LOST)
    assert (mine.holds(BUNDLE), mine.certain(BUNDLE)) == (True, False)
    owner = await mine.owner_of(BUNDLE)
    assert owner is not None
    assert owner.ours, "reconnecting clients are served"
    server.away = False
    session._tell(SessionState.CONNECTED)
    await until(lambda: mine.certain(BUNDLE))
    assert (heard.lost, heard.retaken) == ([], []), "the lease never ended"
    assert mine.tenure(BUNDLE) == before
    heard.stop()


async def test_a_free_bundle_is_taken_again_after_a_lost_session_and_its_topics_are_checked(
    server: SimMetadata,
) -> None:
    session, mine = owners(server, A)
    heard = Doubts(mine)
    await mine.owner_of(BUNDLE)
    before = mine.tenure(BUNDLE)
    session.expire()
    assert (mine.holds(BUNDLE), mine.tenure(BUNDLE)) == (True, 0)
    await until(lambda: mine.certain(BUNDLE))
    assert mine.tenure(BUNDLE) > before > 0, "a topic that was being opened meanwhile is opened again"
    assert server.nodes[KEY].session == session._session
    assert (heard.lost, heard.retaken) == ([], [BUNDLE])
    heard.stop()


async def test_a_lookup_takes_a_doubted_bundle_again_at_once(server: SimMetadata) -> None:
    session, mine = owners(server, A)
    await mine.owner_of(BUNDLE)
    session.expire()
    again = await mine.owner_of(BUNDLE, take=False)
    assert again is not None
    assert again.ours
    assert mine.certain(BUNDLE)


async def test_a_bundle_that_another_broker_took_meanwhile_is_dropped(server: SimMetadata) -> None:
    session, mine = owners(server, A)
    heard = Doubts(mine)
    await mine.owner_of(BUNDLE)
    server.expire(session._session)
    session._tell(SessionState.LOST)
    _, other = owners(server, B)
    await other.owner_of(BUNDLE)
    assert mine.holds(BUNDLE)
    session.expire()
    await until(lambda: heard.lost == [BUNDLE])
    assert (mine.holds(BUNDLE), heard.retaken) == (False, [])
    theirs = await mine.owner_of(BUNDLE)
    assert theirs is not None
    assert theirs.urls == B
    heard.stop()


async def test_confirming_continues_until_the_store_answers(server: SimMetadata) -> None:
    session, mine = owners(server, A)
    heard = Doubts(mine)
    await mine.owner_of(BUNDLE)
    server.away = True
    session.expire()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not mine.certain(BUNDLE)
    server.away = False
    await until(lambda: mine.certain(BUNDLE))
    heard.stop()


async def test_a_bundle_in_doubt_is_not_released_from_its_next_owner(server: SimMetadata) -> None:
    session, mine = owners(server, A)
    await mine.owner_of(BUNDLE)
    server.expire(session._session)
    session._tell(SessionState.LOST)
    _, other = owners(server, B)
    await other.owner_of(BUNDLE)
    assert mine.leave(BUNDLE)
    await mine.release(BUNDLE)
    assert KEY in server.nodes


async def test_the_node_of_a_dead_run_of_the_same_broker_is_replaced(server: SimMetadata) -> None:
    dead, before = owners(server, A)
    await before.owner_of(BUNDLE)
    dead.cut_for_good()
    _, after = owners(server, A)
    owner = await after.owner_of(BUNDLE)
    assert owner is not None
    assert owner.ours
    dead.lease_ran_out()
    assert KEY in server.nodes, "the node belongs to the new session now"


async def test_a_query_does_not_take_a_bundle_left_by_a_dead_run_of_the_same_broker(server: SimMetadata) -> None:
    dead, before = owners(server, A)
    await before.owner_of(BUNDLE)
    dead.cut_for_good()
    version = server.nodes[KEY].version
    _, after = owners(server, A)
    assert await after.owner_of(BUNDLE, take=False) is None
    assert (server.nodes[KEY].version, after.held) == (version, frozenset())
    _, other = owners(server, B)
    theirs = await other.owner_of(BUNDLE, take=False)
    assert theirs is not None
    assert theirs.urls == A, "another broker redirects clients there, until the lease has ended"


async def test_a_query_finds_a_node_of_the_same_session(server: SimMetadata) -> None:
    session, mine = owners(server, A)
    await session.put(KEY, mine._value, ephemeral=True)  # a write of unknown outcome
    owner = await mine.owner_of(BUNDLE, take=False)
    assert owner is not None
    assert owner.ours
    assert mine.holds(BUNDLE)


async def test_a_write_of_unknown_outcome_is_read_back(server: SimMetadata) -> None:
    _, mine = owners(server, A)
    server.unknown_chance = 0.5
    owner = await mine.owner_of(BUNDLE)
    assert owner is not None
    assert owner.ours


async def test_a_bundle_that_is_being_unloaded_is_not_ready(server: SimMetadata) -> None:
    session, mine = owners(server, A)
    await session.put(KEY, encode_json({"nativeUrl": "pulsar://x:1", "disabled": True}))
    with pytest.raises(ServiceNotReadyError):
        await mine.owner_of(BUNDLE)


async def test_releasing_frees_the_node_and_closing_takes_nothing_more(server: SimMetadata) -> None:
    _, mine = owners(server, A)
    await mine.owner_of(BUNDLE)
    assert mine.leave(BUNDLE)
    assert not mine.leave(BUNDLE)
    await mine.release(BUNDLE)
    await mine.release(BUNDLE)
    assert KEY not in server.nodes
    await mine.owner_of(BUNDLE)
    await mine.close()
    assert KEY not in server.nodes
    with pytest.raises(ServiceNotReadyError):
        await mine.owner_of(BUNDLE)


async def test_no_broker_takes_a_bundle_while_its_topics_are_being_unloaded(server: SimMetadata) -> None:
    _, mine = owners(server, A)
    _, other = owners(server, B)
    await mine.owner_of(BUNDLE)
    mine.leave(BUNDLE)
    assert not mine.holds(BUNDLE)
    with pytest.raises(ServiceNotReadyError):
        await mine.owner_of(BUNDLE)
    owner = await other.owner_of(BUNDLE)
    assert owner is not None
    assert owner.urls == A
    await mine.release(BUNDLE)
    owner = await other.owner_of(BUNDLE)
    assert owner is not None
    assert owner.ours


async def test_a_bundle_that_was_lost_and_taken_again_is_not_released_by_an_earlier_unload(
    server: SimMetadata,
) -> None:
    session, mine = owners(server, A)
    await mine.owner_of(BUNDLE)
    mine.leave(BUNDLE)
    session.expire()
    again = await mine.owner_of(BUNDLE)
    assert again is not None
    await mine.release(BUNDLE)
    assert mine.holds(BUNDLE)
    assert KEY in server.nodes


async def test_a_deletion_without_an_answer_does_not_remove_the_node_of_a_later_tenure(server: SimMetadata) -> None:
    session, mine = owners(server, A)
    assert await mine.owner_of(BUNDLE)
    late: list[int | None] = []

    async def unanswered(key: str, *, expected: int | None = None) -> None:
        late.append(expected)
        raise MetadataUnknownError("no answer came in time")

    for _ in range(3):
        session.delete = unanswered  # type: ignore[method-assign]
        assert mine.leave(BUNDLE)
        with pytest.raises(MetadataUnknownError):
            await mine.release(BUNDLE)
        del session.delete
        assert (await mine.owner_of(BUNDLE)) is not None and mine.certain(BUNDLE)
        for expected in late:
            with pytest.raises(BadVersionError):
                await session.delete(KEY, expected=expected)
    session.lease_ran_out()
    assert server.version(KEY) == -1
    assert await mine.owner_of(BUNDLE)
    for expected in late:
        with pytest.raises(BadVersionError):
            await session.delete(KEY, expected=expected)


async def test_a_bundle_that_was_offered_and_not_released_is_no_longer_offered_when_it_is_ours_again(
    server: SimMetadata,
) -> None:
    session, mine = owners(server, A)
    _, other = owners(server, B)
    assert await mine.owner_of(BUNDLE)
    assert mine.leave(BUNDLE)
    await mine.offer(BUNDLE, Offer("nowhere:1", closed=True))
    session.cut = True
    with pytest.raises(MetadataUnavailableError):
        await mine.release(BUNDLE)
    session.reach()
    with pytest.raises(ServiceNotReadyError):
        await other.owner_of(BUNDLE)
    again = await mine.owner_of(BUNDLE)
    assert again is not None and again.ours
    found = await other.owner_of(BUNDLE)
    assert found is not None
    assert (found.ours, found.urls) == (False, A)


async def test_a_release_that_failed_is_repeated_unless_the_bundle_was_taken_again(server: SimMetadata) -> None:
    session, mine = owners(server, A)
    _, other = owners(server, B)
    halves = [replace(BUNDLE, range=half) for half in ("0x00000000_0x80000000", "0x80000000_0xffffffff")]
    for half in halves:
        assert await mine.owner_of(half)
        assert mine.leave(half)
        await mine.offer(half, Offer("nowhere:1", closed=True))
    session.cut = True
    for half in halves:
        with pytest.raises(MetadataUnavailableError):
            await mine.release(half)
    session.reach()
    again = await mine.owner_of(halves[0])
    assert again is not None and again.ours
    session.cut = True
    releasing = asyncio.create_task(mine.release_again())
    await asyncio.sleep(0.02)
    session.reach()
    await until(lambda: halves[1].key not in server.nodes)
    found = [await other.owner_of(half) for half in halves]
    assert [owner.ours for owner in found if owner is not None] == [False, True]
    assert mine.certain(halves[0])
    releasing.cancel()


async def test_an_offer_that_is_written_during_the_release_does_not_keep_the_node(server: SimMetadata) -> None:
    session, mine = owners(server, A)
    _, other = owners(server, B)
    assert await mine.owner_of(BUNDLE)
    assert mine.leave(BUNDLE)
    offer = await mine.offer(BUNDLE, Offer("nowhere:1"))
    read = session.get

    async def overtaken(key: str) -> Node | None:
        node = await read(key)
        assert node is not None and node.version == offer
        del session.get
        await session.put(KEY, node.value, expected=node.version, ephemeral=True)
        return node

    session.get = overtaken  # type: ignore[method-assign]
    await mine.release(BUNDLE)
    assert KEY not in server.nodes
    found = await other.owner_of(BUNDLE)
    assert found is not None and found.ours


async def test_an_offer_that_is_written_after_its_bundle_was_released_is_withdrawn(server: SimMetadata) -> None:
    session, mine = owners(server, A)
    _, other = owners(server, B)
    assert await mine.owner_of(BUNDLE)
    late: list[bytes] = []

    async def unanswered(key: str, value: bytes, *, expected: int | None = None, ephemeral: bool = False) -> int:
        late.append(value)
        raise MetadataUnknownError("no answer came in time")

    session.put = unanswered  # type: ignore[method-assign]
    assert mine.leave(BUNDLE)
    with pytest.raises(MetadataUnknownError):
        await mine.offer(BUNDLE, Offer("nowhere:1"))
    del session.put
    await mine.release(BUNDLE)
    assert await other.owner_of(BUNDLE)
    offered: list[Bundle] = []
    mine.on_modified = offered.append
    running = await follow(mine)
    await session.put(KEY, late[0], expected=server.version(KEY), ephemeral=True)
    await until(lambda: bool(offered))
    third = owners(server, BrokerUrls("pulsar://c:1", "http://c:2"))[1]
    with pytest.raises(ServiceNotReadyError):
        await third.owner_of(BUNDLE)
    assert await mine.offered(BUNDLE) is None
    assert KEY not in server.nodes
    for task in running:
        task.cancel()


async def follow(each: Owners) -> list[asyncio.Task[None]]:
    """Run the tasks that a broker runs for its bundles."""
    running = [asyncio.ensure_future(work) for work in (each.run(0.01), each.follow())]
    await asyncio.sleep(0.02)
    return running


async def test_a_node_that_vanishes_while_the_session_lives_is_recreated_and_its_topics_are_checked(
    server: SimMetadata,
) -> None:
    _, first = owners(server, A)
    retaken: list[Bundle] = []
    first.on_retaken = retaken.append
    running = await follow(first)
    await first.owner_of(BUNDLE)
    before = first.tenure(BUNDLE)
    server.remove(KEY)
    await until(lambda: bool(retaken))
    assert first.tenure(BUNDLE) > before and KEY in server.nodes
    for task in running:
        task.cancel()


async def test_a_broker_that_comes_back_to_the_store_confirms_nothing_before_it_read_the_owner(
    server: SimMetadata,
) -> None:
    session, first = owners(server, A)
    _, second = owners(server, B)
    await first.owner_of(BUNDLE)
    assert await first.confirmed_tenure(BUNDLE) == first.tenure(BUNDLE) > 0
    session.cut = True
    server.remove(KEY)
    await second.owner_of(BUNDLE)
    confirming = asyncio.ensure_future(first.confirmed_tenure(BUNDLE))
    await asyncio.sleep(0.05)
    assert first.certain(BUNDLE), "no event of the store has arrived"
    session.reach()
    with contextlib.suppress(MetadataError):
        assert await confirming == 0
    assert await first.confirmed_tenure(BUNDLE) == 0
    assert not first.certain(BUNDLE)


async def test_a_late_deletion_that_lets_another_broker_in_is_noticed_and_the_bundle_dropped(
    server: SimMetadata,
) -> None:
    session, first = owners(server, A)
    _, second = owners(server, B)
    lost: list[Bundle] = []
    first.on_lost = lost.append
    await first.owner_of(BUNDLE)
    session.cut = True
    running = await follow(first)
    server.remove(KEY)
    assert (await second.owner_of(BUNDLE) or first).urls == B
    await asyncio.sleep(0.05)
    assert first.certain(BUNDLE) and not lost, "without the store nothing is doubted"
    session.reach()
    await until(lambda: lost == [BUNDLE])
    assert not first.holds(BUNDLE)
    found = await first.owner_of(BUNDLE)
    assert found is not None and found.urls == B
    for task in running:
        task.cancel()


async def test_a_node_deleted_while_it_is_created_does_not_count_as_ours(server: SimMetadata) -> None:
    session, first = owners(server, A)
    running = await follow(first)
    put = session.put

    async def put_and_lose(key: str, value: bytes, **options: bool) -> int:
        version = await put(key, value, **options)
        session.put = put  # type: ignore[method-assign]
        server.remove(key)
        await asyncio.sleep(0.02)
        return version

    session.put = put_and_lose  # type: ignore[method-assign,assignment]
    assert (await first.owner_of(BUNDLE)) is not None
    assert first.certain(BUNDLE) and KEY in server.nodes
    for task in running:
        task.cancel()


async def test_a_topic_without_a_namespace_has_no_bundle(server: SimMetadata) -> None:
    _, mine = owners(server, A)
    with pytest.raises(NotFoundError, match="Namespace"):
        await mine.bundle_of(parse_topic("persistent://no/where/t"))
    with pytest.raises(Exception, match="Namespace not found"):
        await Lookups(mine).find(parse_topic("persistent://no/where/t"))


async def test_a_broker_registers_again_after_a_lost_session(server: SimMetadata) -> None:
    session = SimMetadataStore(server)
    registration = Registration(session, "a:2", A, "0.1", Clock())
    await registration.register()
    assert await registration.instance_number() == 0
    running = asyncio.create_task(registration.run())
    session.expire()
    assert "/loadbalance/brokers/a:2" not in server.nodes
    while "/loadbalance/brokers/a:2" not in server.nodes:  # noqa: ASYNC110  no event tells; the loop is idle soon
        await asyncio.sleep(0)
    running.cancel()
    await registration.close()
    assert "/loadbalance/brokers/a:2" not in server.nodes
    with pytest.raises(NodeMissingError):
        await session.delete("/loadbalance/brokers/a:2")


async def test_each_start_has_its_own_instance_number(server: SimMetadata) -> None:
    numbers = [
        await Registration(SimMetadataStore(server), "a:2", A, "0.1", Clock()).instance_number() for _ in range(3)
    ]
    assert numbers == [0, 1, 2]
    assert "/counters/producer-name/-2" in server.nodes


def test_a_broker_without_http_is_known_by_its_address_for_clients_as_in_its_registration() -> None:
    """The id was empty, so that a leader moved no bundle of such a broker."""
    ports = Ports(PortSettings("0.0.0.0", "a", 6650, None, None, None))
    ports.port = 6650
    assert ports.urls.broker_id == ports.broker_id == "a:6650"
