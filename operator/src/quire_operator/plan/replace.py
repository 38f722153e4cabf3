"""Replaces a bookie whose volumes are lost: releases its claims, and waits for a new bookie in its place. Pure.

    Copying -> Unbinding -> Rejoining -> RemovingCookie -> done

A bookie id belongs to its volumes: a bookie on empty volumes draws a new id, so it is never mistaken for the old one.
*Copying* comes first, unless an administrator declared the volumes lost (annotation `quire.dev/replace` on the pod) and
the bookie does not serve: all of its ledgers are copied from the other replicas before its claims are deleted. A bookie
that comes back meanwhile stays. A slow bookie is replaced in the same way while it serves. Until *Unbinding* another
lost bookie, a lost zone, a restart of its pod, or `slowBookies.action` Report cancels that. The auditor removes the old
id once no ledger names it.
"""

from quire_operator.api.bookie_storage import LostVolumePolicy, ReclaimPolicy
from quire_operator.api.operations import Operation, OperationType, Step
from quire_operator.api.quantities import duration_s
from quire_operator.api.slow_bookies import SlowBookieAction
from quire_operator.builders.naming import REPLACE_ANNOTATION, ordinal_of
from quire_operator.plan.actions import Action, CancelDrain, Decommission, DeletePod, ReleaseClaim
from quire_operator.plan.drain import loss_to_accept
from quire_operator.plan.observation import ObservedPod, PoolObservation
from quire_operator.plan.operations import Move, begun, moved, seconds_of, step_age_s, waiting
from quire_operator.plan.roll import serves
from quire_operator.plan.zones import REASON, lost_zone

BLOCKED = "ReplaceBlocked"
COPIED = "Copied"
"""As `target` of an operation: all entries on the released volumes have been copied."""
FORCE_AFTER_S = 180.0
"""Longer than the grace period of a pod: only a pod whose node does not respond takes more time to terminate."""


def why_lost(observed: PoolObservation, pod: ObservedPod) -> str | None:
    """Return why a pod's volumes cannot come back by themselves, or None."""
    return next((claim.gone for claim in observed.claims if claim.pod == pod.name and claim.gone is not None), None)


def wanted(observed: PoolObservation, but: str | None = None) -> ObservedPod | None:
    """Return the pod to replace next: first one that an administrator annotated, then one whose volumes are lost.

    `but`: name of a pod to skip.
    """
    pods = sorted((pod for pod in observed.pods if pod.name != but), key=lambda pod: ordinal_of(pod.name))
    requested = [pod for pod in pods if pod.replace_asked]
    return next(iter([*requested, *(pod for pod in pods if why_lost(observed, pod) is not None)]), None)


def forgettable(observed: PoolObservation) -> tuple[str, str] | None:
    """Return pod and id of a bookie that was replaced without the operator and that the cluster still knows."""
    if observed.cluster is None:
        return None
    there = {bookie.id for bookie in observed.bookies.values()}
    gone = {(pod, observed.known_ids[pod]) for pod in observed.bookies if pod in observed.known_ids}
    gone |= {(lost.pod, lost.id) for lost in observed.resource.status.lost_bookies}
    return min(((pod, one) for pod, one in gone if one in observed.cluster.known and one not in there), default=None)


def blocker(observed: PoolObservation, pod: ObservedPod) -> tuple[str, str] | None:
    """Return why a lost bookie cannot be replaced now, as a reason and a message with the remedy, or None."""
    if pod.replace_asked and not serves(observed, pod):
        return None
    lost, remedy = why_lost(observed, pod) or "requested by annotation", f"annotate the pod with {REPLACE_ANNOTATION}"
    if not pod.replace_asked:
        if observed.resource.spec.storage.lost_volume_policy is LostVolumePolicy.MANUAL:
            return "ManualPolicy", f"{pod.name}: {lost}; restore the volume, or {remedy} to continue with empty ones"
        left_s = duration_s(observed.resource.spec.auto_recovery.lost_bookie_delay) - (
            observed.now_s - _since_s(observed)
        )
        if left_s > 0:
            message = f"{pod.name}: {lost}; waiting for autoRecovery.lostBookieDelay; {remedy} to continue now"
            return "WaitingForItsReturn", message
    zone = lost_zone(observed)
    if zone is not None and not pod.replace_asked:
        return REASON, f"{pod.name}: {lost}; {zone.message}"
    if observed.cluster is None:
        message = f"{pod.name}: {lost}; cannot determine which ledgers it has: waiting for the metadata store"
        return "MetadataUnreachable", message
    if observed.id_of(pod.name) is None:
        return "BookieUnknown", f"{pod.name}: {lost}; its bookie id was never observed: {remedy} to continue"
    if observed.cluster.auditor is None or not observed.cluster.recovery_enabled:
        message = f"{pod.name}: {lost}; no auto-recovery is running to copy its ledgers: enable it, or {remedy}"
        return "AutoRecoveryOff", message
    return None


def _since_s(observed: PoolObservation) -> float:
    """Return since when a bookie has been lost, according to the condition."""
    for condition in observed.resource.status.conditions:
        if condition.type == BLOCKED and condition.status.value == "True":
            return seconds_of(condition.last_transition_time)
    return observed.now_s


def begin(observed: PoolObservation, pod: ObservedPod) -> Operation:
    """Begin the replacement of a pod's volumes. The record names the objects to delete by uid."""
    claims = [claim.uid for claim in observed.claims if claim.pod == pod.name]
    at_once = pod.replace_asked and not serves(observed, pod)
    return begun(
        OperationType.REPLACE,
        Step.UNBINDING if at_once else Step.COPYING,
        observed.now_s,
        pod=pod.name,
        bookie=observed.id_of(pod.name),
        message=why_lost(observed, pod),
    ).model_copy(update={"uids": (pod.uid, *claims)})


def begin_slow(observed: PoolObservation, pod: ObservedPod) -> Operation:
    """Begin the replacement of a bookie that serves, because its disk is slow."""
    claims = [claim.uid for claim in observed.claims if claim.pod == pod.name]
    return begun(
        OperationType.REPLACE,
        Step.COPYING,
        observed.now_s,
        pod=pod.name,
        bookie=observed.id_of(pod.name),
        message="its disk is slow",
    ).model_copy(update={"uids": (pod.uid, *claims), "avoid_node": pod.node})


def copies_slow(operation: Operation) -> bool:
    """Return whether the operation replaces a slow bookie and can still be cancelled."""
    replaces = operation.type is OperationType.REPLACE and operation.avoid_node is not None
    return replaces and operation.step is Step.COPYING


def _is_over(operation: Operation, observed: PoolObservation, pod: ObservedPod) -> bool:
    """Return whether the reason of a replacement is gone: the bookie came back, or may stay although it is slow."""
    if not copies_slow(operation):
        return why_lost(observed, pod) is None
    only_reported = observed.resource.spec.slow_bookies.action is SlowBookieAction.REPORT
    return only_reported or pod.uid not in operation.uids or lost_zone(observed) is not None


def begin_forgetting(observed: PoolObservation, pod: str, bookie: str) -> Operation:
    """Begin with the last step: the bookie was already replaced, and only its id must be removed."""
    return begun(OperationType.REPLACE, Step.REMOVING_COOKIE, observed.now_s, pod=pod, bookie=bookie)


def advance(operation: Operation, observed: PoolObservation) -> Move:
    """Advance a replacement."""
    return _STEPS[operation.step](operation, observed)


def _copying(operation: Operation, observed: PoolObservation) -> Move:
    """Wait until all of its entries are copied elsewhere, from the other replicas if it does not serve any more."""
    bookie, pod = operation.bookie or "", observed.pod(operation.pod or "")
    requested = pod is not None and pod.replace_asked
    if pod is not None and requested and not serves(observed, pod):
        return Move(moved(operation, Step.UNBINDING, observed.now_s, "an administrator declared its volumes lost"))
    if observed.cluster is None:
        return Move(waiting(operation, "the metadata store is unreachable"), (Decommission(bookie),))
    if bookie not in observed.cluster.known:
        return _copied(operation, observed, "no ledger names it")
    if pod is None or (not requested and _is_over(operation, observed, pod)):
        return Move(None, (CancelDrain(bookie),))  # it came back, or the annotation was removed
    drain = observed.cluster.drain_of(bookie)
    if drain is None:
        return Move(waiting(operation, "waiting for the auditor to start the drain"), (Decommission(bookie),))
    zone = None if requested else lost_zone(observed)
    is_empty = drain.emptied and not drain.ledgers_left and observed.fully_replicated and zone is None
    if is_empty and operation.empty_look not in (None, drain.check_id):
        return _copied(operation, observed, "all of its ledgers have their replicas elsewhere")
    # A second check must confirm it: the first may be older than the loss, and the clocks may differ.
    operation = operation.model_copy(update={"empty_look": drain.check_id if is_empty else None})
    reasons = [f"{drain.ledgers_left} ledgers are still on it", *drain.blocked_by]
    reasons += [] if zone is None else [zone.message]
    lacking = observed.cluster.under_replicated if drain.emptied else 0
    if lacking:
        reasons.append(f"{lacking} ledgers of the cluster are under-replicated")
    if observed.cluster.unaccepted:
        reasons = [reasons[0], loss_to_accept(observed.cluster, bookie)]
    elif copies_slow(operation):
        reasons.append("slowBookies.action Report cancels this")
    elif not requested and (lacking or (drain.blocked_by and not drain.leaving)):
        # If the cluster has only as many bookies as the ensemble, only a new bookie in its place can take its replicas.
        remedy = f"annotate {pod.name} with {REPLACE_ANNOTATION}"
        reasons.append(f"or {remedy}: a new bookie starts in its place, and the old volumes are kept")
    return Move(waiting(operation, "; ".join(reasons)), (Decommission(bookie),))


def _copied(operation: Operation, observed: PoolObservation, why: str) -> Move:
    """Record that everything was copied: only then may its volumes be deleted, otherwise they are kept."""
    return Move(moved(operation, Step.UNBINDING, observed.now_s, why).model_copy(update={"target": COPIED}))


def _unbinding(operation: Operation, observed: PoolObservation) -> Move:
    """Delete the claims, then the pod that uses them; by uid, so that those of its successor stay."""
    if operation.avoid_node is not None and (observed.stateful_set is None or not observed.stateful_set.current):
        return Move(waiting(operation, "waiting until the new pod will avoid the node of the slow disk"))
    found: list[Action] = [*releases(operation, observed)]
    old = next((pod for pod in observed.pods if pod.uid in operation.uids), None)
    if old is not None:
        late = old.deleting and step_age_s(operation, observed.now_s) > FORCE_AFTER_S
        found.append(DeletePod(old.name, old.uid, force=late))
    if found:
        return Move(operation, tuple(found))
    return Move(moved(operation, Step.REJOINING, observed.now_s, f"waiting for the new bookie of {operation.pod}"))


def releases(operation: Operation, observed: PoolObservation) -> tuple[ReleaseClaim, ...]:
    """Return the deletions of the lost claims; by uid, so that new claims of the same names stay."""
    keep = observed.resource.spec.storage.reclaim_policy is ReclaimPolicy.RETAIN or operation.target != COPIED
    lost = [claim for claim in observed.claims if claim.uid in operation.uids]
    return tuple(ReleaseClaim(claim.name, claim.uid, claim.volume, keep) for claim in lost)


def _rejoining(operation: Operation, observed: PoolObservation) -> Move:
    pod = observed.pod(operation.pod or "")
    bookie = None if pod is None or pod.uid in operation.uids else observed.bookies.get(pod.name)
    if pod is not None and pod.uid not in operation.uids and pod.replace_asked and not serves(observed, pod):
        return Move(None)  # the annotation declares the new volumes lost as well: begin again with these
    if bookie is None:
        why = pod.failure if pod is not None else None
        return Move(waiting(operation, why or f"waiting for the new bookie of {operation.pod}"))
    if bookie.id == operation.bookie:
        return Move(None, (CancelDrain(bookie.id),))  # its volumes reappeared with their data
    return Move(moved(operation, Step.REMOVING_COOKIE, observed.now_s, f"{bookie.id} took its place"))


def _removing_cookie(operation: Operation, observed: PoolObservation) -> Move:
    """Wait until the auditor has removed the old id, which it keeps while any ledger names it."""
    if operation.bookie is None:
        return Move(None)
    request = Decommission(operation.bookie)
    if observed.cluster is None:
        return Move(waiting(operation, "the metadata store is unreachable"))
    if operation.bookie in {bookie.id for bookie in observed.bookies.values()}:
        return Move(None, (CancelDrain(operation.bookie),))
    if operation.bookie not in observed.cluster.known:
        return Move(None)
    drain = observed.cluster.drain_of(operation.bookie)
    if drain is None:
        return Move(waiting(operation, "waiting for the auditor to start the drain"), (request,))
    reasons = [f"{drain.ledgers_left} ledgers still name {operation.bookie}", *drain.blocked_by]
    if observed.cluster.unaccepted:
        reasons = [reasons[0], loss_to_accept(observed.cluster, operation.bookie)]
    return Move(waiting(operation, "; ".join(reasons)), (request,))


_STEPS = {
    Step.COPYING: _copying,
    Step.UNBINDING: _unbinding,
    Step.REJOINING: _rejoining,
    Step.REMOVING_COOKIE: _removing_cookie,
}
