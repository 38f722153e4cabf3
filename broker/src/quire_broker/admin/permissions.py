"""Permissions of namespaces, topics and subscriptions, at Pulsar's paths. They are stored in the namespace's policies.

A grant takes effect at once on this broker. Other brokers read the policies again every few seconds. Open clients of a
revoked role are closed a little later (`PermissionWatch`). Pulsar has no path for the admins of a namespace; ours is

    GET, POST /admin/quire/namespaces/{tenant}/{namespace}/admins   [role]; replaces the former list
"""

from collections.abc import Callable, Iterator
from typing import Any

from aiohttp import web

from quire_broker.admin.answers import answer, body_of, done, failure
from quire_broker.admin.context import broker_of, namespace_of, policies_of, topic_name_of
from quire_broker.admin.descriptions import GRANTS, NAMES, described
from quire_broker.admin.routes import Need, Route
from quire_broker.errors import NotAllowedError
from quire_broker.policies.store import Json
from quire_broker.security.authorization import ADMINS_KEY, NAMESPACE_KEY, SUBSCRIPTION_KEY, TOPIC_KEY, Action
from quire_broker.topic.client_names import check_name

AUTH_POLICIES = "auth_policies"


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    root = "/admin/v2/namespaces/{tenant}/{namespace}/permissions"
    yield Route("GET", root, of_namespace, Need.NAMESPACE)
    yield Route("GET", root + "/subscription", of_subscriptions, Need.NAMESPACE)
    yield Route("POST", root + "/subscription/{subscription}", grant_on_subscription, Need.NAMESPACE)
    yield Route("DELETE", root + "/subscription/{subscription}/{role}", revoke_on_subscription, Need.NAMESPACE)
    yield Route("POST", root + "/{role}", grant_on_namespace, Need.NAMESPACE)
    yield Route("DELETE", root + "/{role}", revoke_on_namespace, Need.NAMESPACE)
    yield Route("DELETE", root + "/{subscription}/{role}", revoke_on_subscription, Need.NAMESPACE)
    yield Route("GET", "/admin/quire/namespaces/{tenant}/{namespace}/admins", admins, Need.NAMESPACE)
    yield Route("POST", "/admin/quire/namespaces/{tenant}/{namespace}/admins", set_admins, Need.TENANT)
    root = "/admin/v2/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}/permissions"
    yield Route("GET", root, of_topic, Need.NAMESPACE)
    yield Route("POST", root + "/{role}", grant_on_topic, Need.NAMESPACE)
    yield Route("DELETE", root + "/{role}", revoke_on_topic, Need.NAMESPACE)


async def _read(request: web.Request) -> Json:
    found = (await policies_of(request)).get(AUTH_POLICIES)
    return found if isinstance(found, dict) else {}


async def _change(request: web.Request, change: Callable[[Json], None]) -> None:
    """Change the permissions by compare-and-set."""

    def on_policies(policies: Json) -> None:
        if not isinstance(policies.get(AUTH_POLICIES), dict):
            policies[AUTH_POLICIES] = {}
        change(policies[AUTH_POLICIES])

    await broker_of(request).policies.update_policies(namespace_of(request), on_policies)


def _part(auth: Json, *keys: str) -> dict[str, Any]:
    """Return a part of the permissions, creating it if missing."""
    found = auth
    for key in keys:
        if not isinstance(found.get(key), dict):
            found[key] = {}
        found = found[key]
    return found


async def _texts(request: web.Request, what: str) -> list[str]:
    found = await body_of(request)
    if not isinstance(found, list) or not all(isinstance(one, str) and one for one in found):
        raise NotAllowedError(f"the body must be a JSON list of {what}")
    return list(dict.fromkeys(found))


async def _actions(request: web.Request) -> list[str]:
    found = await _texts(request, "actions")
    known = [action.value for action in Action]
    unknown = [action for action in found if action not in known]
    if unknown:
        raise NotAllowedError(f"action {unknown[0]!r}: use one of {', '.join(known)}")
    return found


@described(returns=GRANTS)
async def of_namespace(request: web.Request) -> web.Response:
    """Return `{role: [action]}`."""
    return answer((await _read(request)).get(NAMESPACE_KEY) or {})


@described(body=NAMES)
async def grant_on_namespace(request: web.Request) -> web.Response:
    """Grant a role exactly these actions on every topic."""
    role, actions = request.match_info["role"], await _actions(request)
    await _change(request, lambda auth: _part(auth, NAMESPACE_KEY).update({role: actions}))
    return done()


async def revoke_on_namespace(request: web.Request) -> web.Response:
    """Revoke a role's permissions on the namespace."""
    role = request.match_info["role"]
    await _change(request, lambda auth: _forget(_part(auth, NAMESPACE_KEY), role))
    return done()


def _forget(part: dict[str, Any], key: str) -> None:
    part.pop(key, None)


@described(returns=GRANTS)
async def of_subscriptions(request: web.Request) -> web.Response:
    """Return `{subscription: [role]}`; a subscription without an entry is for every role that may consume."""
    return answer((await _read(request)).get(SUBSCRIPTION_KEY) or {})


@described(body=NAMES)
async def grant_on_subscription(request: web.Request) -> web.Response:
    """Restrict a subscription to these roles."""
    subscription, roles = request.match_info["subscription"], await _texts(request, "roles")
    check_name("subscription", subscription, broker_of(request).parts.settings.name_characters_max)
    await _change(request, lambda auth: _part(auth, SUBSCRIPTION_KEY).update({subscription: roles}))
    return done()


async def revoke_on_subscription(request: web.Request) -> web.Response:
    """Remove a role from a subscription; without any role left it is for every role that may consume."""
    subscription, role = request.match_info["subscription"], request.match_info["role"]

    def change(auth: Json) -> None:
        part = _part(auth, SUBSCRIPTION_KEY)
        left = [one for one in part.get(subscription) or () if one != role]
        part.pop(subscription, None)
        if left:
            part[subscription] = left

    await _change(request, change)
    return done()


@described(returns=NAMES)
async def admins(request: web.Request) -> web.Response:
    """Return `[role]`."""
    return answer((await _read(request)).get(ADMINS_KEY) or [])


@described(body=NAMES)
async def set_admins(request: web.Request) -> web.Response:
    """Set the roles that may do everything in the namespace, besides the admins of its tenant."""
    roles = await _texts(request, "roles")
    await _change(request, lambda auth: auth.update({ADMINS_KEY: roles}))
    return done()


@described(returns=GRANTS)
async def of_topic(request: web.Request) -> web.Response:
    """Return `{role: [action]}`, including the grants of the namespace."""
    auth = await _read(request)
    own = (auth.get(TOPIC_KEY) or {}).get(str(topic_name_of(request))) or {}
    found = {role: list(actions) for role, actions in (auth.get(NAMESPACE_KEY) or {}).items()}
    for role, actions in own.items():
        found[role] = list(dict.fromkeys([*found.get(role, ()), *actions]))
    return answer(found)


@described(body=NAMES)
async def grant_on_topic(request: web.Request) -> web.Response:
    """Grant a role these actions on a topic and its partitions."""
    role, actions, topic = request.match_info["role"], await _actions(request), topic_name_of(request)
    topic.require_creatable()
    name = str(topic)
    await _change(request, lambda auth: _part(auth, TOPIC_KEY, name).update({role: actions}))
    return done()


async def revoke_on_topic(request: web.Request) -> web.Response:
    """Revoke a role's permissions on the topic; 412 if it has none."""
    role, name = request.match_info["role"], str(topic_name_of(request))
    if role not in ((await _read(request)).get(TOPIC_KEY) or {}).get(name, {}):
        return failure(412, "Permissions are not set at the topic level")
    await _change(request, lambda auth: _forget(_part(auth, TOPIC_KEY, name), role))
    return done()
