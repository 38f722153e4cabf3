"""Compaction of topics over HTTP, at Pulsar's paths.

    PUT .../{topic}/compaction   compact the topic in the background, or each partition at its owner; 409 while it runs
    GET .../{topic}/compaction   {"status": "NOT_RUN" | "RUNNING" | "SUCCESS" | "ERROR", "lastError": text}
    POST .../{topic}/compaction/ledger   {"ledgerId", "formerLedgerId", "horizon": {"ledgerId", "entryId"}}: use the
                                         compacted ledger that a job wrote; 409 with the reason if it may not be used

The last one exists only in Quire. The state is that of the last run since the topic was loaded.
"""

from collections.abc import Iterator

from aiohttp import web

from quire_bookie.errors import PeerProtocolError
from quire_bookie.model import LedgerId
from quire_broker.admin.answers import answer, done, object_of
from quire_broker.admin.context import broker_of, plain_topic, topic_here
from quire_broker.admin.descriptions import OBJECT, described
from quire_broker.admin.routes import Need, Route
from quire_broker.admin.spreading import MISSING, at_owners
from quire_broker.compaction.topic_compaction import NO_LEDGER
from quire_broker.managed_ledger.position import Position
from quire_broker.names import TopicName
from quire_broker.policies.store import Json


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    path = "/admin/v2/{domain:persistent}/{tenant}/{namespace}/{topic}/compaction"
    yield Route("PUT", path, compact, Need.NAMESPACE)
    yield Route("GET", path, status, Need.NAMESPACE)
    yield Route("POST", f"{path}/ledger", adopt, Need.NAMESPACE)


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


@described(body=OBJECT)
async def adopt(request: web.Request) -> web.Response:
    """Use the compacted ledger that a job wrote; the former one is deleted. 409 if a newer compaction wins."""
    topic = await plain_topic(request, "record the ledger of each partition")
    body = await object_of(request)
    horizon = body.get("horizon")
    if not isinstance(horizon, dict):
        raise PeerProtocolError(f"horizon={horizon!r}: must be an object with ledgerId and entryId")
    at = Position(_id(horizon, "ledgerId", 0), _id(horizon, "entryId", 0))
    ledger_id, former = LedgerId(_id(body, "ledgerId", 0)), _id(body, "formerLedgerId", NO_LEDGER)
    await topic.compaction.adopt(ledger_id, at, former)
    return done()


def _id(body: Json, name: str, least: int) -> int:
    value = body.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 63:
        raise PeerProtocolError(f"{name}={value!r}: must be an integer of at least {least}, below 2^63")
    return value
