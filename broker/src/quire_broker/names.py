"""Names of topics and namespaces: parses and checks texts of clients, and encodes names for paths. Pure.

    {persistent|non-persistent}://tenant/namespace/local   short: `tenant/ns/local` or `local` (persistent)
    <name>-partition-<k>                                   partition k of a partitioned topic
    tenant/namespace/persistent/<encoded local>            name of the managed ledger

Local names are form-encoded in paths (space becomes `+`). Source: spec pulsar-wire, section 11.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote_plus, unquote_plus

from quire_bookie.control_characters import escaped, has_control_characters
from quire_broker.errors import InvalidTopicNameError

PERSISTENT = "persistent"
NON_PERSISTENT = "non-persistent"
_PART = re.compile(r"[-=:.\w]+", re.ASCII)
_PARTITION = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,8})", re.DOTALL)
NAME_CHARACTERS_MAX = 1024
_OF_PATHS = (".", "..")
"""Clients of the admin REST leave them out of a path, so that it names something else."""
_SHOWN_CHARACTERS = 100
"""Characters of an invalid name that an error shows."""
SYSTEM_NAMESPACE = "pulsar/system"
_CLUSTER_TOPICS = frozenset(
    {
        "__change_events",
        "__transaction_buffer_snapshot",
        "__transaction_buffer_snapshot_indexes",
        "__transaction_buffer_snapshot_segments",
        "transaction_coordinator_assign",
    }
)
_CLUSTER_PREFIXES = ("__transaction_log_",)
_PENDING_ACKS = "__transaction_pending_ack"
"""Source: Pulsar's SystemTopicNames."""


@dataclass(frozen=True, slots=True, order=True)
class NamespaceName:
    """`tenant/namespace`."""

    tenant: str
    namespace: str

    def __str__(self) -> str:
        return f"{self.tenant}/{self.namespace}"


@dataclass(frozen=True, slots=True)
class TopicName:
    """A complete topic name. `partition` is the index of a partition, or -1."""

    domain: str
    namespace: NamespaceName
    local: str
    partition: int = -1

    def __str__(self) -> str:
        return f"{self.domain}://{self.namespace}/{self.local}"

    @property
    def flaw(self) -> str | None:
        """Why no topic of this name may be created, or None. An existing one can be deleted."""
        if has_control_characters(self.local):
            return f"topic name '{escaped(str(self))}' holds a control character: choose another name"
        if self.local in _OF_PATHS:
            return (
                f"topic name '{self}' ends in '{self.local}', which admin paths treat as a folder: choose another name"
            )
        size = len(str(self.partitioned))
        if size > NAME_CHARACTERS_MAX:
            return f"topic name of {size} characters; the limit is {NAME_CHARACTERS_MAX}: choose a shorter name"
        return None

    def require_creatable(self) -> None:
        """Raise InvalidTopicNameError if the name has a flaw."""
        if self.flaw is not None:
            raise InvalidTopicNameError(self.flaw)

    @property
    def persistent(self) -> bool:
        """Whether messages are stored."""
        return self.domain == PERSISTENT

    @property
    def partitioned(self) -> "TopicName":
        """The topic of which this is a partition; the topic itself if it is none."""
        if self.partition < 0:
            return self
        return TopicName(self.domain, self.namespace, self.local.rsplit("-partition-", 1)[0])

    def partition_of(self, index: int) -> "TopicName":
        """Return partition `index` of this topic."""
        return TopicName(self.domain, self.namespace, f"{self.local}-partition-{index}", index)

    def partitions(self, count: int) -> list["TopicName"]:
        """Return the names of the first `count` partitions."""
        return [self.partition_of(index) for index in range(count)]

    @property
    def encoded_local(self) -> str:
        """The local name as encoded in paths."""
        return encode_name(self.local)

    @property
    def ledger_name(self) -> str:
        """Name of the managed ledger."""
        return f"{self.namespace}/{self.domain}/{self.encoded_local}"

    @property
    def is_of_the_cluster(self) -> bool:
        """Whether brokers keep their own state in the topic, according to Pulsar's names of such topics."""
        local = self.partitioned.local
        return (
            str(self.namespace) == SYSTEM_NAMESPACE
            or local in _CLUSTER_TOPICS
            or local.startswith(_CLUSTER_PREFIXES)
            or local.endswith(_PENDING_ACKS)
        )

    @property
    def is_system(self) -> bool:
        """Whether it is a topic of the cluster itself, which listings for clients omit."""
        return self.local.startswith("__") or str(self.namespace) == SYSTEM_NAMESPACE


def encode_name(name: str) -> str:
    """Encode a path component: letters, digits and `.-*_` stay, space becomes `+`, the rest %XX of its UTF-8."""
    return quote_plus(name, safe="*").replace("~", "%7E")


def decode_name(component: str) -> str:
    """Decode a path component; the inverse of encode_name."""
    return unquote_plus(component)


def parse_namespace(text: str) -> NamespaceName:
    """Parse `tenant/namespace`; InvalidTopicNameError for anything else."""
    parts = text.split("/")
    wrong = any(_PART.fullmatch(part) is None or part in _OF_PATHS for part in parts)
    if len(parts) != 2 or len(text) > NAME_CHARACTERS_MAX or wrong:
        raise InvalidTopicNameError(
            f"'{_shown(text)}' is not a namespace: expected tenant/namespace of letters, digits, -=:._, "
            f"at most {NAME_CHARACTERS_MAX} characters"
        )
    return NamespaceName(*parts)


def check_part(what: str, text: str) -> None:
    """Raise InvalidTopicNameError unless `text` is a valid name of a tenant or a cluster."""
    if len(text) > NAME_CHARACTERS_MAX or not _PART.fullmatch(text):
        raise InvalidTopicNameError(
            f"'{_shown(text)}' is not a valid name of a {what}: expected letters, digits, -=:._, "
            f"at most {NAME_CHARACTERS_MAX} characters"
        )


def _shown(text: str) -> str:
    return escaped(text[:_SHOWN_CHARACTERS])


@lru_cache(maxsize=10_000)
def parse_topic(text: str) -> TopicName:
    """Parse a topic name in any of its forms. InvalidTopicNameError with the reason."""
    if len(text) > NAME_CHARACTERS_MAX:
        raise InvalidTopicNameError(
            f"topic name of {len(text)} characters; the limit is {NAME_CHARACTERS_MAX}: choose a shorter name"
        )
    if has_control_characters(text):
        raise InvalidTopicNameError(f"topic name '{escaped(text)}' holds a control character: choose another name")
    domain, scheme, rest = text.partition("://")
    if not scheme:
        domain, rest = PERSISTENT, text
        if "/" not in rest:
            rest = f"public/default/{rest}"
        elif rest.count("/") != 2:
            raise InvalidTopicNameError(f"Invalid short topic name '{text}': expected topic or tenant/namespace/topic")
    if domain not in (PERSISTENT, NON_PERSISTENT):
        raise InvalidTopicNameError(f"Invalid topic name '{text}': unknown domain '{domain}'")
    tenant, _, rest = rest.partition("/")
    namespace, slash, local = rest.partition("/")
    if not slash or not local.strip():
        raise InvalidTopicNameError(f"Invalid topic name '{text}'")
    return topic_of(domain, parse_namespace(f"{tenant}/{namespace}"), local)


def topic_of(domain: str, namespace: NamespaceName, local: str) -> TopicName:
    """Build a topic name from its parts; the partition is taken from the local name."""
    match = _PARTITION.fullmatch(local)
    return TopicName(domain, namespace, local, int(match[2]) if match else -1)


def topic_of_ledger(ledger_name: str) -> TopicName:
    """Return the topic of a managed ledger's name (`tenant/ns/domain/encoded`)."""
    tenant, namespace, domain, encoded = ledger_name.split("/", 3)
    return topic_of(domain, NamespaceName(tenant, namespace), decode_name(encoded))
