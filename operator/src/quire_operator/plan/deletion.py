"""A pool that is deleted: what is kept, and what must go first. Pure.

By default the claims stay, and so does the data: a Bookie of the same name takes them up again. So an operation that is
under way is brought to where that works: a bookie that was to leave stays, one that was found empty or was lost leaves
nothing behind. The auditor is told to forget the lost ones, since who comes after us knows nothing of them; it does so
once no ledger names them. Kubernetes collects the other children. There is one finalizer, and while it stays the status
says why.

Ledgers of every namespace of the cluster lie on the bookies of all its pools. While namespaces of other pools are there
a deleted pool serves on as any other does, so that it can be drained: `needed_by_others`.
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
from quire_operator.plan.operations import seconds_of
from quire_operator.plan.seen import PoolSeen

FINALIZER = f"{GROUP}/bookie"
PATIENCE_S = 300.0
"""For a metadata store that is away; it may have been deleted as well."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """What to do in this pass; why the resource is still there; and what is on record of an operation from now on."""

    actions: tuple[Action, ...]
    held: str | None
    operation: Operation | None = None


def plan_deletion(seen: PoolSeen) -> Leaving:
    """One pass over a pool that is deleted."""
    operation = seen.resource.status.operation
    if FINALIZER not in seen.resource.meta.finalizers:
        return Leaving((), None, operation)
    stays = _leaves_nothing_yet(operation)
    if operation is not None and stays and seen.cluster is not None:
        why = f"{operation.bookie} stays: calling off what was under way"
        return Leaving((CancelDrain(operation.bookie or ""),), why)
    untold = _untold(seen, operation)
    if untold is not None and seen.now_s - seconds_of(seen.resource.meta.deletion_timestamp or "") < PATIENCE_S:
        return Leaving((), f"{untold}: waiting for the metadata store, so that it is told", operation)
    users = sorted(namespace.name for namespace in seen.namespaces if namespace.uses_this_pool)
    if users:
        why = f"ManagedLedger {', '.join(users)} still has this pool as its bookieRef: delete or change it first"
        return Leaving((), why, operation)
    actions, held = _going(seen, operation)
    return Leaving(actions, held, operation)


def needed_by_others(seen: PoolSeen) -> str | None:
    """Why a pool that is deleted is looked after as before: namespaces of other pools have ledgers on its bookies.

    None: it is not deleted; or ManagedLedgers of its own hold it, which are said first; or no bookie of it is known to
    the cluster, or to nobody else's harm. Where the metadata cannot be asked, what was known last counts.
    """
    if seen.resource.meta.deletion_timestamp is None or FINALIZER not in seen.resource.meta.finalizers:
        return None
    if any(namespace.uses_this_pool for namespace in seen.namespaces):
        return None
    ours = {bookie.id for bookie in seen.bookies.values()} | set(seen.known_ids.values())
    left = sorted(ours if seen.cluster is None else ours & seen.cluster.known)
    others = sorted(namespace.name for namespace in seen.namespaces)
    if not left or not others:
        return None
    named = ", ".join(others[:5]) + (", ..." if len(others) > 5 else "")
    return (
        f"{len(left)} bookies of this pool may hold ledgers of ManagedLedger {named}, which are on other pools of the "
        "same etcd: set replicas to 0, which drains them, or delete these ManagedLedgers first"
    )


def _untold(seen: PoolSeen, operation: Operation | None) -> str | None:
    """What the metadata must still be told, which is away: whoever makes the pool anew does not know it."""
    if seen.cluster is not None:
        return None
    if _leaves_nothing_yet(operation):
        return "a bookie was to leave and stays now"
    lost = _lost(seen, operation)
    return f"{', '.join(lost)} was replaced and is to be forgotten" if lost else None


def _lost(seen: PoolSeen, operation: Operation | None) -> tuple[str, ...]:
    """Ids whose volumes were given up; where the metadata was asked, only those that it still knows."""
    found = {lost.id for lost in lost_bookies(seen)}
    gives_up = operation is not None and operation.type is OperationType.REPLACE and operation.step is not Step.COPYING
    if operation is not None and gives_up and operation.bookie is not None:
        found.add(operation.bookie)
    found -= {bookie.id for bookie in seen.bookies.values()}  # volumes that turned up again with all that was on them
    return tuple(sorted(found if seen.cluster is None else found & seen.cluster.known))


def _leaves_nothing_yet(operation: Operation | None) -> bool:
    """A bookie is to leave, or to be replaced, and nothing of it has been given up."""
    return operation is not None and (drain.takes_nothing_yet(operation) or operation.step is Step.COPYING)


def _going(seen: PoolSeen, operation: Operation | None) -> tuple[tuple[Action, ...], str | None]:
    """Nobody needs it, and no bookie of it is between staying and leaving."""
    there = seen.stateful_set
    # An expansion deletes the StatefulSet around its pods: nobody but us would end them.
    orphans = tuple(DeletePod(pod.name, pod.uid) for pod in seen.pods if there is None and not pod.deleting)
    if seen.resource.spec.storage.reclaim_policy is ReclaimPolicy.RETAIN:
        orphaning = operation is not None and operation.step is Step.ORPHANING
        if (seen.pods and there is None) or (there is not None and there.deleting and orphaning):
            return orphans, f"waiting for {len(seen.pods)} pods to end, whose StatefulSet is gone"
        forgotten = () if seen.cluster is None else tuple(map(Decommission, _lost(seen, operation)))
        return (*forgotten, *_released(seen, operation), SetFinalizer(False)), None
    if there is not None:
        stop = () if there.deleting else (DeleteStatefulSet(there.name, there.uid, orphan=False),)
        return stop, "stopping its pods"
    if seen.pods:
        return orphans, f"waiting for {len(seen.pods)} pods to end"
    if seen.claims:
        claims = tuple(ReleaseClaim(claim.name, claim.uid, claim.volume, keep_volume=False) for claim in seen.claims)
        return claims, f"deleting {len(claims)} claims, as storage.reclaimPolicy says"
    return (SetFinalizer(False),), None


def _released(seen: PoolSeen, operation: Operation | None) -> tuple[Action, ...]:
    """Claims that an operation had given up; each goes when its pod has. A pool of this name must not find them."""
    if operation is None or _leaves_nothing_yet(operation):
        return ()
    if operation.type is OperationType.DRAIN:
        return drain.releases(operation, seen)
    return replace.releases(operation, seen) if operation.type is OperationType.REPLACE else ()
