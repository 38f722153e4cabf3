"""Decides whether running children may change to another metadata store: only if that is the same cluster. Pure.

Brokers that start on another store serve empty topics, and bookies refuse to start. So *unknown* blocks the change,
too: the children keep the present store, and everything else of the resource is still reconciled.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from quire_operator.api.bookie import Bookie
from quire_operator.api.conditions import Condition
from quire_operator.api.shared import MetadataStore
from quire_operator.builders.naming import ACCEPT_METADATA_ANNOTATION
from quire_operator.plan.actions import Emit

UNREACHABLE, OTHER_CLUSTER, UNVERIFIED = "MetadataTargetUnreachable", "OtherCluster", "MetadataTargetUnverified"


@dataclass(frozen=True, slots=True)
class StoreAnswer:
    """The response of one etcd member."""

    cluster_id: str | None = None
    """The id of the cluster in its store; empty if there is no cluster in it, None if it is not known."""
    error: str = ""
    """Why the id is not known."""


@dataclass(frozen=True, slots=True)
class ObservedTarget:
    """A declared metadata store that is not the one that the running children use."""

    present: MetadataStore
    """The store that the children use."""
    wanted: MetadataStore
    """The store that the spec declares."""
    present_answers: Mapping[str, StoreAnswer] = field(default_factory=dict)
    """By endpoint of the present store."""
    wanted_answers: Mapping[str, StoreAnswer] = field(default_factory=dict)
    """By endpoint of the declared store."""
    accepted: bool = False
    """An administrator declared, by annotation, that the declared endpoints are the same cluster."""


def blocker(target: ObservedTarget | None) -> tuple[str, str] | None:
    """Return reason and message if the children must keep the present store. None if they may follow the spec.

    An endpoint that the children do not use yet must report the id of their cluster; of the others, one must respond.
    An acceptance by an administrator replaces only an unknown id, never one that differs.
    """
    if target is None:
        return None
    found = {answer.cluster_id for answer in target.present_answers.values() if answer.cluster_id}
    ours = found.pop() if len(found) == 1 else None
    answers = target.wanted_answers
    others = [
        f"{endpoint} is the store of " + (f"cluster {answer.cluster_id}" if answer.cluster_id else "no cluster")
        for endpoint, answer in answers.items()
        if answer.cluster_id is not None and (not answer.cluster_id or ours not in (None, answer.cluster_id))
    ]
    if not others and ours is None and len(ids := {a.cluster_id for a in answers.values() if a.cluster_id}) > 1:
        others = [f"the endpoints are the stores of several clusters ({', '.join(sorted(ids))})"]
    if others:
        return OTHER_CLUSTER, _blocked(target, others, "correct spec.metadata.endpoints of the Bookie", ours)
    if target.accepted:
        return None
    silent = {endpoint: answer.error for endpoint, answer in answers.items() if answer.cluster_id is None}
    added = set(answers) - set(target.present.endpoints)
    if silent.keys() & added or len(silent) == len(answers):
        problems = [f"{endpoint}: {error}" for endpoint, error in silent.items()]
        return UNREACHABLE, _blocked(
            target, problems, f"correct spec.metadata of the Bookie, {_accepting(target)}", ours
        )
    if ours is None:
        problems = [
            f"{endpoint}: {answer.error or answer.cluster_id or 'no cluster'}"
            for endpoint, answer in target.present_answers.items()
        ]
        remedy = f"restore the present store, {_accepting(target)}"
        return UNVERIFIED, _blocked(target, ["the present store does not report its cluster", *problems], remedy, ours)
    return None


def with_store_in_effect(pool: Bookie, target: ObservedTarget | None) -> Bookie:
    """Return the pool with the metadata store that its children, or its brokers, may use now."""
    if target is None or blocker(target) is None:
        return pool
    return pool.model_copy(update={"spec": pool.spec.model_copy(update={"metadata": target.present})})


def blocked_events(before: Iterable[Condition], target: ObservedTarget | None) -> list[Emit]:
    """Return an event when a change begins to be blocked; afterwards the condition shows it."""
    found = blocker(target)
    if found is None or any(one.type == "Stalled" and one.reason == found[0] for one in before):
        return []
    return [Emit(*found, True)]


def accepts(annotations: Mapping[str, str], wanted: MetadataStore) -> bool:
    """Return whether the annotation names exactly the declared endpoints, so that a later typo is not accepted."""
    named = {part.strip() for part in annotations.get(ACCEPT_METADATA_ANNOTATION, "").split(",")}
    return named == set(wanted.endpoints)


def _accepting(target: ObservedTarget) -> str:
    value = ",".join(target.wanted.endpoints)
    return f"or, if it is the same cluster, annotate the Bookie with {ACCEPT_METADATA_ANNOTATION}={value}"


def _blocked(target: ObservedTarget, problems: list[str], remedy: str, ours: str | None) -> str:
    kept = ",".join(target.present.endpoints) + (f" of cluster {ours}" if ours is not None else "")
    return f"the pods keep the metadata store {kept}: {'; '.join(problems)}; {remedy}"
