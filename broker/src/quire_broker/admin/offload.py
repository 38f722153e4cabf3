"""Offloading over HTTP: Pulsar's paths for topics and namespaces, and Quire's three steps of an attempt.

    PUT  .../{topic}/offload            offload the ledgers before a message id, in the background; 409 while it runs
    GET  .../{topic}/offload            its state
    POST .../{topic}/offload/begin      {"ledgerId", "driver", "properties", "owner"?} -> {"uuid", "ledgerId", ...}
    POST .../{topic}/offload/complete   {"ledgerId", "uuid", "entries", "size"}: from now on the objects count
    POST .../{topic}/offload/abort      {"ledgerId", "uuid"}
    namespaces/.../offloadPolicies, offloadThreshold, offloadThresholdInSeconds, offloadDeletionLagMs

The owner of a topic or partition makes the attempts for it. Only super users may set the target, since brokers use
their own credentials there: other roles begin attempts only at the topic's configured target. Policies apply to topics
loaded from then on; setting one reloads the namespace's topics here.
"""

from collections.abc import Iterator
from typing import Any

from aiohttp import web

from quire_bookie.errors import ConfigError, PeerProtocolError
from quire_broker.admin.access import is_super_user
from quire_broker.admin.answers import answer, body_of, done, failure, object_of
from quire_broker.admin.context import broker_of, namespace_of, plain_topic, policies_of
from quire_broker.admin.descriptions import INTEGER, MESSAGE_ID, OBJECT, described
from quire_broker.admin.routes import Need, Route
from quire_broker.errors import AuthorizationError, OffloadError
from quire_broker.offload import policies as offload_policies
from quire_broker.offload.format import uuid_halves
from quire_broker.offload.target import OffloadTarget
from quire_broker.policies.fields import OFFLOAD
from quire_broker.policies.store import Json
from quire_broker.topic.topic import Topic

_PROPERTIES_MAX = 32
_THRESHOLDS = {
    "offloadThreshold": offload_policies.THRESHOLD,
    "offloadThresholdInSeconds": offload_policies.THRESHOLD_S,
    "offloadDeletionLagMs": offload_policies.LAG_MS,
}


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    topic = "/admin/v2/{domain:persistent}/{tenant}/{namespace}/{topic}/offload"
    yield Route("PUT", topic, trigger, Need.NAMESPACE)
    yield Route("GET", topic, status, Need.NAMESPACE)
    yield Route("POST", f"{topic}/begin", begin, Need.NAMESPACE)
    yield Route("POST", f"{topic}/complete", complete, Need.NAMESPACE)
    yield Route("POST", f"{topic}/abort", abort, Need.NAMESPACE)
    namespace = "/admin/v2/namespaces/{tenant}/{namespace}"
    yield Route("GET", f"{namespace}/offloadPolicies", get_policies, Need.NAMESPACE)
    yield Route("POST", f"{namespace}/offloadPolicies", set_policies, Need.SUPER_USER)
    yield Route("DELETE", f"{namespace}/removeOffloadPolicies", remove_policies, Need.SUPER_USER)
    threshold = f"{namespace}/{{policy:{'|'.join(_THRESHOLDS)}}}"
    yield Route("GET", threshold, get_threshold, Need.NAMESPACE)
    yield Route("PUT", threshold, set_threshold, Need.NAMESPACE)
    yield Route("DELETE", threshold, remove_threshold, Need.NAMESPACE)


async def _topic(request: web.Request) -> Topic:
    return await plain_topic(request, "offload its partitions one by one")


def _field(body: Json, name: str, kind: type) -> Any:
    value = body.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        words = {int: "an integer", str: "a text", dict: "an object"}
        raise PeerProtocolError(f"{name}={value!r}: must be {words[kind]}")
    return value


def _uuid(body: Json) -> str:
    uuid: str = _field(body, "uuid", str)
    try:
        uuid_halves(uuid)
    except ValueError as error:
        raise PeerProtocolError(str(error)) from error
    return uuid


# ---- a topic
@described(body=MESSAGE_ID)
async def trigger(request: web.Request) -> web.Response:
    """Start an offload; the body is a message id: `{"ledgerId": n, "entryId": n}`."""
    topic = await _topic(request)
    ledger_id = _field(await object_of(request), "ledgerId", int)
    try:
        topic.ledger.offloads.run_up_to(ledger_id)
    except OffloadError as error:
        return failure(412, str(error))
    return done()


@described(returns=OBJECT)
async def status(request: web.Request) -> web.Response:
    """Return OffloadProcessStatus."""
    topic = await _topic(request)
    found = topic.ledger.offloads.status
    left = found.first_left
    return answer(
        {
            "status": found.state,
            "lastError": found.last_error,
            "firstUnoffloadedMessage": None
            if left is None
            else {"ledgerId": left.ledger_id, "entryId": left.entry_id, "partitionIndex": topic.name.partition},
        }
    )


@described(body=OBJECT, returns=OBJECT)
async def begin(request: web.Request) -> web.Response:
    """Pin a ledger for an attempt. 409 with the reason if it may not be offloaded now."""
    topic = await _topic(request)
    body = await object_of(request)
    ledger_id, driver = _field(body, "ledgerId", int), _field(body, "driver", str)
    properties: dict[str, Any] = _field(body, "properties", dict)
    if len(properties) > _PROPERTIES_MAX or not all(isinstance(value, str) for value in properties.values()):
        raise PeerProtocolError(f"properties must be at most {_PROPERTIES_MAX} texts")
    owner = _field(body, "owner", str) if "owner" in body else ""
    try:
        target = OffloadTarget.from_properties(driver, properties)
    except ConfigError as error:
        raise PeerProtocolError(str(error)) from error
    if target != topic.ledger.offloads.target and not is_super_user(request):
        raise AuthorizationError(
            f"only a super user may name a target other than that of {topic.name}: {target.described}; "
            "use the driver, bucket, region and endpoint of the namespace's offload policies or of the broker"
        )
    uuid, record = await topic.ledger.offloads.begin(ledger_id, target, properties, owner)
    return answer({"uuid": uuid, "ledgerId": ledger_id, "entries": record.entries, "size": record.size_bytes})


@described(body=OBJECT)
async def complete(request: web.Request) -> web.Response:
    """Complete an attempt whose objects hold the ledger. 409 if they do not, or the attempt is not the ledger's."""
    topic = await _topic(request)
    body = await object_of(request)
    ledger_id, uuid = _field(body, "ledgerId", int), _uuid(body)
    entries, size_bytes = _field(body, "entries", int), _field(body, "size", int)
    await topic.ledger.offloads.complete(ledger_id, uuid, entries, size_bytes)
    return done()


@described(body=OBJECT)
async def abort(request: web.Request) -> web.Response:
    """Abort the attempt and delete its objects."""
    topic = await _topic(request)
    body = await object_of(request)
    await topic.ledger.offloads.abort(_field(body, "ledgerId", int), _uuid(body))
    return done()


# ---- a namespace
async def _store(request: web.Request, key: str, value: object) -> web.Response:
    def change(policies: Json) -> None:
        if value is None:
            policies.pop(key, None)
        else:
            policies[key] = value

    broker = broker_of(request)
    await broker.policies.update_policies(namespace_of(request), change)
    await broker.topics.reload_namespace(namespace_of(request))
    return done()


@described(returns=OBJECT)
async def get_policies(request: web.Request) -> web.Response:
    """Return the namespace's offload policies; no content if there are none."""
    value = (await policies_of(request)).get(OFFLOAD)
    return done() if value is None else answer(value)


@described(body=OBJECT)
async def set_policies(request: web.Request) -> web.Response:
    """Store offload policies; 412 if this broker cannot apply them."""
    value = await body_of(request)
    flaw = flaw_of_offloading(value)
    return failure(412, flaw) if flaw else await _store(request, OFFLOAD, value)


def flaw_of_offloading(value: object) -> str | None:
    """Return why offload policies may not be stored; None: they may."""
    try:
        offload_policies.check_policies(value)
    except (ConfigError, OffloadError) as error:
        return str(error)
    return None


async def remove_policies(request: web.Request) -> web.Response:
    """Restore the broker's settings."""
    return await _store(request, OFFLOAD, None)


@described(returns=INTEGER)
async def get_threshold(request: web.Request) -> web.Response:
    """Return a number; no content if it was never set."""
    value = (await policies_of(request)).get(_THRESHOLDS[request.match_info["policy"]])
    return done() if value is None else answer(value)


@described(body=INTEGER)
async def set_threshold(request: web.Request) -> web.Response:
    """Set a threshold; the body is a number."""
    policy = request.match_info["policy"]
    value = await body_of(request)
    if isinstance(value, bool) or not isinstance(value, int) or value < -1:
        return failure(412, f"{policy}={value!r}: must be an integer, -1 or more")
    return await _store(request, _THRESHOLDS[policy], value)


async def remove_threshold(request: web.Request) -> web.Response:
    """Restore the broker's setting."""
    return await _store(request, _THRESHOLDS[request.match_info["policy"]], None)
