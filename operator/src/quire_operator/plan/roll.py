"""Rolls a changed template out: one pod at a time, the last first, each after a check of replication. Pure.

    Waiting -> Replacing -> Settling -> Waiting -> ... -> done

A pod that is not ready is replaced without waiting: this makes nothing unavailable, and a corrected image must not wait
for the pods that the bad one broke.
"""

from quire_operator.api.bookie_spec import WaitFor
from quire_operator.api.operations import Operation, OperationType, Step
from quire_operator.builders.naming import ordinal_of
from quire_operator.plan.actions import DeletePod
from quire_operator.plan.operations import Move, begun, moved, step_age_s, waiting
from quire_operator.plan.seen import PodSeen, PoolSeen

STUCK_AFTER_S = 600.0
"""A pod that takes longer to come back is reported as stuck; the roll waits, and continues once it is back."""


def outdated(seen: PoolSeen) -> list[PodSeen]:
    """Return pods that were created from another template, in the order in which to replace them."""
    wanted = seen.stateful_set
    if wanted is None or not wanted.current or not wanted.update_revision:
        return []
    partition = seen.resource.spec.update.partition
    found = [
        pod
        for pod in seen.pods
        if pod.revision != wanted.update_revision and not pod.deleting and ordinal_of(pod.name) >= partition
    ]
    return sorted(found, key=lambda pod: (serves(seen, pod), -ordinal_of(pod.name)))


def serves(seen: PoolSeen, pod: PodSeen) -> bool:
    """Return whether clients may be using the bookie.

    A read-only bookie is not ready and serves; a bookie that only the operator cannot reach is ready.
    """
    return pod.ready or pod.name in seen.bookies


def begin(seen: PoolSeen) -> Operation:
    """Begin a roll to the current template."""
    revision = seen.stateful_set.update_revision if seen.stateful_set is not None else ""
    return begun(OperationType.ROLL, Step.WAITING, seen.now_s, target=revision)


def advance(operation: Operation, seen: PoolSeen) -> Move:
    """Advance a roll."""
    return _STEPS[operation.step](operation, seen)


def is_stuck(operation: Operation, seen: PoolSeen) -> bool:
    """Return whether a replaced pod takes too long to come back."""
    return operation.step is not Step.WAITING and step_age_s(operation, seen.now_s) > STUCK_AFTER_S


def _waiting(operation: Operation, seen: PoolSeen) -> Move:
    """Choose the next pod unless there is a reason to wait."""
    left = outdated(seen)
    if not left:
        settled = seen.stateful_set is not None and seen.stateful_set.current
        return Move(None if settled else operation)
    reason = hindrance(seen) if serves(seen, left[0]) else None
    if reason is not None:
        return Move(waiting(operation, reason))
    return Move(moved(operation, Step.REPLACING, seen.now_s, f"replacing {left[0].name}", left[0].name))


def _replacing(operation: Operation, seen: PoolSeen) -> Move:
    """Delete the pod unless that is done; by uid, so that its successor stays."""
    pod = seen.pod(operation.pod or "")
    old = [one for one in outdated(seen) if one.name == operation.pod]
    if old:
        return Move(operation, (DeletePod(old[0].name, old[0].uid),))
    if pod is not None and pod.deleting:
        return Move(operation)
    return Move(moved(operation, Step.SETTLING, seen.now_s, f"waiting for {operation.pod} to come back"))


def _settling(operation: Operation, seen: PoolSeen) -> Move:
    """Wait until the new bookie responds. Replication is checked before the next pod is replaced."""
    pod = seen.pod(operation.pod or "")
    if pod is not None and not serves(seen, pod) and pod in outdated(seen):
        # The template changed again while the pod was broken: do not wait for it to recover.
        return Move(moved(operation, Step.WAITING, seen.now_s))
    if pod is None or pod.deleting or pod.name not in seen.bookies:
        return Move(operation)
    return Move(moved(operation, Step.WAITING, seen.now_s))


def hindrance(seen: PoolSeen) -> str | None:
    """Return why a serving bookie may not be restarted now, or None."""
    away = [pod.name for pod in seen.pods if pod.name not in seen.bookies or pod.deleting]
    wanted = seen.stateful_set.replicas if seen.stateful_set is not None else 0
    missing = max(0, wanted - len(seen.pods)) + len(away)
    if missing >= seen.resource.spec.update.max_unavailable:
        return f"{missing} bookies are already unavailable ({', '.join(away) or 'not created yet'})"
    if seen.cluster is None:
        return "the metadata store is unreachable: cannot determine whether all ledgers are fully replicated"
    if seen.resource.spec.update.wait_for is WaitFor.FULLY_REPLICATED and not seen.fully_replicated:
        lacking = seen.cluster.under_replicated + seen.cluster.unaccepted
        return f"{lacking} ledgers are under-replicated: waiting until they are repaired or the loss is accepted"
    return None


_STEPS = {Step.WAITING: _waiting, Step.REPLACING: _replacing, Step.SETTLING: _settling}
