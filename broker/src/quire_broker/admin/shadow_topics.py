"""Shadow topics at Pulsar's paths. A shadow topic shows the entries of its source and has subscriptions of its own.

PUT .../{topic}, .../{topic}/partitions    with the property `PULSAR.SHADOW_SOURCE`: creates one (`create-shadow-topic`)
GET, PUT, DELETE .../{topic}/shadowTopics  the shadow topics that the source's broker tells about new entries at once

`get-shadow-source` reads the property.
"""

from collections.abc import Iterator

from aiohttp import web

from quire_bookie.admin.answers import RefusedError
from quire_broker.admin.answers import answer, body_of, done
from quire_broker.admin.context import broker_of, topic_name_of
from quire_broker.admin.descriptions import NAMES, described
from quire_broker.admin.routes import Need, Route
from quire_broker.admin.shadow_sources import properties_of_topic
from quire_broker.admin.topic_policies import GLOBAL, change_own, own_of
from quire_broker.errors import NotAllowedError
from quire_broker.limits import SHADOW_TOPICS_MAX
from quire_broker.names import parse_topic
from quire_broker.topic.shadows import SHADOWS, source_of


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    path = "/admin/v2/{domain:persistent}/{tenant}/{namespace}/{topic}/shadowTopics"
    yield Route("GET", path, get_shadows, Need.NAMESPACE)
    yield Route("PUT", path, set_shadows, Need.NAMESPACE)
    yield Route("DELETE", path, remove_shadows, Need.NAMESPACE)


@described(GLOBAL, returns=NAMES)
async def get_shadows(request: web.Request) -> web.Response:
    """Return the shadow topics that are set; none if it has no such policy."""
    return answer((await own_of(request)).get(SHADOWS) or [])


@described(GLOBAL, body=NAMES)
async def set_shadows(request: web.Request) -> web.Response:
    """Set the shadow topics of a source. 412 for names that are not its shadow topics."""
    broker, source, names = broker_of(request), topic_name_of(request).partitioned, await body_of(request)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise NotAllowedError("the body must be a list of topic names")
    if not names:
        raise RefusedError(412, "Cannot specify empty shadow topics, please use remove command instead.")
    if len(names) > SHADOW_TOPICS_MAX:
        raise NotAllowedError(f"{len(names)} shadow topics; a topic has at most {SHADOW_TOPICS_MAX}")
    for text in names:
        name = parse_topic(text)
        if not name.persistent:
            raise RefusedError(412, f"Only persistent topic can be set as shadow topic: {name}")
        found = await properties_of_topic(broker, name)
        if found is None:
            raise RefusedError(412, f"Shadow topic [{text}] not exists.")
        if source_of(found[1]) != source:
            raise RefusedError(412, f"{name} is not a shadow topic of {source}: create it with create-shadow-topic")

    def change(own: dict[str, object]) -> None:
        own[SHADOWS] = [str(parse_topic(text)) for text in names]

    return await change_own(request, change)


@described(GLOBAL)
async def remove_shadows(request: web.Request) -> web.Response:
    """Tell no shadow topic about new entries: they find them with the next ones."""
    await change_own(request, lambda own: own.pop(SHADOWS, None))
    return done()
