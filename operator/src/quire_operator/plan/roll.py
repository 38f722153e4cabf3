"""Rolls a changed template out: one pod at a time, the last first, each after a check of replication. Pure.

    Waiting -> Replacing -> Settling -> Waiting -> ... -> done

A pod that is not ready is replaced without waiting: this makes nothing unavailable, and a corrected image must not wait
for the pods that the bad one broke.
"""

from quire_operator.api.bookie_spec import WaitFor
from quire_operator.api.operations import Operation, OperationType, Step
from quire_operator.builders.naming import ordinal_of
from quire_operator.plan.actions import DeleteConfigMap, DeletePod
from quire_operator.plan.observation import ObservedPod, PoolObservation
from quire_operator.plan.operations import Move, begun, moved, step_age_s, waiting
from quire_operator.plan.zones import lost_zone

STUCK_AFTER_S = 600.0
"""A pod that takes longer to come back is reported as stuck; the roll waits, and continues once it is back."""


def outdated(observed: PoolObservation) -> list[ObservedPod]:
    """Return pods that were created from another template, in the order in which to replace them."""
    wanted = observed.stateful_set
    if wanted is None or not wanted.current or not wanted.update_revision:
        return []
    partition = observed.resource.spec.update.partition
    found = [
        pod
        for pod in observed.pods
        if pod.revision != wanted.update_revision and not pod.deleting and ordinal_of(pod.name) >= partition
    ]
    return sorted(found, key=lambda pod: (serves(observed, pod), -ordinal_of(pod.name)))


def serves(observed: PoolObservation, pod: ObservedPod) -> bool:
    """Return whether clients may be using the bookie.

    A read-only bookie is not ready and serves; a bookie that only the operator cannot reach is ready.
    """
    return pod.ready or pod.name in observed.bookies


def begin(observed: PoolObservation) -> Operation:
    """Begin a roll to the current template."""
    revision = observed.stateful_set.update_revision if observed.stateful_set is not None else ""
    return begun(OperationType.ROLL, Step.WAITING, observed.now_s, target=revision)


def advance(operation: Operation, observed: PoolObservation) -> Move:
    """Advance a roll."""
    return _STEPS[operation.step](operation, observed)


def is_stuck(operation: Operation, observed: PoolObservation) -> bool:
    """Return whether a replaced pod takes too long to come back."""
    return operation.step is not Step.WAITING and step_age_s(operation, observed.now_s) > STUCK_AFTER_S


def _waiting(operation: Operation, observed: PoolObservation) -> Move:
    """Choose the next pod unless there is a reason to wait."""
    left = outdated(observed)
    if not left:
        settled = observed.stateful_set is not None and observed.stateful_set.current
        return Move(None, _unused(observed)) if settled else Move(operation)
    zone = lost_zone(observed)
    if zone is not None:
        return Move(waiting(operation, zone.message))  # its pods do not serve, but not because of their template
    reason = hindrance(observed) if serves(observed, left[0]) else None
    if reason is not None:
        return Move(waiting(operation, reason))
    return Move(moved(operation, Step.REPLACING, observed.now_s, f"replacing {left[0].name}", left[0].name))


def _unused(observed: PoolObservation) -> tuple[DeleteConfigMap, ...]:
    """Return the deletions of former configurations; with a partition, some pods still have theirs."""
    return tuple(DeleteConfigMap(one.name, one.uid) for one in observed.config_maps if not one.used)


def _replacing(operation: Operation, observed: PoolObservation) -> Move:
    """Delete the pod unless that is done; by uid, so that its successor stays."""
    pod = observed.pod(operation.pod or "")
    old = [one for one in outdated(observed) if one.name == operation.pod]
    if old:
        return Move(operation, (DeletePod(old[0].name, old[0].uid),))
    if pod is not None and pod.deleting:
        return Move(operation)
    return Move(moved(operation, Step.SETTLING, observed.now_s, f"waiting for {operation.pod} to come back"))


def _settling(operation: Operation, observed: PoolObservation) -> Move:
    """Wait until the new bookie responds. Replication is checked before the next pod is replaced."""
    pod = observed.pod(operation.pod or "")
    if pod is not None and not serves(observed, pod) and pod in outdated(observed):
        # The template changed again while the pod was broken: do not wait for it to recover.
        return Move(moved(operation, Step.WAITING, observed.now_s))
    if pod is None or pod.deleting or pod.name not in observed.bookies:
        return Move(operation)
    return Move(moved(operation, Step.WAITING, observed.now_s))


def hindrance(observed: PoolObservation) -> str | None:
    """Return why a serving bookie may not be restarted now, or None."""
    away = [pod.name for pod in observed.pods if pod.name not in observed.bookies or pod.deleting]
    wanted = observed.stateful_set.replicas if observed.stateful_set is not None else 0
    missing = max(0, wanted - len(observed.pods)) + len(away)
    if missing >= observed.resource.spec.update.max_unavailable:
        return f"{missing} bookies are already unavailable ({', '.join(away) or 'not created yet'})"
    if observed.cluster is None:
        return "the metadata store is unreachable: cannot determine whether all ledgers are fully replicated"
    if observed.resource.spec.update.wait_for is WaitFor.FULLY_REPLICATED and not observed.fully_replicated:
        lacking = observed.cluster.under_replicated + observed.cluster.unaccepted
        return f"{lacking} ledgers are under-replicated: waiting until they are repaired or the loss is accepted"
    return None


_STEPS = {Step.WAITING: _waiting, Step.REPLACING: _replacing, Step.SETTLING: _settling}
