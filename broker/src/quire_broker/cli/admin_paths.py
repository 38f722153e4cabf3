"""Paths of topics, namespaces and their parts in the admin REST, from names that users give."""

from urllib.parse import quote

from quire_bookie.errors import ConfigError
from quire_broker.errors import InvalidTopicNameError
from quire_broker.names import PERSISTENT, NamespaceName, TopicName, check_part, parse_namespace, parse_topic


def topic_of(text: str) -> TopicName:
    """Parse the name of a topic, short or complete. ConfigError."""
    try:
        return parse_topic(text)
    except InvalidTopicNameError as error:
        raise ConfigError(str(error)) from error


def namespace_of(text: str) -> NamespaceName:
    """Parse TENANT/NAMESPACE. ConfigError."""
    try:
        return parse_namespace(text)
    except InvalidTopicNameError as error:
        raise ConfigError(f"{text}: expected TENANT/NAMESPACE, e.g. public/default ({error})") from error


def tenant_path(tenant: str) -> str:
    """Return the path of a tenant. ConfigError for a name that no tenant can have."""
    try:
        check_part("tenant", tenant)
    except InvalidTopicNameError as error:
        raise ConfigError(str(error)) from error
    return f"/admin/v2/tenants/{quoted(tenant)}"


def namespace_path(name: NamespaceName) -> str:
    """Return the path of a namespace."""
    return f"/admin/v2/namespaces/{_in_path(name)}"


def topic_path(name: TopicName) -> str:
    """Return the path of a topic."""
    return f"/admin/v2/{_topic(name)}"


def topics_path(name: NamespaceName) -> str:
    """Return the path of the persistent topics of a namespace."""
    return f"/admin/v2/{PERSISTENT}/{_in_path(name)}"


def schema_path(name: TopicName) -> str:
    """Return the path of the schemas of a topic."""
    return f"/admin/v2/schemas/{_in_path(name.namespace)}/{quoted(name.local)}"


def subscription_path(name: TopicName, subscription: str) -> str:
    """Return the path of a subscription."""
    return f"{topic_path(name)}/subscription/{quoted(subscription)}"


def peek_path(name: TopicName, subscription: str) -> str:
    """Return the path of the next entries of a subscription."""
    return f"/admin/quire/topics/{_topic(name)}/subscription/{quoted(subscription)}/peek"


def quoted(part: str) -> str:
    """Return a part of a path."""
    return quote(part, safe="")


def _topic(name: TopicName) -> str:
    return f"{name.domain}/{_in_path(name.namespace)}/{quoted(name.local)}"


def _in_path(name: NamespaceName) -> str:
    return f"{quoted(name.tenant)}/{quoted(name.namespace)}"
