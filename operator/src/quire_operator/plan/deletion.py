"""A pool that is deleted: what is kept, and what must go first. Pure.

By default the claims stay, and so does the data: a Bookie of the same name takes them up again. Kubernetes collects the
other children. There is one finalizer, and while it stays the status says why.
"""

from quire_operator.api import GROUP
from quire_operator.api.bookie_storage import ReclaimPolicy
from quire_operator.plan.actions import Action, DeleteStatefulSet, ReleaseClaim, SetFinalizer
from quire_operator.plan.seen import PoolSeen

FINALIZER = f"{GROUP}/bookie"


def plan_deletion(seen: PoolSeen) -> tuple[tuple[Action, ...], str | None]:
    """What to do in this pass, and why the resource is still there."""
    if FINALIZER not in seen.resource.meta.finalizers:
        return (), None
    users = sorted(namespace.name for namespace in seen.namespaces if namespace.uses_this_pool)
    if users:
        return (), f"ManagedLedger {', '.join(users)} still has this pool as its bookieRef: delete or change it first"
    if seen.resource.spec.storage.reclaim_policy is ReclaimPolicy.RETAIN:
        return (SetFinalizer(False),), None
    there = seen.stateful_set
    if there is not None:
        stop = () if there.deleting else (DeleteStatefulSet(there.name, there.uid, orphan=False),)
        return stop, "stopping its pods"
    if seen.pods:
        return (), f"waiting for {len(seen.pods)} pods to end"
    if seen.claims:
        claims = tuple(ReleaseClaim(claim.name, claim.uid, claim.volume, keep_volume=False) for claim in seen.claims)
        return claims, f"deleting {len(claims)} claims, as storage.reclaimPolicy says"
    return (SetFinalizer(False),), None
