"""The policies of a topic, at Pulsar's paths below it. Each that is stored is enforced; the others are refused.

GET .../{policy}[?applied=true]   the topic's own policy, or the one in force; no content if there is none
POST, PUT .../{policy}            sets it; `messageTTL` has its value in the query, the others in the body
DELETE .../{policy}               restores the namespace's
GET, POST, DELETE .../{subscription}/dispatchRate   the rate of delivery to one subscription
GET .../backlogQuotaMap, POST, DELETE .../backlogQuota?backlogQuotaType=
DELETE .../policies               removes all of them

A partition has the policies of its partitioned topic. The owner of a topic applies changes at once, the brokers of
partitions as soon as they notice the changed record.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from aiohttp import web

from quire_bookie.admin.answers import RefusedError, whole_number
from quire_broker.admin.answers import answer, body_of, done, failure, flag
from quire_broker.admin.backlog_quotas import KIND, QUOTA, QUOTAS, kind_of, quota_of
from quire_broker.admin.context import broker_of, owned_topic, topic_name_of
from quire_broker.admin.descriptions import BOOLEAN, INTEGER, Description, Query, described, described_by
from quire_broker.admin.inherited import inherited, inherited_quotas
from quire_broker.admin.namespaces import flaw_of_filters, flaw_of_policy
from quire_broker.admin.offload import flaw_of_offloading
from quire_broker.admin.routes import Need, Route
from quire_broker.limits import SUBSCRIPTION_RATES_MAX
from quire_broker.names import TopicName
from quire_broker.policies.backlog_quota import QUOTA_KEY
from quire_broker.policies.defaults import with_defaults
from quire_broker.policies.fields import INT_MAX, OFFLOAD, PAUSE_ON_ACKS
from quire_broker.policies.of_topics import PATHS, PROPERTY, encoded, merged, own_policies
from quire_broker.policies.rates import (
    SUBSCRIPTION_DISPATCH,
    default_values,
    flaw_of_rate,
    limits_nothing,
    rates_of_subscriptions,
    read_field,
    schema_of,
    write_field,
    write_of_subscription,
)
from quire_broker.policies.store import Json
from quire_broker.policies.unserved import UNSERVED
from quire_broker.server.handover import moved_to
from quire_broker.topic.client_names import check_name
from quire_broker.topic.message_rules import SIZE
from quire_broker.topic.topic import Topic

_OFFLOADING: Final = "offloadPolicies"
"""Path of the policy that only super users change: brokers write to its target with their own credentials."""
UNSET: Final[dict[str, Any]] = {"schema_validation_enforced": False, "subscription_types_enabled": []}
"""What stock brokers return for a policy that is not set, if it is not nothing."""

APPLIED: Final = Query("applied", BOOLEAN, "the policy in force, also if the topic has none of its own")
GLOBAL: Final = Query("isGlobal", BOOLEAN, "only false is served")
_TTL: Final = Query("messageTTL", INTEGER, "time to live, in s; 0: none")
_RATE: Final = schema_of(SUBSCRIPTION_DISPATCH)


def _of_policy(policy: str) -> Description:
    return Description((APPLIED, GLOBAL), returns=schema_of(PATHS[policy]))


def _of_set_policy(policy: str) -> Description:
    if policy == "messageTTL":
        return Description((_TTL, GLOBAL))
    if PATHS[policy] == PAUSE_ON_ACKS:
        return Description((GLOBAL,))
    return Description((GLOBAL,), body=schema_of(PATHS[policy]))


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    topic = "/admin/v2/{domain:persistent}/{tenant}/{namespace}/{topic}"
    offloading = f"{topic}/{_OFFLOADING}"
    yield Route("POST", offloading, set_offloading, Need.SUPER_USER)
    yield Route("PUT", offloading, set_offloading, Need.SUPER_USER)
    yield Route("DELETE", offloading, remove_offloading, Need.SUPER_USER)
    yield Route("GET", f"{topic}/{{policy:{'|'.join(PATHS)}}}", get_policy, Need.NAMESPACE)
    policy = f"{topic}/{{policy:{'|'.join(path for path in PATHS if path != _OFFLOADING)}}}"
    yield Route("POST", policy, set_policy, Need.NAMESPACE)
    yield Route("PUT", policy, set_policy, Need.NAMESPACE)
    yield Route("DELETE", policy, remove_policy, Need.NAMESPACE)
    rate = f"{topic}/{{subscription}}/dispatchRate"
    yield Route("GET", rate, get_rate, Need.NAMESPACE)
    yield Route("POST", rate, set_rate, Need.NAMESPACE)
    yield Route("DELETE", rate, remove_rate, Need.NAMESPACE)
    yield Route("GET", f"{topic}/backlogQuotaMap", get_quotas, Need.NAMESPACE)
    yield Route("POST", f"{topic}/backlogQuota", set_quota, Need.NAMESPACE)
    yield Route("DELETE", f"{topic}/backlogQuota", remove_quota, Need.NAMESPACE)
    yield Route("DELETE", f"{topic}/policies", remove_all, Need.NAMESPACE)
    refused = f"{topic}/{{policy:{'|'.join(UNSERVED)}}}"
    yield Route("GET", refused, get_unserved, Need.NAMESPACE)
    yield Route("POST", refused, refuse, Need.NAMESPACE)
    yield Route("PUT", refused, refuse, Need.NAMESPACE)
    yield Route("DELETE", refused, get_unserved, Need.NAMESPACE)


async def _place(request: web.Request) -> TopicName | Topic:
    """Return where the policies are: the name of a partitioned topic, or a loaded plain topic. TopicNotFoundError."""
    if flag(request, "isGlobal"):
        raise RefusedError(501, "global policies are not served: topics are not replicated to other clusters")
    name = topic_name_of(request).partitioned
    if await broker_of(request).policies.partitions(name, fresh=True):
        return name
    return await owned_topic(request)


async def own_of(request: web.Request) -> Json:
    """Return the topic's own policies. TopicNotFoundError."""
    place = await _place(request)
    if isinstance(place, Topic):
        return own_policies(place.ledger.properties)
    return own_policies(await broker_of(request).policies.partitioned_properties(place))


async def change_own(request: web.Request, change: Callable[[Json], None]) -> web.Response:
    """Change the topic's own policies, and apply them to the topics that are loaded here."""
    broker, place = broker_of(request), await _place(request)
    here = moved_to(broker.urls)
    if isinstance(place, Topic):
        own = own_policies(place.ledger.properties)
        change(own)
        await place.ledger.set_property(PROPERTY, encoded(own))
        await broker.topics.apply(place, here)
        return done()

    def on_properties(properties: dict[str, str]) -> None:
        own = own_policies(properties)
        change(own)
        value = encoded(own)
        properties.pop(PROPERTY, None)
        if value is not None:
            properties[PROPERTY] = value

    await broker.policies.update_partitioned_properties(place, on_properties)
    for topic in broker.topics.loaded:
        if topic.name.partitioned == place:
            await broker.topics.apply(topic, here)
    return done()


@described_by(_of_policy)
async def get_policy(request: web.Request) -> web.Response:
    """Return one policy."""
    own, field, broker = await own_of(request), PATHS[request.match_info["policy"]], broker_of(request)
    value = None
    if flag(request, "applied"):
        own = await _applied(request, own)
        value = default_values(broker.topics.rates.of_topics).get(field)
    found = read_field(own, field, broker.settings.cluster)
    value = value if found is None else found
    value = UNSET.get(field) if value is None else value
    return done() if value is None else answer(value)


async def _applied(request: web.Request, own: Json) -> Json:
    """Return a topic's own policies over those of its namespace, over those of the broker's settings."""
    broker = broker_of(request)
    namespace = await broker.policies.policies(topic_name_of(request).namespace) or {}
    return merged(with_defaults(namespace, inherited(broker.settings)), own, broker.settings.cluster)


@described_by(_of_set_policy)
async def set_policy(request: web.Request) -> web.Response:
    """Store one policy. 412 for an invalid value."""
    policy = request.match_info["policy"]
    value: Any
    if policy == "messageTTL":
        value = whole_number("messageTTL", request.query.get("messageTTL", ""), 0, INT_MAX)
    elif PATHS[policy] == PAUSE_ON_ACKS:
        value = True  # a request to set it has no body
    else:
        value = await body_of(request)
    field, cluster = PATHS[policy], broker_of(request).settings.cluster
    wrong = flaw_of_policy(field, value, cluster) or flaw_of_filters(field, value, broker_of(request))
    size_max = broker_of(request).settings.session.message_bytes_max
    if field == SIZE and wrong is None and value > size_max:
        wrong = f"maxMessageSize is {value}; the brokers' own maxMessageSize is {size_max}"
    if wrong:
        return failure(412, wrong)
    return await _store(request, field, value)


@described(GLOBAL)
async def remove_policy(request: web.Request) -> web.Response:
    """Restore the namespace's policy."""
    return await _store(request, PATHS[request.match_info["policy"]], None)


@described(GLOBAL, body=schema_of(OFFLOAD))
async def set_offloading(request: web.Request) -> web.Response:
    """Store the fields of the offload policies that differ from the namespace's. 412 for an invalid value."""
    value = await body_of(request)
    wrong = flaw_of_offloading(value)
    return failure(412, wrong) if wrong else await _store(request, OFFLOAD, value)


@described(GLOBAL)
async def remove_offloading(request: web.Request) -> web.Response:
    """Restore the offload policies of the namespace."""
    return await _store(request, OFFLOAD, None)


async def _store(request: web.Request, field: str, value: object) -> web.Response:
    cluster = broker_of(request).settings.cluster
    return await change_own(request, lambda own: write_field(own, field, cluster, value))


@described(APPLIED, GLOBAL, returns=_RATE)
async def get_rate(request: web.Request) -> web.Response:
    """Return the rate of delivery to one subscription; with `applied` that of all subscriptions, if it has none."""
    own, name = await own_of(request), request.match_info["subscription"]
    value = rates_of_subscriptions(own).get(name)
    if flag(request, "applied") and limits_nothing(value):
        broker = broker_of(request)
        default = default_values(broker.topics.rates.of_topics)[SUBSCRIPTION_DISPATCH]
        found = read_field(await _applied(request, own), SUBSCRIPTION_DISPATCH, broker.settings.cluster)
        value = default if limits_nothing(found) else found
    return done() if value is None else answer(value)


@described(GLOBAL, body=_RATE)
async def set_rate(request: web.Request) -> web.Response:
    """Store the rate of delivery to one subscription, which need not exist. 412 for an invalid value."""
    name, value = request.match_info["subscription"], await body_of(request)
    check_name("subscription", name, broker_of(request).settings.session.name_characters_max, required=True)
    wrong = flaw_of_rate(SUBSCRIPTION_DISPATCH, value)
    if wrong:
        return failure(412, wrong)
    known = rates_of_subscriptions(await own_of(request))
    if name not in known and len(known) >= SUBSCRIPTION_RATES_MAX:
        return failure(412, f"{SUBSCRIPTION_RATES_MAX} subscriptions have a rate of their own; remove one first")
    return await change_own(request, lambda own: write_of_subscription(own, name, value))


@described(GLOBAL)
async def remove_rate(request: web.Request) -> web.Response:
    """Restore the rate of all subscriptions for one."""
    name = request.match_info["subscription"]
    return await change_own(request, lambda own: write_of_subscription(own, name, None))


@described(APPLIED, GLOBAL, returns=QUOTAS)
async def get_quotas(request: web.Request) -> web.Response:
    """Return the topic's own backlog quotas, or those in force."""
    own = await own_of(request)
    if not flag(request, "applied"):
        return answer(own.get(QUOTA_KEY) or {})
    quotas = (await _applied(request, own)).get(QUOTA_KEY) or {}
    return answer(inherited_quotas(broker_of(request).settings.backlog_quotas.default) | quotas)


@described(KIND, GLOBAL, body=QUOTA)
async def set_quota(request: web.Request) -> web.Response:
    """Store one kind. 412 for an invalid quota."""
    kind, value = await quota_of(request)

    def change(own: Json) -> None:
        own[QUOTA_KEY] = {**(own.get(QUOTA_KEY) or {}), kind.value: value}

    return await change_own(request, change)


@described(KIND, GLOBAL)
async def remove_quota(request: web.Request) -> web.Response:
    """Delete one kind; does nothing if it is not set."""
    kind = kind_of(request)

    def change(own: Json) -> None:
        own[QUOTA_KEY] = {name: value for name, value in (own.get(QUOTA_KEY) or {}).items() if name != kind.value}

    return await change_own(request, change)


@described(GLOBAL)
async def remove_all(request: web.Request) -> web.Response:
    """Restore all policies of the namespace."""
    return await change_own(request, lambda own: own.clear())


@described(GLOBAL)
async def get_unserved(request: web.Request) -> web.Response:
    """Return no content: a policy that is not served is never set."""
    await _place(request)
    return done()


@described(refuses=True)
async def refuse(request: web.Request) -> web.Response:
    """Answer 501 with the reason: the policy would be stored but not enforced."""
    policy = request.match_info["policy"]
    return failure(501, f"{policy} is not supported by this broker: {UNSERVED[policy]}")
