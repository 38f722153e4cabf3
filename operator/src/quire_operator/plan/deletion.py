"""Plans the deletion of a pool: which data are kept, and which objects must be removed first. Pure.

By default the claims and their data stay: a new Bookie of the same name uses them again. An operation in progress is
therefore brought to a state that allows this: a drain that has removed nothing is cancelled; the claims of a bookie
that was found empty or was lost are removed. The auditor is requested to remove the cookies of lost bookies, because a
new Bookie resource would not know them; it does so once no ledger names them. Kubernetes collects the other children.
There is one finalizer; while it is present, the status shows why.

A deletion with `--cascade=orphan` waits for nothing that its pods would be needed for, because these keep running, and
deletes none of them. A new Bookie of the same name adopts them: this is how a blocked deletion is undone.

Ledgers of every namespace of the cluster are spread over the bookies of all its pools. While namespaces of other pools
exist, a deleted pool keeps serving so that it can be drained: `needed_by_others`.
"""

from dataclasses import dataclass

from quire_operator.api import GROUP
from quire_operator.api.bookie_storage import ReclaimPolicy
from quire_operator.api.operations import Operation, OperationType, Step
from quire_operator.plan import drain, replace
from quire_operator.plan.actions import (
    Action,
    CancelDrain,
    Decommission,
    DeletePod,
    DeleteStatefulSet,
    ReleaseClaim,
    SetFinalizer,
)
from quire_operator.plan.bookie_status import lost_bookies
from quire_operator.plan.observation import PoolObservation
from quire_operator.plan.operations import seconds_of

FINALIZER = f"{GROUP}/bookie"
WAIT_FOR_METADATA_S = 300.0
"""How long to wait for an unreachable metadata store, which may have been deleted as well."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """The actions of this reconciliation, why the resource still exists, and the operation to record."""

    actions: tuple[Action, ...]
    held: str | None
    operation: Operation | None = None


def plan_deletion(observed: PoolObservation) -> Leaving:
    """Plan one reconciliation of a pool that is being deleted."""
    operation = observed.resource.status.operation
    if FINALIZER not in observed.resource.meta.finalizers:
        return Leaving((), None, operation)
    stays = _leaves_nothing_yet(operation)
    if operation is not None and stays and observed.cluster is not None:
        why = f"{operation.bookie} stays: cancelling its drain"
        return Leaving((CancelDrain(operation.bookie or ""),), why)
    unrecorded = _unrecorded(observed, operation)
    if (
        unrecorded is not None
        and observed.now_s - seconds_of(observed.resource.meta.deletion_timestamp or "") < WAIT_FOR_METADATA_S
    ):
        return Leaving((), f"{unrecorded}: waiting for the metadata store to record this", operation)
    users = sorted(namespace.name for namespace in observed.namespaces if namespace.uses_this_pool)
    if observed.resource.meta.keeps_children:
        return Leaving((*_forgotten(observed, operation), SetFinalizer(False)), None, operation)
    if users:
        why = f"ManagedLedger {', '.join(users)} still has this pool as its bookieRef: delete or change it first"
        return Leaving((), f"{why}; {_undo(observed)}", operation)
    actions, held = _going(observed, operation)
    return Leaving(actions, held, operation)


def needed_by_others(observed: PoolObservation) -> str | None:
    """Return why a deleted pool is still reconciled as before: namespaces of other pools have ledgers on its bookies.

    None if it is not being deleted, if its children are kept, if its own ManagedLedgers hold it (which are reported
    first), if the cluster knows none of its bookies, or if there are no other namespaces. If the metadata store is
    unreachable, the last known bookies count.
    """
    if observed.resource.meta.deletion_timestamp is None or FINALIZER not in observed.resource.meta.finalizers:
        return None
    if observed.resource.meta.keeps_children or any(one.uses_this_pool for one in observed.namespaces):
        return None
    ours = {bookie.id for bookie in observed.bookies.values()} | set(observed.known_ids.values())
    left = sorted(ours if observed.cluster is None else ours & observed.cluster.known)
    others = sorted(namespace.name for namespace in observed.namespaces)
    if not left or not others:
        return None
    named = ", ".join(others[:5]) + (", ..." if len(others) > 5 else "")
    return (
        f"{len(left)} bookies of this pool may hold ledgers of ManagedLedger {named} of other pools with the "
        f"same etcd: set replicas to 0 to drain them, or delete these ManagedLedgers first; {_undo(observed)}"
    )


def _undo(observed: PoolObservation) -> str:
    """Return how an administrator undoes the deletion, which Kubernetes itself cannot."""
    return (
        f"to undo the deletion, save the resource, run `kubectl delete bookie {observed.resource.meta.name} "
        "--cascade=orphan`, and create it again: its pods keep running"
    )


def _unrecorded(observed: PoolObservation, operation: Operation | None) -> str | None:
    """Return what an unreachable metadata store must still record: a recreated pool would not know it."""
    if observed.cluster is not None:
        return None
    if _leaves_nothing_yet(operation):
        return "the drain of a bookie must be cancelled"
    lost = _lost(observed, operation)
    return f"{', '.join(lost)} was replaced and its cookie must be removed" if lost else None


def _lost(observed: PoolObservation, operation: Operation | None) -> tuple[str, ...]:
    """Return ids whose volumes were released; if the metadata store responded, only those that it still knows."""
    found = {lost.id for lost in lost_bookies(observed)}
    gives_up = operation is not None and operation.type is OperationType.REPLACE and operation.step is not Step.COPYING
    if operation is not None and gives_up and operation.bookie is not None:
        found.add(operation.bookie)
    found -= {bookie.id for bookie in observed.bookies.values()}  # volumes that reappeared with their data
    return tuple(sorted(found if observed.cluster is None else found & observed.cluster.known))


def _leaves_nothing_yet(operation: Operation | None) -> bool:
    """Return whether a bookie is being drained or replaced and none of its volumes has been released."""
    return operation is not None and (drain.takes_nothing_yet(operation) or operation.step is Step.COPYING)


def _going(observed: PoolObservation, operation: Operation | None) -> tuple[tuple[Action, ...], str | None]:
    """Return the final actions, and why the pool still exists. No namespace needs it, and no drain is undecided."""
    there = observed.stateful_set
    # An expansion deletes the StatefulSet around its pods: no controller would delete them.
    orphans = tuple(DeletePod(pod.name, pod.uid) for pod in observed.pods if there is None and not pod.deleting)
    if observed.resource.spec.storage.reclaim_policy is ReclaimPolicy.RETAIN:
        orphaning = operation is not None and operation.step is Step.ORPHANING
        if (observed.pods and there is None) or (there is not None and there.deleting and orphaning):
            return orphans, f"waiting for {len(observed.pods)} pods without a StatefulSet to terminate"
        return (*_forgotten(observed, operation), SetFinalizer(False)), None
    if there is not None:
        stop = () if there.deleting else (DeleteStatefulSet(there.name, there.uid, orphan=False),)
        return stop, "stopping its pods"
    if observed.pods:
        return orphans, f"waiting for {len(observed.pods)} pods to terminate"
    if observed.claims:
        claims = tuple(
            ReleaseClaim(claim.name, claim.uid, claim.volume, keep_volume=False) for claim in observed.claims
        )
        return claims, f"deleting {len(claims)} claims, as storage.reclaimPolicy is Delete"
    return (SetFinalizer(False),), None


def _forgotten(observed: PoolObservation, operation: Operation | None) -> tuple[Action, ...]:
    """Return what a new pool of this name would not know to do: remove cookies of lost bookies, and released claims."""
    forgotten = () if observed.cluster is None else tuple(map(Decommission, _lost(observed, operation)))
    return (*forgotten, *_released(observed, operation))


def _released(observed: PoolObservation, operation: Operation | None) -> tuple[Action, ...]:
    """Return deletions of claims that an operation had released: a new pool of this name must not reuse them."""
    if operation is None or _leaves_nothing_yet(operation):
        return ()
    if operation.type is OperationType.DRAIN:
        return drain.releases(operation, observed)
    return replace.releases(operation, observed) if operation.type is OperationType.REPLACE else ()
