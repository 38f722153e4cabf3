"""Backlog quotas of namespaces, at Pulsar's paths; those of topics are in `topic_policies`.

GET .../backlogQuotaMap                   {kind: {"limitSize", "limitTime", "policy"}}, the namespace's own quotas
POST .../backlogQuota?backlogQuotaType=   sets one kind, by default `destination_storage`
DELETE .../backlogQuota?backlogQuotaType= restores the broker's setting

Brokers apply changes in their next round, and at each new producer.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from aiohttp import web

from quire_bookie.admin.answers import RefusedError
from quire_broker.admin.answers import answer, done, object_of
from quire_broker.admin.context import broker_of, namespace_of, policies_of
from quire_broker.admin.descriptions import INTEGER, TEXT, Query, Schema, described, fields
from quire_broker.admin.routes import Need, Route
from quire_broker.errors import NotAllowedError
from quire_broker.policies.backlog_quota import NO_LIMIT, QUOTA_KEY, QuotaKind, QuotaPolicy, flaw_of_quota
from quire_broker.policies.store import Json

KIND: Final = Query("backlogQuotaType", {"type": "string", "enum": list(QuotaKind)}, "the kind; by default the size")
_LIMIT: Final[Schema] = {"anyOf": [INTEGER, TEXT], "description": "a number above 0, or -1 for no limit"}
QUOTA: Final = fields(
    ("policy",), limitSize=_LIMIT, limitTime=_LIMIT, limit=_LIMIT, policy={"type": "string", "enum": list(QuotaPolicy)}
)
QUOTAS: Final[Schema] = {"type": "object", "additionalProperties": QUOTA}
_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    root = "/admin/v2/namespaces/{tenant}/{namespace}"
    yield Route("GET", f"{root}/backlogQuotaMap", quotas, Need.NAMESPACE)
    yield Route("POST", f"{root}/backlogQuota", set_quota, Need.NAMESPACE)
    yield Route("DELETE", f"{root}/backlogQuota", remove_quota, Need.NAMESPACE)


@described(returns=QUOTAS)
async def quotas(request: web.Request) -> web.Response:
    """Return all kinds that are set."""
    return answer((await policies_of(request)).get(QUOTA_KEY) or {})


def kind_of(request: web.Request) -> QuotaKind:
    """Return the kind that the query names. NotAllowedError."""
    name = request.query.get("backlogQuotaType") or QuotaKind.SIZE
    try:
        return QuotaKind(name)
    except ValueError:
        raise NotAllowedError(f"backlogQuotaType {name!r}: use one of {', '.join(QuotaKind)}") from None


@described(KIND, body=QUOTA)
async def set_quota(request: web.Request) -> web.Response:
    """Store one kind. 412 for an invalid quota."""
    kind, value = await quota_of(request)

    def change(policies: Json) -> None:
        _map_of(policies)[kind.value] = value

    await broker_of(request).policies.update_policies(namespace_of(request), change)
    return done()


async def quota_of(request: web.Request) -> tuple[QuotaKind, dict[str, Any]]:
    """Return the kind and the quota of a request, in the form that is stored. RefusedError 412 for an invalid one."""
    kind, body = kind_of(request), await object_of(request)
    size = body.get("limitSize", body.get("limit", NO_LIMIT))  # older tools send `limit`
    value: dict[str, Any] = {"limitSize": _number(size), "limitTime": _number(body.get("limitTime", NO_LIMIT))}
    value["policy"] = body.get("policy")
    flaw = flaw_of_quota(value, kind)
    if flaw is not None:
        raise RefusedError(412, flaw)
    return kind, value


def _number(value: object) -> object:
    """Return the number in a text, as stock brokers accept it; anything else unchanged."""
    return int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value


@described(KIND)
async def remove_quota(request: web.Request) -> web.Response:
    """Delete one kind; does nothing if it is not set."""
    kind = kind_of(request)

    def change(policies: Json) -> None:
        _map_of(policies).pop(kind.value, None)

    await broker_of(request).policies.update_policies(namespace_of(request), change)
    return done()


def _map_of(policies: Json) -> dict[str, Any]:
    if not isinstance(policies.get(QUOTA_KEY), dict):
        policies[QUOTA_KEY] = {}
    found: dict[str, Any] = policies[QUOTA_KEY]
    return found
