"""Several brokers: each counts only the topics that it has loaded, and redirects requests for others to their owner."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from quire_operator.cluster.broker_rest import REDIRECTS_MAX, BrokerEndpoint, BrokerRest
from quire_operator.errors import UnreachableError
from quire_operator.plan import actions as act
from quire_operator.plan.ledger_observation import ObservedBrokerDrain
from tests.support.ports import free_port

FIRST, SECOND = "orders-broker-0.orders-brokers.ns.svc", "orders-broker-1.orders-brokers.ns.svc"
HOSTS = {FIRST: "127.0.0.1", SECOND: "127.0.0.2"}
NAMESPACE = "/admin/quire/namespaces/shop/orders"
STATS = "/admin/v2/persistent/shop/orders/audit/stats"
Handler = Callable[[web.Request], web.Response]


class Peers:
    """Two HTTP servers on one port, with handlers by host and path. Records all requests."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.handlers: dict[tuple[str, str], Handler] = {}
        self.asked: list[tuple[str, str]] = []

    async def answer(self, request: web.Request) -> web.Response:
        name = next(name for name, host in HOSTS.items() if request.host == f"{host}:{self.port}")
        self.asked.append((name, str(request.rel_url)))
        handler = self.handlers.get((name, request.path))
        return web.Response(status=404, text="{}") if handler is None else handler(request)

    def says(self, name: str, path: str, body: Any) -> None:
        self.handlers[name, path] = lambda request: web.json_response(body)

    def redirects(self, name: str, path: str, to: str) -> None:
        location = f"http://{to}:8080{path}?authoritative=true"

        def redirect(request: web.Request) -> web.Response:
            raise web.HTTPTemporaryRedirect(location)

        self.handlers[name, path] = redirect


@pytest.fixture
async def peers() -> AsyncIterator[Peers]:
    found = Peers(free_port())
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", found.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    for host in HOSTS.values():
        await web.TCPSite(runner, host, found.port).start()
    yield found
    await runner.cleanup()


@pytest.fixture
async def rest(peers: Peers) -> AsyncIterator[BrokerRest]:
    async with aiohttp.ClientSession() as session:
        yield BrokerRest(session, peers.port)


def endpoint(**hosts: str) -> BrokerEndpoint:
    return BrokerEndpoint(HOSTS[FIRST], name=FIRST, peers=HOSTS | hosts)


def topic(owner: str, backlog: int | None) -> dict[str, Any]:
    found = {"loaded": backlog is not None, "owner": f"{owner}:8080", "position": None, "entries": 7, "size": 70}
    return found | {"cursors": {"billing": backlog}, "producers": None if backlog is None else 1}


def overview(peers: Peers) -> None:
    topics = {"here": topic(FIRST, 3), "away": topic(SECOND, None), "part-partition-0": topic(SECOND, None)}
    body = {"policies": {}, "bookies": {"writable": 3}, "partitioned": {"part": 1}, "topics": topics}
    peers.says(FIRST, NAMESPACE, body)


async def test_topics_have_the_counts_of_their_owners(peers: Peers, rest: BrokerRest) -> None:
    overview(peers)
    there = {"away": topic("", 5), "part-partition-0": topic("", 6), "unknown": topic("", 1)}
    peers.says(SECOND, NAMESPACE, {"topics": there})
    found = (await rest.namespace(endpoint(), "shop/orders")).topics
    assert {name: one.cursors["billing"] for name, one in found.items()} == {"here": 3, "away": 5, "part": 6}
    assert {name: one.owner for name, one in found.items()} == {
        "here": "orders-broker-0",
        "away": "orders-broker-1",
        "part": "orders-broker-1",
    }
    assert all(one.loaded and not one.silent for one in found.values())
    assert peers.asked.count((SECOND, f"{NAMESPACE}?loaded=true")) == 1, "once for all of its topics"


async def test_topics_of_an_owner_that_does_not_answer_are_unknown_not_unloaded(peers: Peers, rest: BrokerRest) -> None:
    overview(peers)
    gone = endpoint(**{SECOND: "127.0.0.99"})
    found = (await rest.namespace(gone, "shop/orders")).topics
    assert {name for name, one in found.items() if one.silent} == {"away", "part"}
    assert found["away"].cursors == {"billing": None}


async def test_a_redirect_is_followed_to_the_pod_of_the_owner(peers: Peers, rest: BrokerRest) -> None:
    peers.redirects(FIRST, STATS, SECOND)
    peers.says(SECOND, STATS, {})
    await rest.perform(endpoint(), act.LoadTopic("shop/orders", "audit", 0))
    assert peers.asked == [(FIRST, STATS), (SECOND, f"{STATS}?authoritative=true")]


async def test_redirects_in_a_circle_end(peers: Peers, rest: BrokerRest) -> None:
    peers.redirects(FIRST, STATS, SECOND)
    peers.redirects(SECOND, STATS, FIRST)
    with pytest.raises(UnreachableError, match="307"):
        await rest.perform(endpoint(), act.LoadTopic("shop/orders", "audit", 0))
    assert len(peers.asked) == 1 + REDIRECTS_MAX


async def test_a_redirect_to_a_stranger_is_not_followed(peers: Peers, rest: BrokerRest) -> None:
    peers.redirects(FIRST, STATS, "elsewhere.example")
    with pytest.raises(UnreachableError, match="307"):
        await rest.perform(endpoint(), act.LoadTopic("shop/orders", "audit", 0))


async def test_the_drain_of_a_broker_is_asked_of_that_broker(peers: Peers, rest: BrokerRest) -> None:
    path = "/admin/quire/drain"
    peers.says(SECOND, path, {"draining": True, "moved": 2, "bundles": 1, "others": True})
    await rest.perform(endpoint(), act.DrainBroker(SECOND))
    leaving = endpoint().peer(SECOND)
    assert leaving is not None
    assert await rest.drain_of(leaving) == ObservedBrokerDrain(True, 2, 1, others=True)
    assert peers.asked == [(SECOND, f"{path}?wait=false"), (SECOND, path)]
    assert await rest.drain_of(endpoint()) is None, "one of an earlier version"
    with pytest.raises(UnreachableError, match="has no address"):
        await rest.perform(endpoint(), act.DrainBroker("orders-broker-7.orders-brokers.ns.svc"))
