"""Decides what a role may do, by the permissions in the policies of namespaces, in Pulsar's format.

    /admin/policies/<t>         adminRoles: may do everything in the tenant
    /admin/policies/<t>/<ns>    auth_policies: namespace_auth {role: [action]},
                                destination_auth {topic: {role: [action]}},
                                subscription_auth_roles {subscription: [role]},
                                quire_admin_roles [role]: may do everything in the namespace except create or delete it

The last is Quire's own: stock brokers ignore it, and drop it when they write the policies. Super users may do
everything. If the policies cannot be read, nothing is allowed: the error is passed on.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from quire_bookie.control_characters import is_role
from quire_bookie.limits import ROLE_CHARACTERS_MAX
from quire_broker.errors import AuthorizationError, NotFoundError
from quire_broker.names import NamespaceName, TopicName
from quire_broker.policies.store import PolicyStore

NAMESPACE_KEY = "namespace_auth"
TOPIC_KEY = "destination_auth"
SUBSCRIPTION_KEY = "subscription_auth_roles"
ADMINS_KEY = "quire_admin_roles"
AUTH_MODE = "subscription_auth_mode"
PREFIX = "Prefix"
AUTH_MODES = ("None", PREFIX)


class Action(StrEnum):
    """Actions that can be granted. Quire's brokers use the first two and keep the others."""

    PRODUCE = "produce"
    CONSUME = "consume"
    FUNCTIONS = "functions"
    SOURCES = "sources"
    SINKS = "sinks"
    PACKAGES = "packages"


class Authorization:
    """Checks roles against the policies, which are cached for a few seconds."""

    def __init__(
        self, policies: PolicyStore, super_users: frozenset[str], proxy_roles: frozenset[str] = frozenset()
    ) -> None:
        self._policies = policies
        self._super_users = super_users
        self._proxy_roles = proxy_roles

    def roles_of(self, role: str, original: str, *, may_repeat: bool = False) -> tuple[str, ...]:
        """Return the roles that must all be permitted: that of the connection, and the client for which a proxy acts.

        Only a role of `proxyRoles` acts for another one, which it must name and which is no proxy itself.
        `may_repeat`: any role may name itself, as stock proxies do in HTTP requests. AuthorizationError.
        """
        if role not in self._proxy_roles:
            if original and not (may_repeat and original == role):
                raise AuthorizationError(
                    f"role {role!r} may not act for another one: list it in proxyRoles if it is a proxy"
                )
            return (role,)
        if not original:
            raise AuthorizationError(f"role {role!r} is a proxy and must name the original principal: its client")
        if original in self._proxy_roles:
            raise AuthorizationError(f"role {role!r} names {original!r} as its client, which is a proxy itself")
        if not is_role(original):
            raise AuthorizationError(
                f"an original principal has at most {ROLE_CHARACTERS_MAX} characters and no control characters"
            )
        return (role, original)

    def is_super_user(self, role: str) -> bool:
        """Return whether the role may do everything."""
        return role in self._super_users

    async def is_admin(self, role: str, tenant: str) -> bool:
        """Return whether the role may do everything in a tenant."""
        if self.is_super_user(role):
            return True
        try:
            info = await self._policies.read_tenant(tenant)
        except NotFoundError:
            return False
        return role in _listed(info.get("adminRoles"))

    async def is_namespace_admin(self, role: str, namespace: NamespaceName) -> bool:
        """Return whether the role may do everything in a namespace."""
        if await self.is_admin(role, namespace.tenant):
            return True
        return role in _listed((await self._auth_policies(namespace)).get(ADMINS_KEY))

    async def may(self, role: str, action: Action, topic: TopicName) -> bool:
        """Return whether a role may do this with a topic: by the namespace, the topic, or the topic of a partition.

        Topics in which brokers keep policies and transactions are for admins of the namespace, regardless of grants.
        """
        if await self.is_namespace_admin(role, topic.namespace):
            return True
        if topic.is_of_the_cluster:
            return False
        auth = await self._auth_policies(topic.namespace)
        topics = auth.get(TOPIC_KEY) or {}
        granted = (auth.get(NAMESPACE_KEY), topics.get(str(topic)), topics.get(str(topic.partitioned)))
        return any(action in _listed((grants or {}).get(role)) for grants in granted)

    async def may_look_up(self, role: str, topic: TopicName) -> bool:
        """Return whether a role may look up a topic, which producing and consuming require."""
        return await self.may(role, Action.PRODUCE, topic) or await self.may(role, Action.CONSUME, topic)

    async def may_subscribe(self, role: str, topic: TopicName, subscription: str) -> bool:
        """Return whether a role may use a subscription; one with its own roles is restricted to those.

        With the policy `subscription_auth_mode` Prefix its name must begin with the role. Admins are exempt.
        """
        if await self.is_namespace_admin(role, topic.namespace):
            return True
        mode = (await self._policies.policies(topic.namespace) or {}).get(AUTH_MODE)
        if mode == PREFIX and subscription and not subscription.startswith(role):
            return False
        roles = ((await self._auth_policies(topic.namespace)).get(SUBSCRIPTION_KEY) or {}).get(subscription)
        return (not roles or role in _listed(roles)) and await self.may(role, Action.CONSUME, topic)

    async def may_in_namespace(self, role: str, action: Action, namespace: NamespaceName) -> bool:
        """Return whether a role may do this with all topics of a namespace."""
        if await self.is_namespace_admin(role, namespace):
            return True
        return action in _listed(((await self._auth_policies(namespace)).get(NAMESPACE_KEY) or {}).get(role))

    async def _auth_policies(self, namespace: NamespaceName) -> Mapping[str, Any]:
        policies = await self._policies.policies(namespace)
        return (policies or {}).get("auth_policies") or {}


def _listed(value: Any) -> Sequence[Any]:
    """Return a list of names. Any other value has none: in a text, `in` would find each part of a name."""
    return value if isinstance(value, list) else ()


class Rights:
    """The rights of one client; all rights without authorization. Every refusal is an AuthorizationError.

    If a proxy acts for the client, both must have the right: `original` is the client then, and `role` the proxy.
    """

    def __init__(self, authorization: Authorization | None, role: str, original: str = "") -> None:
        self.role = original or role
        """The role of the client itself."""
        roles = (role, original) if original else (role,)
        self._checks = () if authorization is None else tuple((authorization, each) for each in roles)

    async def require_produce(self, topic: TopicName) -> None:
        """Require the right to publish to a topic."""
        for authorization, role in self._checks:
            if not await authorization.may(role, Action.PRODUCE, topic):
                raise AuthorizationError(f"Client is not authorized to Produce: {role!r} on {topic}")

    async def require_subscribe(self, topic: TopicName, subscription: str) -> None:
        """Require the right to consume by a subscription."""
        for authorization, role in self._checks:
            if not await authorization.may_subscribe(role, topic, subscription):
                raise AuthorizationError(f"Client is not authorized to subscribe: {role!r} on {topic}")

    async def require_look_up(self, topic: TopicName) -> None:
        """Require the right to look up a topic and its number of partitions."""
        for authorization, role in self._checks:
            if not await authorization.may_look_up(role, topic):
                raise AuthorizationError(f"Client is not authorized to Lookup: {role!r} on {topic}")

    async def require_list(self, namespace: NamespaceName) -> None:
        """Require the right to list the names of a namespace's topics."""
        for authorization, role in self._checks:
            if not await authorization.may_in_namespace(role, Action.CONSUME, namespace):
                raise AuthorizationError(f"Client is not authorized to list topics: {role!r} in {namespace}")
