"""The policies in force of a namespace or a topic, each with the level that sets it, for the web console.

GET /admin/quire/policies/{tenant}/{namespace}
GET /admin/quire/policies/{domain}/{tenant}/{namespace}/{topic}
    {"policies": {policy: {"value", "from": "topic", "namespace" or "broker", "set": {level: value}}}}

`policy` is the end of the path at which POST sets and DELETE removes it. A topic must exist: its owner answers.
"""

from collections.abc import Iterator
from typing import Any

from aiohttp import web

from quire_broker.admin.answers import answer
from quire_broker.admin.context import broker_of, policies_of
from quire_broker.admin.descriptions import OBJECT, described
from quire_broker.admin.inherited import inherited, inherited_quotas
from quire_broker.admin.namespaces import STORED_POLICIES, UNSET
from quire_broker.admin.routes import Need, Route
from quire_broker.admin.topic_policies import GLOBAL, own_of
from quire_broker.policies.fields import OFFLOAD
from quire_broker.policies.of_topics import PATHS
from quire_broker.policies.origins import NAMESPACE, TOPIC, origins, quota_origins
from quire_broker.policies.rates import default_values
from quire_broker.server.broker import RunningBroker

OF_NAMESPACES = STORED_POLICIES | {"offloadPolicies": OFFLOAD}
"""Maps the path of a policy of namespaces to its field."""


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    root = "/admin/quire/policies"
    yield Route("GET", f"{root}/{{tenant}}/{{namespace}}", of_namespace, Need.NAMESPACE)
    yield Route("GET", f"{root}/{{domain:persistent}}/{{tenant}}/{{namespace}}/{{topic}}", of_topic, Need.NAMESPACE)


@described(returns=OBJECT)
async def of_namespace(request: web.Request) -> web.Response:
    """Return the policies of a namespace and where each comes from."""
    levels = {NAMESPACE: await policies_of(request)}
    return _shown(broker_of(request), OF_NAMESPACES, levels)


@described(GLOBAL, returns=OBJECT)
async def of_topic(request: web.Request) -> web.Response:
    """Return the policies of a topic and where each comes from."""
    levels = {TOPIC: await own_of(request), NAMESPACE: await policies_of(request)}
    return _shown(broker_of(request), PATHS, levels)


def _shown(broker: RunningBroker, fields: Any, levels: Any) -> web.Response:
    settings = broker.settings
    more = settings.topics.defaults.restrictions(settings.topics.auto_create)
    defaults = UNSET | more | inherited(settings) | default_values(broker.topics.rates.of_topics)
    quotas = quota_origins(levels, inherited_quotas(settings.backlog_quotas.default))
    return answer({"policies": origins(fields, levels, defaults, settings.cluster) | quotas})
