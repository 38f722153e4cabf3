"""Scales a pool down: one bookie at a time, the last one first, after the auditor found it empty. Pure.

    Copying -> Verifying -> Shrinking -> RemovingCookie -> ReleasingClaims -> done

Until Shrinking, raising `replicas` cancels it. The auditor performs the drain (read-only, copying, checking) and
continues without the operator; the operator repeats its request in each reconciliation, and waits. It never forces a
drain: it reports what blocks it, and waits.
"""

from dataclasses import replace

from quire_operator.api.bookie_spec import ScaleDownStrategy
from quire_operator.api.bookie_storage import ReclaimPolicy
from quire_operator.api.operations import Operation, OperationType, Step
from quire_operator.builders.naming import ordinal_of
from quire_operator.plan.actions import Action, CancelDrain, Decommission, ReleaseClaim
from quire_operator.plan.observation import ObservedCluster, PoolObservation
from quire_operator.plan.operations import Move, begun, moved, waiting
from quire_operator.plan.replicas import last_pod, replicas_there
from quire_operator.plan.zones import REASON, lost_zone


def is_wanted(observed: PoolObservation) -> bool:
    """Return whether fewer bookies are wanted than exist."""
    return observed.resource.spec.replicas < replicas_there(observed)


def blocker(observed: PoolObservation) -> tuple[str, str] | None:
    """Return why no bookie may be drained now, as a reason and a message with the remedy, or None."""
    spec = observed.resource.spec
    if spec.scale_down.strategy is ScaleDownStrategy.BLOCK:
        return (
            "StrategyBlock",
            f"scaleDown.strategy is Block: set replicas to {replicas_there(observed)}, or the strategy to Drain",
        )
    return copy_blocker(observed, last_pod(observed))


def copy_blocker(observed: PoolObservation, pod: str) -> tuple[str, str] | None:
    """Return why the ledgers of the bookie in this pod cannot be copied elsewhere now, or None."""
    lost = lost_zone(observed)
    if lost is not None:
        return REASON, lost.message
    cluster = observed.cluster
    if cluster is None:
        return (
            "MetadataUnreachable",
            "cannot determine whether all ledgers are fully replicated; waiting for the metadata store",
        )
    bookie = observed.id_of(pod)
    if bookie is None:
        return "BookieUnknown", f"the bookie id of {pod} was never observed; start it, so that it can be drained"
    if cluster.auditor is None or not cluster.recovery_enabled:
        return (
            "AutoRecoveryOff",
            "no auto-recovery is running to copy its ledgers: set autoRecovery.replicas above 0 and enable it",
        )
    if cluster.under_replicated:
        return (
            "UnderReplicated",
            f"{cluster.under_replicated} ledgers are under-replicated: waiting until they are repaired",
        )
    if cluster.unaccepted:
        return "LedgersUnreadable", loss_to_accept(cluster, bookie)
    return below_ensemble(observed, bookie, frozenset(drain.bookie for drain in cluster.drains))


def loss_to_accept(cluster: ObservedCluster, bookie: str) -> str:
    """Return the message for a drain that waits for unreadable ledgers, with the command that accepts the loss."""
    return (
        f"{cluster.unaccepted} ledgers have entries that no replica can serve (`quire cluster unrecoverable`): restore "
        f"a bookie that has them, or accept the loss: quire cluster decommission {bookie} --accept-loss LEDGER"
    )


def below_ensemble(observed: PoolObservation, bookie: str, others: frozenset[str]) -> tuple[str, str] | None:
    """Return why too few writable bookies would remain without this one and the draining `others`, or None.

    None also if the metadata store is unreachable.
    """
    if observed.cluster is None:
        return None
    stay = len(observed.cluster.writable - others - {bookie})
    needed = max((namespace.ensemble for namespace in observed.namespaces), default=1)
    if stay >= needed:
        return None
    names = ", ".join(sorted(one.name for one in observed.namespaces if one.ensemble == needed)) or "every ledger"
    return (
        "BelowEnsemble",
        f"{stay} writable bookies would remain, but the ensemble of {names} is {needed}: add bookies elsewhere, or "
        "lower replication.ensemble",
    )


def blocker_of(operation: Operation, observed: PoolObservation) -> tuple[str, str] | None:
    """Return why a drain that has begun may not delete the pod: a zone is lost, others drain, or the bookie is needed.

    Of the bookies of several pools that began at the same time, the one that the auditor released goes first; of
    several released ones, the one with the lowest id. A bookie that the auditor keeps waiting blocks no other one: its
    pod is not deleted before it was released.
    """
    if not takes_nothing_yet(operation) or observed.cluster is None:
        return None
    lost = lost_zone(observed)
    if lost is not None:
        return REASON, lost.message
    bookie = operation.bookie or ""
    before = frozenset(drain.bookie for drain in observed.cluster.drains if drain.leaving and drain.bookie < bookie)
    return below_ensemble(observed, bookie, before)


def begin(observed: PoolObservation) -> Operation:
    """Begin the drain of the last bookie; call it only if nothing blocks it."""
    pod = last_pod(observed)
    return begun(
        OperationType.DRAIN,
        Step.COPYING,
        observed.now_s,
        pod=pod,
        bookie=observed.id_of(pod),
        target=str(ordinal_of(pod)),
    )


def takes_nothing_yet(operation: Operation) -> bool:
    """Return whether the operation is a drain that can still be cancelled."""
    return operation.type is OperationType.DRAIN and operation.step in (Step.COPYING, Step.VERIFYING)


def advance(operation: Operation, observed: PoolObservation) -> Move:
    """Advance a drain."""
    if takes_nothing_yet(operation) and (
        not is_wanted(observed) or _is_another(operation, observed) or _gives_way(operation, observed)
    ):
        return Move(None, (CancelDrain(operation.bookie or ""),))
    return _STEPS[operation.step](operation, observed)


def replicas_during(operation: Operation, replicas: int) -> int:
    """Return the number of pods during this step of a drain. The only place that lowers the number."""
    if operation.type is not OperationType.DRAIN or takes_nothing_yet(operation):
        return replicas
    return min(replicas, int(operation.target or replicas))


def _gives_way(operation: Operation, observed: PoolObservation) -> bool:
    """Return whether the drain must yield to others: too few bookies would remain without all of them.

    All draining bookies are read-only, so each would wait for the others. The one with the highest id stays and becomes
    writable again, so that the first can leave. Its drain begins again once enough bookies are writable.
    """
    if observed.cluster is None:
        return False
    bookie = operation.bookie or ""
    others = frozenset(drain.bookie for drain in observed.cluster.drains if drain.leaving and drain.bookie != bookie)
    before = frozenset(other for other in others if other < bookie)
    with_those_behind = replace(observed.cluster, writable=observed.cluster.writable | (others - before))
    return bool(before) and below_ensemble(replace(observed, cluster=with_those_behind), bookie, before) is not None


def _is_another(operation: Operation, observed: PoolObservation) -> bool:
    """Return whether the pod has another bookie now, on new volumes, which was not drained."""
    return observed.id_of(operation.pod or "") not in (None, operation.bookie)


def _copying(operation: Operation, observed: PoolObservation) -> Move:
    request = Decommission(operation.bookie or "")
    drain = None if observed.cluster is None else observed.cluster.drain_of(request.bookie)
    if observed.cluster is None:
        return Move(waiting(operation, "the metadata store is unreachable"), (request,))
    if request.bookie not in observed.cluster.known:
        return _forgotten(operation, observed)
    if drain is None:
        return Move(waiting(operation, "waiting for the auditor to start the drain"), (request,))
    if not drain.emptied or drain.ledgers_left:
        left = f"{drain.ledgers_left} ledgers are still on it"
        return Move(waiting(operation, "; ".join([left, *drain.blocked_by])), (request,))
    found = moved(
        operation, Step.VERIFYING, observed.now_s, "empty: waiting for a second check", empty_look=drain.check_id
    )
    return Move(found, (request,))


def _verifying(operation: Operation, observed: PoolObservation) -> Move:
    """Require a second check by the auditor that finds the bookie empty, and no under-replicated ledgers anywhere.

    The record identifies the first check itself, not the time at which it was observed: the clocks may differ.
    """
    request: tuple[Action, ...] = (Decommission(operation.bookie or ""),)
    if observed.cluster is not None and operation.bookie not in observed.cluster.known:
        return _forgotten(operation, observed)
    drain = None if observed.cluster is None else observed.cluster.drain_of(operation.bookie or "")
    if drain is not None and (not drain.emptied or drain.ledgers_left):
        return Move(moved(operation, Step.COPYING, observed.now_s, "it has ledgers again"), request)
    if drain is None or not observed.fully_replicated:
        return Move(waiting(operation, "not confirmed that every ledger has its replicas elsewhere"), request)
    if operation.empty_look in (None, drain.check_id):
        noted = operation if operation.empty_look else operation.model_copy(update={"empty_look": drain.check_id})
        return Move(noted, request)  # an earlier version of the operator recorded no check
    if _is_silent(operation, observed):
        return Move(waiting(operation, f"{operation.pod} does not report its bookie id"), request)
    needed = blocker_of(operation, observed)
    if needed is not None:
        return Move(waiting(operation, needed[1]), request)
    return Move(moved(operation, Step.SHRINKING, observed.now_s, "stopping its pod"), request)


def _forgotten(operation: Operation, observed: PoolObservation) -> Move:
    """Continue after the auditor removed the cookie early, because the empty bookie's process had ended."""
    if not observed.fully_replicated:
        reason = "its cookie is removed; not confirmed that every ledger has its replicas elsewhere"
        return Move(waiting(operation, reason))
    if _is_silent(operation, observed):
        return Move(waiting(operation, f"{operation.pod} does not report its bookie id"))
    lost = lost_zone(observed)
    if lost is not None:
        return Move(waiting(operation, lost.message))
    return Move(moved(operation, Step.SHRINKING, observed.now_s, "its cookie is already removed: stopping its pod"))


def _is_silent(operation: Operation, observed: PoolObservation) -> bool:
    """Return whether the pod is ready without a known bookie id; it may run another bookie now."""
    pod = observed.pod(operation.pod or "")
    return pod is not None and pod.ready and pod.name not in observed.bookies


def _shrinking(operation: Operation, observed: PoolObservation) -> Move:
    """Wait until the pod is gone. The lower number of replicas is applied with the children."""
    if observed.pod(operation.pod or "") is not None:
        return Move(operation)
    if observed.stateful_set is None or observed.stateful_set.replicas > int(operation.target or 0):
        return Move(operation)
    return Move(moved(operation, Step.REMOVING_COOKIE, observed.now_s, "waiting for the auditor to remove the cookie"))


def _removing_cookie(operation: Operation, observed: PoolObservation) -> Move:
    request = Decommission(operation.bookie or "")
    if observed.cluster is None:
        return Move(waiting(operation, "the metadata store is unreachable"))
    if request.bookie in observed.cluster.known:
        return Move(operation, (request,))
    return Move(moved(operation, Step.RELEASING_CLAIMS, observed.now_s))


def _releasing(operation: Operation, observed: PoolObservation) -> Move:
    """Delete its claims, so that a new pod of this ordinal starts on empty volumes; volumes follow reclaimPolicy."""
    found = releases(operation, observed)
    return Move(operation if found else None, found)


def releases(operation: Operation, observed: PoolObservation) -> tuple[ReleaseClaim, ...]:
    """Return the deletions of the claims of the drained bookie."""
    keep = observed.resource.spec.storage.reclaim_policy is ReclaimPolicy.RETAIN
    claims = [claim for claim in observed.claims if claim.pod == operation.pod]
    return tuple(ReleaseClaim(claim.name, claim.uid, claim.volume, keep) for claim in claims)


_STEPS = {
    Step.COPYING: _copying,
    Step.VERIFYING: _verifying,
    Step.SHRINKING: _shrinking,
    Step.REMOVING_COOKIE: _removing_cookie,
    Step.RELEASING_CLAIMS: _releasing,
}
