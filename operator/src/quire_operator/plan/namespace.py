"""A namespace's topics, cursors and policies: what is missing of what is declared. Pure.

Nothing that exists is taken away: a topic that is not declared is left alone, and a partition never goes.
"""

import re
from collections.abc import Mapping
from typing import Any

from quire_operator.api.jobs_spec import Offload
from quire_operator.api.managed_ledger_spec import (
    AccessAction,
    BacklogPolicy,
    BacklogQuota,
    InitialPosition,
    ManagedLedgerSpec,
    Topic,
)
from quire_operator.api.quantities import duration_ms, quantity_bytes
from quire_operator.plan.actions import (
    CreateCursor,
    CreateNamespace,
    CreateTopic,
    Grant,
    GrowTopic,
    LoadTopic,
    NamespaceAction,
    SetAdmins,
    SetIsolation,
    SetPolicy,
)
from quire_operator.plan.ledger_seen import NamespaceState, TopicSeen

_ACTIONS = {AccessAction.PRODUCE: "produce", AccessAction.CONSUME: "consume"}
_BACKLOG_POLICIES = {
    BacklogPolicy.HOLD: "producer_request_hold",
    BacklogPolicy.REFUSE: "producer_exception",
    BacklogPolicy.EVICT: "consumer_backlog_eviction",
}
_OFFLOAD_DRIVERS = {
    "s3": "aws-s3",
    "gs": "google-cloud-storage",
    "az": "azureblob",
    "file": "quire-folder",
}
BACKLOG_KINDS = ("destination_storage", "message_age")
LOADS_MAX = 20
ACTIONS_MAX = 100
"""In one pass: a namespace of thousands of cursors is brought up over several, each with a status."""


def policies(spec: ManagedLedgerSpec) -> dict[str, Any]:
    """The namespace's policies by path, in Pulsar's form; only those that the spec says something about."""
    found: dict[str, Any] = {
        "persistence": {
            "bookkeeperEnsemble": spec.replication.ensemble,
            "bookkeeperWriteQuorum": spec.replication.write_quorum,
            "bookkeeperAckQuorum": spec.replication.ack_quorum,
            "managedLedgerMaxMarkDeleteRate": 0.0,
        }
    }
    if spec.retention.time is not None and spec.retention.size is not None:
        found["retention"] = {
            "retentionTimeInMinutes": retention_minutes(spec.retention.time),
            "retentionSizeInMB": retention_mb(spec.retention.size),
        }
    if spec.retention.ttl is not None:
        found["messageTTL"] = _seconds(spec.retention.ttl)
    if spec.backlog_quota is not None:
        found |= _backlog_quotas(spec.backlog_quota)
    if spec.offload is not None:
        found["offloadPolicies"] = offload_policies(spec.offload)
    return found


def offload_policies(offload: Offload) -> dict[str, Any]:
    """Where brokers find offloaded ledgers, and when the bookies' copies go; no thresholds: which go is for the job.

    What is empty is said too, so that it takes the place of what was there.
    """
    scheme, _, place = offload.target.partition("://")
    driver = _OFFLOAD_DRIVERS[scheme]
    return {
        "managedLedgerOffloadDriver": driver,
        "managedLedgerOffloadBucket": place if scheme == "file" else place.rstrip("/"),
        "managedLedgerOffloadRegion": offload.region or "",
        "managedLedgerOffloadServiceEndpoint": offload.endpoint or "",
        "managedLedgerOffloadDeletionLagInMillis": duration_ms(offload.delete_lag),
    }


def backlog_quota_path(kind: str) -> str:
    """Where a kind of quota is set."""
    return f"backlogQuota?backlogQuotaType={kind}"


def _backlog_quotas(quota: BacklogQuota) -> dict[str, Any]:
    """Both kinds, so that one that is not declared any more, or was the brokers' default, is no limit."""
    limits = {
        "limitSize": -1 if quota.size is None else quantity_bytes(quota.size),
        "limitTime": -1 if quota.time is None else _seconds(quota.time),
    }
    return {backlog_quota_path(kind): limits | {"policy": _BACKLOG_POLICIES[quota.policy]} for kind in BACKLOG_KINDS}


def _seconds(duration: str) -> int:
    """Rounded up: never less than was asked for."""
    return -(-duration_ms(duration) // 1000)


def isolation_name(namespace: str) -> str:
    """Of the policy; no namespace has the sign that stands for the slash."""
    return namespace.replace("/", "~")


def isolation(namespace: str, hosts: str) -> dict[str, Any]:
    """The policy: only brokers whose host matches serve the namespace. One of them being up is enough."""
    return {
        "namespaces": [re.escape(namespace)],
        "primary": [hosts],
        "secondary": [],
        "auto_failover_policy": {
            "policy_type": "min_available",
            "parameters": {"min_limit": "1", "usage_threshold": "100"},
        },
    }


def grants(spec: ManagedLedgerSpec) -> dict[str, tuple[str, ...]]:
    """What each role may do, in Pulsar's words, which have none for admins of a namespace."""
    return {
        entry.role: tuple(sorted(_ACTIONS[action] for action in entry.actions if action in _ACTIONS))
        for entry in spec.access
    }


def retention_minutes(time: str) -> int:
    """-1: for ever. Rounded up: never less than was asked for."""
    return -1 if time == "forever" else -(-duration_ms(time) // 60_000)


def retention_mb(size: str) -> int:
    """MiB, which Pulsar calls MB; -1: without a bound. Rounded up."""
    return -1 if size == "unbounded" else -(-quantity_bytes(size) // 2**20)


def missing(spec: ManagedLedgerSpec, there: NamespaceState, hosts: str) -> list[NamespaceAction]:
    """What is to be done, in an order in which it can be done; at most `ACTIONS_MAX`.

    `hosts`: a pattern of the brokers that serve it; they are named before there is anything that others could take.
    """
    found: list[NamespaceAction] = []
    wanted_isolation = isolation(spec.namespace, hosts)
    if there.isolation != wanted_isolation:
        found.append(SetIsolation(isolation_name(spec.namespace), wanted_isolation))
    if not there.exists:
        found.append(CreateNamespace(spec.namespace))
    found += _grants(spec, there)
    for path, wanted in policies(spec).items():
        if not _says(there.policies.get(path), wanted):
            found.append(SetPolicy(spec.namespace, path, wanted))
    for topic in spec.topics:
        found += _of_topic(spec.namespace, topic, there.topics.get(topic.name))
    return found[:ACTIONS_MAX]


def _says(there: object, wanted: object) -> bool:
    """What is there has all that is wanted; a broker may add fields of its own."""
    if not isinstance(wanted, Mapping):
        return there == wanted
    return isinstance(there, Mapping) and all(there.get(key) == value for key, value in wanted.items())


def _grants(spec: ManagedLedgerSpec, there: NamespaceState) -> list[NamespaceAction]:
    """Where roles are declared, others have nothing; where none is, what somebody granted is left alone."""
    wanted = grants(spec)
    if not wanted:
        return []
    found: list[NamespaceAction] = []
    for role in sorted(wanted.keys() | there.grants.keys()):
        actions = wanted.get(role, ())
        if tuple(sorted(there.grants.get(role, ()))) != actions:
            found.append(Grant(spec.namespace, role, actions))
    admins = tuple(sorted(entry.role for entry in spec.access if AccessAction.ADMIN in entry.actions))
    if tuple(sorted(there.admins)) != admins:
        found.append(SetAdmins(spec.namespace, admins))
    return found


def to_load(spec: ManagedLedgerSpec, there: NamespaceState) -> list[LoadTopic]:
    """Declared topics of which only what is stored is known; some at a time."""
    known = [(topic.name, there.topics[topic.name]) for topic in spec.topics if topic.name in there.topics]
    found = [LoadTopic(spec.namespace, name, seen.partitions) for name, seen in known if not seen.loaded]
    return found[:LOADS_MAX]


def _of_topic(namespace: str, topic: Topic, there: TopicSeen | None) -> list[NamespaceAction]:
    found: list[NamespaceAction] = []
    if there is None:
        found.append(CreateTopic(namespace, topic.name, topic.partitions))
    elif 0 < there.partitions < topic.partitions:
        found.append(GrowTopic(namespace, topic.name, topic.partitions))
    known = {} if there is None else there.cursors
    for cursor in topic.cursors:
        if cursor.name not in known:
            earliest = cursor.initial_position is InitialPosition.EARLIEST
            found.append(CreateCursor(namespace, topic.name, cursor.name, earliest))
    return found


def contradictions(spec: ManagedLedgerSpec, there: NamespaceState) -> list[str]:
    """Declared topics that exist otherwise and cannot be made as declared, with what to do."""
    found = []
    for topic in spec.topics:
        known = there.topics.get(topic.name)
        if known is None:
            continue
        if (known.partitions == 0) != (topic.partitions == 0):
            kind = "has no partitions" if known.partitions == 0 else f"has {known.partitions} partitions"
            found.append(f"topic {topic.name} {kind} and {topic.partitions} are declared: it cannot be turned")
        elif known.partitions > topic.partitions:
            found.append(
                f"topic {topic.name} has {known.partitions} partitions, {topic.partitions} are declared: raise it"
            )
    return found
