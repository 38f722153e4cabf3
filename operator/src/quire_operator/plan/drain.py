"""Fewer bookies: one at a time, the last one first, after the auditor says that it is empty. Pure.

    Copying -> Verifying -> Shrinking -> RemovingCookie -> ReleasingClaims -> done

Until Shrinking it can be called off by raising `replicas`. Emptying itself (read-only, copying, checking) is the
auditor's, which goes on with the operator away; the operator says what it wants, again in each pass, and waits.
Nothing is ever forced: what stands in the way is said, and waited for.
"""

from dataclasses import replace

from quire_operator.api.bookie_spec import ScaleDownStrategy
from quire_operator.api.bookie_storage import ReclaimPolicy
from quire_operator.api.operations import Operation, OperationType, Step
from quire_operator.builders.naming import ordinal_of
from quire_operator.plan.actions import Action, CancelDrain, Decommission, ReleaseClaim
from quire_operator.plan.operations import Move, begun, moved, waiting
from quire_operator.plan.replicas import last_pod, replicas_there
from quire_operator.plan.seen import ClusterSeen, PoolSeen


def is_wanted(seen: PoolSeen) -> bool:
    """Fewer bookies are asked for than there are."""
    return seen.resource.spec.replicas < replicas_there(seen)


def blocker(seen: PoolSeen) -> tuple[str, str] | None:
    """Why no bookie may leave now, as a reason and a sentence with what to do; None: one may."""
    spec = seen.resource.spec
    if spec.scale_down.strategy is ScaleDownStrategy.BLOCK:
        return (
            "StrategyBlock",
            f"scaleDown.strategy is Block: set replicas to {replicas_there(seen)}, or Drain",
        )
    cluster = seen.cluster
    if cluster is None:
        return (
            "MetadataUnreachable",
            "nobody could say whether everything is replicated; waiting for the store",
        )
    pod = last_pod(seen)
    bookie = seen.id_of(pod)
    if bookie is None:
        return "BookieUnknown", f"{pod} never said which bookie it is; bring it up, so that it can be emptied"
    if cluster.auditor is None or not cluster.recovery_enabled:
        return "AutoRecoveryOff", "nobody would copy its ledgers: set autoRecovery.replicas above 0 and switch it on"
    if cluster.under_replicated:
        return "UnderReplicated", f"{cluster.under_replicated} ledgers lack a replica: waiting until they have them"
    if cluster.unaccepted:
        return "LedgersUnreadable", loss_to_accept(cluster, bookie)
    return below_ensemble(seen, bookie, frozenset(drain.bookie for drain in cluster.drains))


def loss_to_accept(cluster: ClusterSeen, bookie: str) -> str:
    """What stands in the way of a bookie that leaves, and whose word ends it."""
    return (
        f"{cluster.unaccepted} ledgers have entries that no replica could serve (`quire cluster unrecoverable`): bring "
        f"back who has them, or give them up: quire cluster decommission {bookie} --accept-loss LEDGER"
    )


def below_ensemble(seen: PoolSeen, bookie: str, others: frozenset[str]) -> tuple[str, str] | None:
    """Whether too few bookies would be left without this one and the `others` that leave; nobody asked: no."""
    if seen.cluster is None:
        return None
    stay = len(seen.cluster.writable - others - {bookie})
    needed = max((namespace.ensemble for namespace in seen.namespaces), default=1)
    if stay >= needed:
        return None
    names = ", ".join(sorted(one.name for one in seen.namespaces if one.ensemble == needed)) or "every ledger"
    return (
        "BelowEnsemble",
        f"{stay} writable bookies would be left, under the ensemble of {needed} of {names}: add bookies elsewhere, "
        "or lower replication.ensemble",
    )


def blocker_of(operation: Operation, seen: PoolSeen) -> tuple[str, str] | None:
    """What keeps a drain that has begun from taking the pod: its bookie was not alone in leaving, or is needed by now.

    Of bookies of several pools that began at the same time, the one goes that the auditor let go; of several of these
    the one whose id comes first. One that the auditor has wait holds nobody up: it is not taken before it was let go.
    """
    if not takes_nothing_yet(operation) or seen.cluster is None:
        return None
    bookie = operation.bookie or ""
    before = frozenset(drain.bookie for drain in seen.cluster.drains if drain.leaving and drain.bookie < bookie)
    return below_ensemble(seen, bookie, before)


def begin(seen: PoolSeen) -> Operation:
    """The drain of the last bookie; only when nothing blocks it."""
    pod = last_pod(seen)
    return begun(
        OperationType.DRAIN,
        Step.COPYING,
        seen.now_s,
        pod=pod,
        bookie=seen.id_of(pod),
        target=str(ordinal_of(pod)),
    )


def takes_nothing_yet(operation: Operation) -> bool:
    """A drain that can still be called off."""
    return operation.type is OperationType.DRAIN and operation.step in (Step.COPYING, Step.VERIFYING)


def advance(operation: Operation, seen: PoolSeen) -> Move:
    """One pass over a drain."""
    if takes_nothing_yet(operation) and (
        not is_wanted(seen) or _is_another(operation, seen) or _gives_way(operation, seen)
    ):
        return Move(None, (CancelDrain(operation.bookie or ""),))
    return _STEPS[operation.step](operation, seen)


def replicas_during(operation: Operation, replicas: int) -> int:
    """How many pods there are to be while a drain is at its step: the one place where the number goes down."""
    if operation.type is not OperationType.DRAIN or takes_nothing_yet(operation):
        return replicas
    return min(replicas, int(operation.target or replicas))


def _gives_way(operation: Operation, seen: PoolSeen) -> bool:
    """Others that began at the same time go first, and too few would be left without this one as well.

    All of them are read-only by now, so that each would wait for the others: whose id comes last stays, is writable
    again, and so lets the first one go. It begins anew when there is room.
    """
    if seen.cluster is None:
        return False
    bookie = operation.bookie or ""
    others = frozenset(drain.bookie for drain in seen.cluster.drains if drain.leaving and drain.bookie != bookie)
    before = frozenset(other for other in others if other < bookie)
    with_those_behind = replace(seen.cluster, writable=seen.cluster.writable | (others - before))
    return bool(before) and below_ensemble(replace(seen, cluster=with_those_behind), bookie, before) is not None


def _is_another(operation: Operation, seen: PoolSeen) -> bool:
    """The pod got new volumes, and so another bookie, which nobody emptied."""
    return seen.id_of(operation.pod or "") not in (None, operation.bookie)


def _copying(operation: Operation, seen: PoolSeen) -> Move:
    wish = Decommission(operation.bookie or "")
    drain = None if seen.cluster is None else seen.cluster.drain_of(wish.bookie)
    if seen.cluster is None:
        return Move(waiting(operation, "the metadata store cannot be reached"), (wish,))
    if wish.bookie not in seen.cluster.known:
        return _forgotten(operation, seen)
    if drain is None:
        return Move(waiting(operation, "waiting for the auditor to take notice"), (wish,))
    if not drain.emptied or drain.ledgers_left:
        left = f"{drain.ledgers_left} ledgers are still on it"
        return Move(waiting(operation, "; ".join([left, *drain.blocked_by])), (wish,))
    found = moved(operation, Step.VERIFYING, seen.now_s, "empty: waiting for a second look", empty_look=drain.look)
    return Move(found, (wish,))


def _verifying(operation: Operation, seen: PoolSeen) -> Move:
    """A second look of the auditor, after the first said empty, and nothing under-replicated anywhere.

    What is on record is the first look itself, not when we saw it: the auditor's clock may be another than ours.
    """
    wish: tuple[Action, ...] = (Decommission(operation.bookie or ""),)
    if seen.cluster is not None and operation.bookie not in seen.cluster.known:
        return _forgotten(operation, seen)
    drain = None if seen.cluster is None else seen.cluster.drain_of(operation.bookie or "")
    if drain is not None and (not drain.emptied or drain.ledgers_left):
        return Move(moved(operation, Step.COPYING, seen.now_s, "it has ledgers again"), wish)
    if drain is None or not seen.fully_replicated:
        return Move(waiting(operation, "not certain that every ledger has its replicas elsewhere"), wish)
    if operation.empty_look in (None, drain.look):
        noted = operation if operation.empty_look else operation.model_copy(update={"empty_look": drain.look})
        return Move(noted, wish)  # without one, that of an earlier version of the operator
    if _is_silent(operation, seen):
        return Move(waiting(operation, f"{operation.pod} does not say which bookie it is"), wish)
    needed = blocker_of(operation, seen)
    if needed is not None:
        return Move(waiting(operation, needed[1]), wish)
    return Move(moved(operation, Step.SHRINKING, seen.now_s, "stopping its pod"), wish)


def _forgotten(operation: Operation, seen: PoolSeen) -> Move:
    """Its process ended when it was empty, and the auditor took it for stopped: it can only be taken away now."""
    if not seen.fully_replicated:
        return Move(waiting(operation, "it is forgotten; not certain that every ledger has its replicas elsewhere"))
    if _is_silent(operation, seen):
        return Move(waiting(operation, f"{operation.pod} does not say which bookie it is"))
    return Move(moved(operation, Step.SHRINKING, seen.now_s, "it is forgotten already: stopping its pod"))


def _is_silent(operation: Operation, seen: PoolSeen) -> bool:
    """Something serves in the pod, and it may be another bookie by now."""
    pod = seen.pod(operation.pod or "")
    return pod is not None and pod.ready and pod.name not in seen.bookies


def _shrinking(operation: Operation, seen: PoolSeen) -> Move:
    """The smaller number is applied with the children of this pass; here only whether the pod is gone."""
    if seen.pod(operation.pod or "") is not None:
        return Move(operation)
    if seen.stateful_set is None or seen.stateful_set.replicas > int(operation.target or 0):
        return Move(operation)
    return Move(moved(operation, Step.REMOVING_COOKIE, seen.now_s, "waiting for the auditor to forget the bookie"))


def _removing_cookie(operation: Operation, seen: PoolSeen) -> Move:
    wish = Decommission(operation.bookie or "")
    if seen.cluster is None:
        return Move(waiting(operation, "the metadata store cannot be reached"))
    if wish.bookie in seen.cluster.known:
        return Move(operation, (wish,))
    return Move(moved(operation, Step.RELEASING_CLAIMS, seen.now_s))


def _releasing(operation: Operation, seen: PoolSeen) -> Move:
    """Its claims go, so that a pod of this ordinal begins with empty volumes; the volumes themselves by policy."""
    found = releases(operation, seen)
    return Move(operation if found else None, found)


def releases(operation: Operation, seen: PoolSeen) -> tuple[ReleaseClaim, ...]:
    """The claims of the bookie that left."""
    keep = seen.resource.spec.storage.reclaim_policy is ReclaimPolicy.RETAIN
    claims = [claim for claim in seen.claims if claim.pod == operation.pod]
    return tuple(ReleaseClaim(claim.name, claim.uid, claim.volume, keep) for claim in claims)


_STEPS = {
    Step.COPYING: _copying,
    Step.VERIFYING: _verifying,
    Step.SHRINKING: _shrinking,
    Step.REMOVING_COOKIE: _removing_cookie,
    Step.RELEASING_CLAIMS: _releasing,
}
