"""Finds the declared topics, cursors and policies that a namespace lacks. Pure.

Existing topics are never deleted: a topic that is not declared is left alone, and partitions are never removed.
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
    Replication,
    Retention,
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
from quire_operator.plan.ledger_observation import NamespaceState, ObservedTopic

ACTIONS = {AccessAction.PRODUCE: "produce", AccessAction.CONSUME: "consume"}
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
"""In one reconciliation: thousands of cursors are created over several, each of which writes a status."""


def policies(spec: ManagedLedgerSpec) -> dict[str, Any]:
    """Return the policies of the namespace by path, in Pulsar's format; only those that the spec sets."""
    found = storage_policies(spec.replication, spec.retention, spec.backlog_quota)
    if spec.offload is not None:
        found["offloadPolicies"] = offload_policies(spec.offload)
    return found


def storage_policies(
    replication: Replication | None, retention: Retention, backlog_quota: BacklogQuota | None
) -> dict[str, Any]:
    """Return the policies about stored data by path; only those that are set."""
    found: dict[str, Any] = {}
    if replication is not None:
        found["persistence"] = {
            "bookkeeperEnsemble": replication.ensemble,
            "bookkeeperWriteQuorum": replication.write_quorum,
            "bookkeeperAckQuorum": replication.ack_quorum,
            "managedLedgerMaxMarkDeleteRate": 0.0,
        }
    if retention.time is not None and retention.size is not None:
        found["retention"] = {
            "retentionTimeInMinutes": retention_minutes(retention.time),
            "retentionSizeInMB": retention_mb(retention.size),
        }
    if retention.ttl is not None:
        found["messageTTL"] = _seconds(retention.ttl)
    return found if backlog_quota is None else found | _backlog_quotas(backlog_quota)


def offload_policies(offload: Offload) -> dict[str, Any]:
    """Return where brokers find offloaded ledgers, and when the bookies' copies are deleted.

    There are no thresholds: the offload job selects the ledgers. Empty values are included, so that they replace former
    ones.
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
    """Return the path of a kind of backlog quota."""
    return f"backlogQuota?backlogQuotaType={kind}"


def _backlog_quotas(quota: BacklogQuota) -> dict[str, Any]:
    """Return both kinds, so that one that is not declared is no limit, even if it was before or is a broker default."""
    limits = {
        "limitSize": -1 if quota.size is None else quantity_bytes(quota.size),
        "limitTime": -1 if quota.time is None else _seconds(quota.time),
    }
    return {backlog_quota_path(kind): limits | {"policy": _BACKLOG_POLICIES[quota.policy]} for kind in BACKLOG_KINDS}


def _seconds(duration: str) -> int:
    """Return whole seconds, rounded up: never less than requested."""
    return -(-duration_ms(duration) // 1000)


def isolation_name(namespace: str) -> str:
    """Return the name of the isolation policy. `~` replaces the slash, as it never occurs in a namespace."""
    return namespace.replace("/", "~")


def isolation(namespace: str, hosts: str) -> dict[str, Any]:
    """Return the policy that only brokers with a matching host serve the namespace; one running broker is enough."""
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
    """Return the actions of each role in Pulsar's terms, which have none for administrators of a namespace."""
    return {
        entry.role: tuple(sorted(ACTIONS[action] for action in entry.actions if action in ACTIONS))
        for entry in spec.access
    }


def retention_minutes(time: str) -> int:
    """Return whole minutes, rounded up: never less than requested. -1 means forever."""
    return -1 if time == "forever" else -(-duration_ms(time) // 60_000)


def retention_mb(size: str) -> int:
    """Return MiB, which Pulsar calls MB, rounded up. -1 means unbounded."""
    return -1 if size == "unbounded" else -(-quantity_bytes(size) // 2**20)


def missing(spec: ManagedLedgerSpec, there: NamespaceState, hosts: str) -> list[NamespaceAction]:
    """Return the actions that create missing objects, in a feasible order; at most `ACTIONS_MAX`.

    `hosts`: pattern of the brokers that may serve the namespace. The isolation policy is set before the namespace
    exists, so that no other broker can take its topics.
    """
    found: list[NamespaceAction] = []
    wanted_isolation = isolation(spec.namespace, hosts)
    if there.isolation != wanted_isolation:
        found.append(SetIsolation(isolation_name(spec.namespace), wanted_isolation))
    if not there.exists:
        found.append(CreateNamespace(spec.namespace))
    found += _grants(spec, there)
    for path, wanted in policies(spec).items():
        if not says(there.policies.get(path), wanted):
            found.append(SetPolicy(spec.namespace, path, wanted))
    for topic in spec.topics:
        found += of_topic(spec.namespace, topic, there.topics.get(topic.name))
    return found[:ACTIONS_MAX]


def says(there: object, wanted: object) -> bool:
    """Return whether the existing policy has all wanted fields; a broker may add its own."""
    if not isinstance(wanted, Mapping):
        return there == wanted
    return isinstance(there, Mapping) and all(there.get(key) == value for key, value in wanted.items())


def _grants(spec: ManagedLedgerSpec, there: NamespaceState) -> list[NamespaceAction]:
    """Return changes of grants. If the spec declares roles, all others are revoked; if not, grants are left alone."""
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
    """Return loads of declared topics that no broker has loaded; at most LOADS_MAX at a time."""
    known = [(one.name, there.topics[one.name]) for one in spec.topics if one.name in there.topics]
    idle = [(name, topic) for name, topic in known if not topic.loaded and not topic.silent]
    found = [LoadTopic(spec.namespace, name, topic.partitions) for name, topic in idle]
    return found[:LOADS_MAX]


def of_topic(namespace: str, topic: Topic, there: ObservedTopic | None) -> list[NamespaceAction]:
    """Return the actions that create a topic, its further partitions, and its cursors, as far as they are missing."""
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
    """Return errors for existing topics that contradict their declaration, with the remedy."""
    found = [contradiction(topic, there.topics.get(topic.name)) for topic in spec.topics]
    return [one for one in found if one is not None]


def contradiction(topic: Topic, known: ObservedTopic | None) -> str | None:
    """Return the error if an existing topic contradicts its declaration, with the remedy; None otherwise."""
    if known is None:
        return None
    if (known.partitions == 0) != (topic.partitions == 0):
        kind = "has no partitions" if known.partitions == 0 else f"has {known.partitions} partitions"
        return (
            f"topic {topic.name} {kind}, but {topic.partitions} are declared: a topic cannot be converted; change "
            "the declaration, or delete the topic"
        )
    if known.partitions > topic.partitions:
        return (
            f"topic {topic.name} has {known.partitions} partitions, but {topic.partitions} are declared: "
            f"partitions cannot be removed; declare {known.partitions} or more"
        )
    return None
