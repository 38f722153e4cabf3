"""A changed template to the pods: one after the other, the last first, each after a look at replication. Pure.

    Waiting -> Replacing -> Settling -> Waiting -> ... -> done

A pod that is not ready anyway is replaced without waiting: that takes nothing from anybody, and a bad image that was
taken back must not wait for the pods that it broke.
"""

from quire_operator.api.bookie_spec import WaitFor
from quire_operator.api.operations import Operation, OperationType, Step
from quire_operator.builders.naming import ordinal_of
from quire_operator.plan.actions import DeletePod
from quire_operator.plan.operations import Move, begun, moved, step_age_s, waiting
from quire_operator.plan.seen import PodSeen, PoolSeen

STUCK_AFTER_S = 600.0
"""A pod that takes longer to come back is reported; the roll stops there and goes on by itself when it does."""


def outdated(seen: PoolSeen) -> list[PodSeen]:
    """Pods of another template than the present one, in the order in which they should be replaced."""
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
    """It may be in use: a read-only bookie is not ready and serves; one that only we cannot reach is ready."""
    return pod.ready or pod.name in seen.bookies


def begin(seen: PoolSeen) -> Operation:
    """A roll to the present template."""
    revision = seen.stateful_set.update_revision if seen.stateful_set is not None else ""
    return begun(OperationType.ROLL, Step.WAITING, seen.now_s, target=revision)


def advance(operation: Operation, seen: PoolSeen) -> Move:
    """One pass over a roll."""
    return _STEPS[operation.step](operation, seen)


def is_stuck(operation: Operation, seen: PoolSeen) -> bool:
    """A replaced pod does not come back."""
    return operation.step is not Step.WAITING and step_age_s(operation, seen.now_s) > STUCK_AFTER_S


def _waiting(operation: Operation, seen: PoolSeen) -> Move:
    """Choose the next pod, when there is no reason to wait."""
    left = outdated(seen)
    if not left:
        settled = seen.stateful_set is not None and seen.stateful_set.current
        return Move(None if settled else operation)
    reason = hindrance(seen) if serves(seen, left[0]) else None
    if reason is not None:
        return Move(waiting(operation, reason))
    return Move(moved(operation, Step.REPLACING, seen.now_s, f"replacing {left[0].name}", left[0].name))


def _replacing(operation: Operation, seen: PoolSeen) -> Move:
    """Delete it, unless that is done; by uid, so that its successor is never taken for it."""
    pod = seen.pod(operation.pod or "")
    old = [one for one in outdated(seen) if one.name == operation.pod]
    if old:
        return Move(operation, (DeletePod(old[0].name, old[0].uid),))
    if pod is not None and pod.deleting:
        return Move(operation)
    return Move(moved(operation, Step.SETTLING, seen.now_s, f"waiting for {operation.pod} to come back"))


def _settling(operation: Operation, seen: PoolSeen) -> Move:
    """The new bookie answers; whether everything is replicated is asked before the next one is taken."""
    pod = seen.pod(operation.pod or "")
    if pod is not None and not serves(seen, pod) and pod in outdated(seen):
        # The template changed again while it was broken: it need not become well first.
        return Move(moved(operation, Step.WAITING, seen.now_s))
    if pod is None or pod.deleting or pod.name not in seen.bookies:
        return Move(operation)
    return Move(moved(operation, Step.WAITING, seen.now_s))


def hindrance(seen: PoolSeen) -> str | None:
    """Why a bookie that serves may not be taken away for a moment; None: it may."""
    away = [pod.name for pod in seen.pods if pod.name not in seen.bookies or pod.deleting]
    wanted = seen.stateful_set.replicas if seen.stateful_set is not None else 0
    missing = max(0, wanted - len(seen.pods)) + len(away)
    if missing >= seen.resource.spec.update.max_unavailable:
        return f"{missing} bookies are away already ({', '.join(away) or 'not made yet'})"
    if seen.cluster is None:
        return "the metadata store cannot be reached: nobody could say whether everything is replicated"
    if seen.resource.spec.update.wait_for is WaitFor.FULLY_REPLICATED and not seen.fully_replicated:
        lacking = seen.cluster.under_replicated + seen.cluster.unaccepted
        return f"{lacking} ledgers lack a replica: waiting until they have them, or somebody accepts the loss"
    return None


_STEPS = {Step.WAITING: _waiting, Step.REPLACING: _replacing, Step.SETTLING: _settling}
