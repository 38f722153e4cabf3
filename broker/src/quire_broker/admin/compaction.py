"""Compaction of topics over HTTP, at Pulsar's paths.

    PUT .../{topic}/compaction   compact the topic in the background, or each partition at its owner; 409 while it runs
    GET .../{topic}/compaction   {"status": "NOT_RUN" | "RUNNING" | "SUCCESS" | "ERROR", "lastError": text}

The state is that of the last run since the topic was loaded.
"""

from collections.abc import Iterator

from aiohttp import web

from quire_broker.admin.answers import answer, done
from quire_broker.admin.context import broker_of, plain_topic, topic_here
from quire_broker.admin.descriptions import OBJECT, described
from quire_broker.admin.routes import Need, Route
from quire_broker.admin.spreading import MISSING, at_owners
from quire_broker.names import TopicName


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    path = "/admin/v2/{domain:persistent}/{tenant}/{namespace}/{topic}/compaction"
    yield Route("PUT", path, compact, Need.NAMESPACE)
    yield Route("GET", path, status, Need.NAMESPACE)


async def compact(request: web.Request) -> web.Response:
    """Start a compaction."""

    async def one(name: TopicName) -> None:
        (await topic_here(broker_of(request), name)).compaction.start()

    await at_owners(request, one, fine=(MISSING,))
    return done()


@described(returns=OBJECT)
async def status(request: web.Request) -> web.Response:
    """Return LongRunningProcessStatus."""
    topic = await plain_topic(request, "ask for the status of each partition")
    stats = topic.compaction.stats
    return answer({"status": stats.status, "lastError": stats.last_error})
