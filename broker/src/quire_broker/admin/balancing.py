"""Load balancing over HTTP: /admin/quire/balancing, Pulsar's broker-stats, leaderBroker and the split of a bundle."""

import json
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from quire_broker.admin.answers import answer, answer_in_pieces, done
from quire_broker.admin.context import broker_of, bundles_of
from quire_broker.admin.counters import counters
from quire_broker.admin.descriptions import Query, described
from quire_broker.admin.non_persistent import unstored_stats
from quire_broker.admin.routes import BUNDLE, Need, Route
from quire_broker.admin.spreading import on_bundles
from quire_broker.admin.stats import topic_stats
from quire_broker.balancing.assignments import leader_of
from quire_broker.balancing.bundle_counts import AnyTopic
from quire_broker.balancing.load_report import BundleStats
from quire_broker.balancing.plan.loads import BrokerLoad, BundleName
from quire_broker.balancing.plan.shedding import Move, SheddingPlan
from quire_broker.errors import NotAllowedError, NotFoundError, ServiceNotReadyError
from quire_broker.names import NamespaceName
from quire_broker.ownership.owners import Bundle
from quire_broker.policies.bundles import Bundles
from quire_broker.server.broker import RunningBroker
from quire_broker.settings.balancing import RANGE_HALF, TOPIC_COUNT
from quire_broker.topic.topic import Topic
from quire_broker.topic_steps import in_steps

ALGORITHM = "splitAlgorithmName"
"""Query parameter of a split, as in Pulsar."""


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    yield Route("GET", "/admin/quire/balancing", state, Need.SUPER_USER)
    yield Route("POST", "/admin/quire/balancing", balance, Need.SUPER_USER)
    for root in ("/admin/v2/brokers", "/admin/brokers"):
        yield Route("GET", f"{root}/leaderBroker", leader, Need.SUPER_USER)
    for root in ("/admin/v2/broker-stats", "/admin/broker-stats"):
        yield Route("GET", f"{root}/load-report", load_report, Need.SUPER_USER)
        yield Route("GET", f"{root}/topics", topics, Need.SUPER_USER)
        yield Route("GET", f"{root}/metrics", figures, Need.SUPER_USER)
    yield Route("PUT", f"/admin/v2/namespaces/{{tenant}}/{{namespace}}/{BUNDLE}/split", split, Need.SUPER_USER)


async def leader(request: web.Request) -> web.Response:
    """Return the leader; with load balancing off, this broker."""
    broker = broker_of(request)
    if not broker.settings.balancing.enabled:
        return answer({"brokerId": broker.broker_id, "serviceUrl": broker.urls.web})
    found = await leader_of(broker.metadata)
    if found is None:
        raise NotFoundError("no broker leads at the moment; ask again in some seconds")
    return answer(found)


async def state(request: web.Request) -> web.Response:
    """Return the loads of all brokers, the moves that a round would make now, and the last events of this broker."""
    broker = broker_of(request)
    balancing = broker.balancing
    snapshot, plan = await balancing.leader.dry_run()
    return answer(
        {
            "broker": broker.broker_id,
            "enabled": balancing.settings.enabled,
            "leader": await leader_of(broker.metadata),
            "brokers": [_broker(each) for _, each in sorted(snapshot.brokers.items())],
            **_plan(plan),
            "events": [
                {"atMs": event.at_ms, "kind": event.kind.value, "text": event.text} for event in balancing.events.last
            ],
        }
    )


async def balance(request: web.Request) -> web.Response:
    """Move bundles now, without waiting until a broker has been overloaded for some rounds. Of the leader alone."""
    broker = broker_of(request)
    if not broker.balancing.leader.leads:
        found = await leader_of(broker.metadata)
        where = "no broker leads at the moment" if found is None else f"the leader is {found.get('serviceUrl')}"
        raise ServiceNotReadyError(f"only the leader moves bundles; {where}")
    return answer(_plan(await broker.balancing.leader.round(at_once=True)))


def _broker(load: BrokerLoad) -> dict[str, Any]:
    return {
        "broker": load.broker,
        "usage": round(load.usage, 4),
        "resource": load.resource,
        "bundles": load.bundle_count,
        "topics": load.topics,
        "messagesPerSecond": round(load.messages_per_s, 1),
        "bytesPerSecond": round(load.bytes_per_s, 1),
        "draining": load.draining,
    }


def _plan(plan: SheddingPlan) -> dict[str, Any]:
    return {
        "average": round(plan.average, 4),
        "moves": [_move(each) for each in plan.moves],
        "queued": [_move(each) for each in plan.queued],
        "notes": list(plan.notes),
    }


def _move(move: Move) -> dict[str, Any]:
    return {
        "bundle": move.bundle,
        "from": move.source,
        "to": move.target,
        "usage": round(move.usage, 4),
        "explanation": move.explain(),
    }


async def load_report(request: web.Request) -> web.Response:
    """Return the load report of this broker, as it was last published."""
    return answer(broker_of(request).balancing.registration.data)


async def figures(request: web.Request) -> web.Response:
    """Return the counters of this broker in the form of stock's metrics; GET /metrics has all, for Prometheus."""
    broker = broker_of(request)
    dimensions = {"broker": broker.broker_id, "cluster": broker.settings.cluster, "metric": "broker"}
    return answer([{"dimensions": dimensions, "metrics": await counters(broker)}])


async def topics(request: web.Request) -> web.StreamResponse:
    """Return the stats of the topics of this broker: `{namespace: {bundle: {domain: {topic: stats}}}}`."""
    broker = broker_of(request)
    return await answer_in_pieces(request, _topics(broker, await _by_bundle(broker)))


async def _by_bundle(broker: RunningBroker) -> dict[str, dict[str, list[AnyTopic]]]:
    """Return the loaded topics by namespace and bundle, without those whose namespace is gone."""
    found: dict[str, dict[str, list[AnyTopic]]] = {}
    rings: dict[NamespaceName, Bundles | None] = {}
    async for topic in in_steps(broker.topics.everything):
        namespace = topic.name.namespace
        if namespace not in rings:
            rings[namespace] = await broker.policies.bundles(namespace)
        ring = rings[namespace]
        if ring is not None:
            found.setdefault(str(namespace), {}).setdefault(ring.bundle_at(topic.hash), []).append(topic)
    return found


def _topics(broker: RunningBroker, grouped: dict[str, dict[str, list[AnyTopic]]]) -> Iterator[str]:
    """Yield the JSON text of the stats, one topic at a time."""
    yield "{"
    for number, (namespace, bundles) in enumerate(grouped.items()):
        yield f"{', ' if number else ''}{json.dumps(namespace)}: {{"
        for place, (name, found) in enumerate(bundles.items()):
            yield f"{', ' if place else ''}{json.dumps(name)}: {{"
            for rank, domain in enumerate(sorted({topic.name.domain for topic in found}, reverse=True)):
                yield f"{', ' if rank else ''}{json.dumps(domain)}: {{"
                chosen = [topic for topic in found if topic.name.domain == domain]
                for index, topic in enumerate(chosen):
                    value = json.dumps(_any_stats(topic, broker))
                    yield f"{', ' if index else ''}{json.dumps(str(topic.name))}: {value}"
                yield "}"
            yield "}"
        yield "}"
    yield "}"


def _any_stats(topic: AnyTopic, broker: RunningBroker) -> dict[str, Any]:
    return topic_stats(topic, broker) if isinstance(topic, Topic) else unstored_stats(topic, broker)


@described(Query(ALGORITHM, {"type": "string", "enum": [RANGE_HALF, TOPIC_COUNT]}, "how to find the place"))
async def split(request: web.Request) -> web.Response:
    """Split a bundle at its owner; a free one gets an owner. Its clients notice nothing: both halves stay there."""
    broker = broker_of(request)
    algorithm = request.query.get(ALGORITHM, "")
    if algorithm not in ("", RANGE_HALF, TOPIC_COUNT):
        raise NotAllowedError(f"{ALGORITHM} is {algorithm}; give {RANGE_HALF} or {TOPIC_COUNT}")
    (bundle,) = await bundles_of(request)

    async def work(own: Bundle) -> None:
        stats = await _stats(broker, own)
        await broker.balancing.splitter.split(own, stats, "asked for by an administrator", algorithm)

    await on_bundles(request, [bundle], work, suffix="/split", take=True)
    return done()


async def _stats(broker: RunningBroker, bundle: Bundle) -> BundleStats:
    counts = broker.balancing.counts
    assert counts is not None, "requests are served by a broker that has started"
    return (await counts.measure()).get(BundleName(str(bundle))) or BundleStats()
