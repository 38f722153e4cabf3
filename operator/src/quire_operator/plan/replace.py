"""A bookie whose volumes are lost: its claims are given up, and a new bookie comes up in its place. Pure.

    Copying -> Unbinding -> Rejoining -> RemovingCookie -> done

An id belongs to its volumes: on empty ones a bookie draws a new id, so nothing ever takes the new one for the old one.
*Copying* comes first unless a person said that the volumes are lost (annotation `quire.dev/replace` on the pod) and the
bookie does not serve: everything on it is copied from the other replicas, and only then its claims go. A bookie that
comes back meanwhile stays. The old id is forgotten, by the auditor, once no ledger names it.
"""

from quire_operator.api.bookie_storage import LostVolumePolicy, ReclaimPolicy
from quire_operator.api.operations import Operation, OperationType, Step
from quire_operator.api.quantities import duration_s
from quire_operator.builders.naming import REPLACE_ANNOTATION, ordinal_of
from quire_operator.plan.actions import Action, CancelDrain, Decommission, DeletePod, ReleaseClaim
from quire_operator.plan.drain import loss_to_accept
from quire_operator.plan.operations import Move, begun, moved, seconds_of, step_age_s, waiting
from quire_operator.plan.roll import serves
from quire_operator.plan.seen import PodSeen, PoolSeen

BLOCKED = "ReplaceBlocked"
COPIED = "Copied"
"""As `target` of an operation: nothing is left on the volumes that go."""
FORCE_AFTER_S = 180.0
"""A pod that was told to end has its grace before; longer takes only one whose node does not answer."""


def why_lost(seen: PoolSeen, pod: PodSeen) -> str | None:
    """Why a pod's volumes cannot come back by themselves; None: nothing says so."""
    return next((claim.gone for claim in seen.claims if claim.pod == pod.name and claim.gone is not None), None)


def wanted(seen: PoolSeen, but: str | None = None) -> PodSeen | None:
    """The pod that is to be replaced next: one that a person named first, then one whose volumes are gone.

    `but`: the name of one that is taken care of otherwise.
    """
    pods = sorted((pod for pod in seen.pods if pod.name != but), key=lambda pod: ordinal_of(pod.name))
    asked = [pod for pod in pods if pod.replace_asked]
    return next(iter([*asked, *(pod for pod in pods if why_lost(seen, pod) is not None)]), None)


def forgettable(seen: PoolSeen) -> tuple[str, str] | None:
    """Pod and id of a bookie that was replaced by another one, without us, and that the cluster still knows."""
    if seen.cluster is None:
        return None
    there = {bookie.id for bookie in seen.bookies.values()}
    gone = {(pod, seen.known_ids[pod]) for pod in seen.bookies if pod in seen.known_ids}
    gone |= {(lost.pod, lost.id) for lost in seen.resource.status.lost_bookies}
    return min(((pod, one) for pod, one in gone if one in seen.cluster.known and one not in there), default=None)


def blocker(seen: PoolSeen, pod: PodSeen) -> tuple[str, str] | None:
    """Why a lost bookie is not replaced now, as a reason and a sentence with what to do; None: it may be."""
    if pod.replace_asked and not serves(seen, pod):
        return None
    lost, word = why_lost(seen, pod) or "a person asked for it", f"annotate the pod with {REPLACE_ANNOTATION}"
    if not pod.replace_asked:
        if seen.resource.spec.storage.lost_volume_policy is LostVolumePolicy.MANUAL:
            return "ManualPolicy", f"{pod.name}: {lost}; bring it back, or {word} to go on with empty volumes"
        left_s = duration_s(seen.resource.spec.auto_recovery.lost_bookie_delay) - (seen.now_s - _since_s(seen))
        if left_s > 0:
            return "WaitingForItsReturn", f"{pod.name}: {lost}; it is given time to come back, or {word} to go on now"
    if seen.cluster is None:
        return "MetadataUnreachable", f"{pod.name}: {lost}; nobody could say what was on it: waiting for the store"
    if seen.id_of(pod.name) is None:
        return "BookieUnknown", f"{pod.name}: {lost}; it never said which bookie it is: {word} to go on"
    if seen.cluster.auditor is None or not seen.cluster.recovery_enabled:
        return "AutoRecoveryOff", f"{pod.name}: {lost}; nobody copies its ledgers: switch auto-recovery on, or {word}"
    return None


def _since_s(seen: PoolSeen) -> float:
    """Since when something was lost, as the condition has it."""
    for condition in seen.resource.status.conditions:
        if condition.type == BLOCKED and condition.status.value == "True":
            return seconds_of(condition.last_transition_time)
    return seen.now_s


def begin(seen: PoolSeen, pod: PodSeen) -> Operation:
    """The replacement of a pod's volumes; which objects go is on record from here."""
    claims = [claim.uid for claim in seen.claims if claim.pod == pod.name]
    at_once = pod.replace_asked and not serves(seen, pod)
    return begun(
        OperationType.REPLACE,
        Step.UNBINDING if at_once else Step.COPYING,
        seen.now_s,
        pod=pod.name,
        bookie=seen.id_of(pod.name),
        message=why_lost(seen, pod),
    ).model_copy(update={"uids": (pod.uid, *claims)})


def begin_forgetting(seen: PoolSeen, pod: str, bookie: str) -> Operation:
    """The bookie was replaced already: only its id is left to forget."""
    return begun(OperationType.REPLACE, Step.REMOVING_COOKIE, seen.now_s, pod=pod, bookie=bookie)


def advance(operation: Operation, seen: PoolSeen) -> Move:
    """One pass over a replacement."""
    return _STEPS[operation.step](operation, seen)


def _copying(operation: Operation, seen: PoolSeen) -> Move:
    """Everything on it is made anew elsewhere, from the other replicas where it does not serve any more."""
    bookie, pod = operation.bookie or "", seen.pod(operation.pod or "")
    asked = pod is not None and pod.replace_asked
    if pod is not None and asked and not serves(seen, pod):
        return Move(moved(operation, Step.UNBINDING, seen.now_s, "a person said that its volumes are lost"))
    if seen.cluster is None:
        return Move(waiting(operation, "the metadata store cannot be reached"), (Decommission(bookie),))
    if bookie not in seen.cluster.known:
        return _copied(operation, seen, "no ledger names it any more")
    if pod is None or (not asked and why_lost(seen, pod) is None):
        return Move(None, (CancelDrain(bookie),))  # it came back, or the word was taken back
    drain = seen.cluster.drain_of(bookie)
    if drain is None:
        return Move(waiting(operation, "waiting for the auditor to take notice"), (Decommission(bookie),))
    is_empty = drain.emptied and not drain.ledgers_left and seen.fully_replicated
    if is_empty and operation.empty_look not in (None, drain.look):
        return _copied(operation, seen, "everything on it has its replicas elsewhere")
    # A second look must say so: the first may be older than the loss, and the auditor's clock another than ours.
    operation = operation.model_copy(update={"empty_look": drain.look if is_empty else None})
    said = [f"{drain.ledgers_left} ledgers are still on it", *drain.blocked_by]
    lacking = seen.cluster.under_replicated if drain.emptied else 0
    if lacking:
        said.append(f"{lacking} ledgers of the cluster lack a replica")
    if seen.cluster.unaccepted:
        said = [said[0], loss_to_accept(seen.cluster, bookie)]
    elif not asked and (lacking or (drain.blocked_by and not drain.leaving)):
        # With as many bookies as the ensemble has, nobody could take its replicas but the one in its own place.
        word = f"annotate {pod.name} with {REPLACE_ANNOTATION}"
        said.append(f"or {word}: a new bookie comes up in its place, the old volumes are kept")
    return Move(waiting(operation, "; ".join(said)), (Decommission(bookie),))


def _copied(operation: Operation, seen: PoolSeen, why: str) -> Move:
    """On record, for what becomes of its volumes: whatever is not certain to be elsewhere is kept."""
    return Move(moved(operation, Step.UNBINDING, seen.now_s, why).model_copy(update={"target": COPIED}))


def _unbinding(operation: Operation, seen: PoolSeen) -> Move:
    """The claims go, then the pod that holds them; by uid, so that those of its successor stay."""
    found: list[Action] = [*releases(operation, seen)]
    old = next((pod for pod in seen.pods if pod.uid in operation.uids), None)
    if old is not None:
        late = old.deleting and step_age_s(operation, seen.now_s) > FORCE_AFTER_S
        found.append(DeletePod(old.name, old.uid, force=late))
    if found:
        return Move(operation, tuple(found))
    return Move(moved(operation, Step.REJOINING, seen.now_s, f"waiting for the new bookie of {operation.pod}"))


def releases(operation: Operation, seen: PoolSeen) -> tuple[ReleaseClaim, ...]:
    """The claims that were lost, and no others under their names."""
    keep = seen.resource.spec.storage.reclaim_policy is ReclaimPolicy.RETAIN or operation.target != COPIED
    lost = [claim for claim in seen.claims if claim.uid in operation.uids]
    return tuple(ReleaseClaim(claim.name, claim.uid, claim.volume, keep) for claim in lost)


def _rejoining(operation: Operation, seen: PoolSeen) -> Move:
    pod = seen.pod(operation.pod or "")
    bookie = None if pod is None or pod.uid in operation.uids else seen.bookies.get(pod.name)
    if pod is not None and pod.uid not in operation.uids and pod.replace_asked and not serves(seen, pod):
        return Move(None)  # the new volumes are lost as well, a person says: it begins anew, with these
    if bookie is None:
        why = pod.failure if pod is not None else None
        return Move(waiting(operation, why or f"waiting for the new bookie of {operation.pod}"))
    if bookie.id == operation.bookie:
        return Move(None, (CancelDrain(bookie.id),))  # its volumes turned up again with all that was on them
    return Move(moved(operation, Step.REMOVING_COOKIE, seen.now_s, f"{bookie.id} took its place"))


def _removing_cookie(operation: Operation, seen: PoolSeen) -> Move:
    """The old id stays known while any ledger names it: until then nothing of it is forgotten."""
    if operation.bookie is None:
        return Move(None)
    wish = Decommission(operation.bookie)
    if seen.cluster is None:
        return Move(waiting(operation, "the metadata store cannot be reached"))
    if operation.bookie in {bookie.id for bookie in seen.bookies.values()}:
        return Move(None, (CancelDrain(operation.bookie),))
    if operation.bookie not in seen.cluster.known:
        return Move(None)
    drain = seen.cluster.drain_of(operation.bookie)
    if drain is None:
        return Move(waiting(operation, "waiting for the auditor to take notice"), (wish,))
    said = [f"{drain.ledgers_left} ledgers still name {operation.bookie}", *drain.blocked_by]
    if seen.cluster.unaccepted:
        said = [said[0], loss_to_accept(seen.cluster, operation.bookie)]
    return Move(waiting(operation, "; ".join(said)), (wish,))


_STEPS = {
    Step.COPYING: _copying,
    Step.UNBINDING: _unbinding,
    Step.REJOINING: _rejoining,
    Step.REMOVING_COOKIE: _removing_cookie,
}
