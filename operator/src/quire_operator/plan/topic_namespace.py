"""Plans a reconciliation of a `TopicNamespace`: the namespace, its policies, and which brokers serve it. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.topic_namespace import TopicNamespace, TopicNamespaceSpec, TopicNamespaceStatus
from quire_operator.builders.broker import broker_hosts
from quire_operator.plan.actions import (
    CreateNamespace,
    DeleteEmptyNamespace,
    ForgetIsolation,
    RemovePolicy,
    SetIsolation,
    SetPolicy,
)
from quire_operator.plan.declared import Case, Decision, Difference, Removal, Surroundings, decide, rendered
from quire_operator.plan.ledger_observation import NamespaceState
from quire_operator.plan.managed_ledger_status import largest_backlog
from quire_operator.plan.namespace import isolation, isolation_name, says, storage_policies

SHOWN_MAX = 200


@dataclass(frozen=True, slots=True)
class TopicNamespaceObservation:
    """A TopicNamespace, observed once."""

    resource: TopicNamespace
    around: Surroundings
    state: NamespaceState | None
    """None if no broker responded."""


def policies(spec: TopicNamespaceSpec) -> dict[str, Any]:
    """Return the declared policies by path, in Pulsar's format."""
    found = storage_policies(spec.replication, spec.retention, spec.backlog_quota)
    if spec.schema_compatibility is not None:
        # `BackwardTransitive` is BACKWARD_TRANSITIVE.
        found["schemaCompatibilityStrategy"] = re.sub(r"(?<!^)(?=[A-Z])", "_", spec.schema_compatibility).upper()
    if spec.deduplication is not None:
        found["deduplication"] = spec.deduplication
    if spec.auto_topic_creation is not None:
        found["autoTopicCreation"] = {"allowAutoTopicCreation": spec.auto_topic_creation}
    return found


def plan_topic_namespace(observed: TopicNamespaceObservation) -> tuple[Decision, TopicNamespaceStatus]:
    """Return the decision and the status after it."""
    resource, state, ledger = observed.resource, observed.state, observed.around.ledger
    compared = () if state is None or ledger is None else tuple(_differences(resource, ledger, state))
    case = Case(
        subject=f"namespace {resource.spec.namespace}",
        resource=resource,
        around=observed.around,
        exists=None if state is None else state.exists,
        differences=compared,
        removal=_removal(resource, state),
    )
    decision = decide(case)
    topics = None if state is None or not state.exists else state.topics
    status = TopicNamespaceStatus.model_validate(
        {
            "topics": None if topics is None else len(topics),
            "backlog": None if topics is None else largest_backlog(topics.values()),
            "size_bytes": None if topics is None else sum(topic.size_bytes for topic in topics.values()),
            "policies": _set_by_us(resource, decision, synced=state is not None and not compared),
            **rendered(case, decision),
        }
    )
    return decision, status


def _set_by_us(resource: TopicNamespace, decision: Decision, *, synced: bool) -> tuple[str, ...]:
    """Return the policies to remove once they are not declared; written before any of them is set."""
    if not decision.managed:
        return ()
    declared = set(policies(resource.spec))
    return tuple(sorted(declared if synced else declared | set(resource.status.policies)))


def _differences(resource: TopicNamespace, ledger: ManagedLedger, there: NamespaceState) -> list[Difference]:
    name, found = resource.spec.namespace, list[Difference]()
    served = isolation(name, broker_hosts(ledger))
    if there.isolation != served:
        what = f"brokers of ManagedLedger {ledger.meta.name} are not set to serve {name}"
        action = SetIsolation(isolation_name(name), served)
        found.append(Difference(what, (action,), adds=there.isolation is None))
    if not there.exists:
        found.append(Difference(f"namespace {name} does not exist", (CreateNamespace(name),), adds=True))
    wanted = policies(resource.spec)
    for path, value in wanted.items():
        known = there.policies.get(path)
        if not says(known, value):
            what = f"{path} is {_shown(known)}, declared is {_shown(value)}"
            found.append(Difference(what, (SetPolicy(name, path, value),), adds=known is None))
    for path in resource.status.policies:
        if path not in wanted and there.policies.get(path) is not None:
            what = f"{path} is {_shown(there.policies[path])}, none is declared"
            found.append(Difference(what, (RemovePolicy(name, path),)))
    return found


def _shown(value: object) -> str:
    """Return a policy as a short text."""
    if value is None:
        return "not set"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {one}" for key, one in sorted(value.items()))[:SHOWN_MAX] + "}"
    return str(value)[:SHOWN_MAX]


def _removal(resource: TopicNamespace, state: NamespaceState | None) -> Removal:
    name = resource.spec.namespace
    count = 0 if state is None else len(state.topics)
    held = f"namespace {name} still has topics ({count}): delete them, or set deletionPolicy to Retain"
    release = () if state is None or state.isolation is None else (ForgetIsolation(isolation_name(name)),)
    return Removal((DeleteEmptyNamespace(name),), held if count else None, release)
