"""Plans a reconciliation of a `Topic`: its partitions, subscriptions and schema. Pure.

Partitions only grow, and a topic is never converted: what contradicts the declaration is reported, not changed.
"""

from dataclasses import dataclass

from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.managed_ledger_spec import Topic
from quire_operator.api.topic import TopicResource, TopicStatus
from quire_operator.plan.actions import CreateCursor, CreateTopic, DeleteTopic, LoadTopic, RegisterSchema
from quire_operator.plan.declared import Case, Decision, Difference, Removal, Surroundings, decide, rendered
from quire_operator.plan.ledger_observation import NamespaceState, ObservedSchema, ObservedTopic
from quire_operator.plan.managed_ledger_status import largest_backlog
from quire_operator.plan.namespace import contradiction, of_topic


@dataclass(frozen=True, slots=True)
class TopicObservation:
    """A Topic, observed once."""

    resource: TopicResource
    around: Surroundings
    state: NamespaceState | None
    """Its namespace; None if no broker responded."""
    schema: ObservedSchema | None = None
    """Of the declared schema; None if none is declared, or the namespace does not exist."""


def namespace_of(resource: TopicResource, ledger: ManagedLedger) -> str:
    """Return the tenant/namespace of a topic."""
    return resource.spec.namespace or ledger.spec.namespace


def declared_by_ledger(resource: TopicResource, ledger: ManagedLedger) -> str | None:
    """Return the ManagedLedger if its own spec declares the topic: its declaration wins."""
    ours = namespace_of(resource, ledger) == ledger.spec.namespace
    if ours and any(topic.name == resource.name for topic in ledger.spec.topics):
        return f"ManagedLedger {ledger.meta.namespace}/{ledger.meta.name} (spec.topics)"
    return None


def plan_topic(observed: TopicObservation) -> tuple[Decision, TopicStatus]:
    """Return the decision and the status after it."""
    resource, ledger, state = observed.resource, observed.around.ledger, observed.state
    name = resource.name
    namespace = None if ledger is None else namespace_of(resource, ledger)
    there = None if state is None else state.topics.get(name)
    declared = Topic(name=name, partitions=resource.spec.partitions, cursors=resource.spec.subscriptions)
    against = contradiction(declared, there)
    case = Case(
        subject=f"topic {name}",
        resource=resource,
        around=observed.around,
        exists=None if state is None else there is not None,
        differences=()
        if state is None or namespace is None
        else (*_differences(namespace, declared, there), *_of_schema(namespace, resource, observed.schema)),
        fault=None if against is None else ("Contradiction", against),
        waits=_waits(namespace, state),
        removal=_removal(namespace, name, there),
        idle=()
        if namespace is None or there is None or there.loaded
        else (LoadTopic(namespace, name, there.partitions),),
    )
    decision = decide(case)
    figures = {} if there is None else _figures(there)
    if observed.schema is not None:
        figures["schema_version"] = observed.schema.version
    full = None if namespace is None else f"persistent://{namespace}/{name}"
    return decision, TopicStatus.model_validate({"topic": full, **figures, **rendered(case, decision)})


def _waits(namespace: str | None, state: NamespaceState | None) -> tuple[str, str] | None:
    if state is None or state.exists:
        return None
    return "NoNamespace", f"namespace {namespace} does not exist: declare it, e.g. as a TopicNamespace"


def _differences(namespace: str, declared: Topic, there: ObservedTopic | None) -> list[Difference]:
    """Return one difference for each missing part. Growing an existing topic moves keys, so it is no mere addition."""
    found = []
    for action in of_topic(namespace, declared, there):
        if isinstance(action, CreateTopic):
            found.append(Difference(f"topic {declared.name} does not exist", (action,), adds=True))
        elif isinstance(action, CreateCursor):
            found.append(Difference(f"subscription {action.cursor} does not exist", (action,), adds=True))
        else:
            count = 0 if there is None else there.partitions
            found.append(Difference(f"it has {count} partitions, declared are {declared.partitions}", (action,)))
    return found


def _of_schema(namespace: str, resource: TopicResource, there: ObservedSchema | None) -> list[Difference]:
    """Return the difference of a schema that is not registered. A further version is no mere addition."""
    schema = resource.spec.topic_schema
    if schema is None or there is None or there.version is not None:
        return []
    what = f"the declared schema of type {schema.type} is not registered"
    if there.newest is not None:
        what += f", the newest one is version {there.newest}"
    return [Difference(what, (RegisterSchema(namespace, resource.name, schema),), adds=there.newest is None)]


def _removal(namespace: str | None, name: str, there: ObservedTopic | None) -> Removal:
    """Return the deletion. If producers are not known the broker decides: it refuses to delete a topic in use."""
    if namespace is None or there is None:
        return Removal()
    held = f"topic {name} still has producers ({there.producers}): stop them, or set deletionPolicy to Retain"
    return Removal((DeleteTopic(namespace, name, there.partitions),), held if there.producers else None)


def _figures(there: ObservedTopic) -> dict[str, object]:
    return {
        "partitions": there.partitions,
        "producers": there.producers,
        "subscriptions": len(there.cursors),
        "backlog": largest_backlog([there]),
        "entries": there.entries,
        "size_bytes": there.size_bytes,
        "owner": there.owner,
    }
