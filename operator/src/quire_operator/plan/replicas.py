"""Computes how many pods a pool may have now, from ordinals. Pure."""

from quire_operator.api.operations import OperationType, Step
from quire_operator.builders.naming import BOOKIE, ordinal_of, pod_name
from quire_operator.plan.seen import PoolSeen


def replicas_there(seen: PoolSeen) -> int:
    """Return the number of pods of the pool: the highest ordinal of a pod, a claim or the StatefulSet, plus 1.

    Claims count because they have a bookie's data, for example those of a pool that was deleted and recreated. Omitting
    one would remove a bookie without a drain.
    """
    leaving = _leaving(seen)
    claimed = [claim.pod for claim in seen.claims if not claim.deleting and claim.pod != leaving]
    if seen.stateful_set is not None:
        # Its replicas are the latest decision; pods above are terminating.
        return max(seen.stateful_set.replicas, _above(claimed))
    return _above([*claimed, *(pod.name for pod in seen.pods if pod.name != leaving)])


def _above(pods: list[str]) -> int:
    return max((ordinal_of(pod) + 1 for pod in pods), default=0)


def _leaving(seen: PoolSeen) -> str | None:
    """Return the pod of a drain whose bookie was found empty; its claims no longer count."""
    operation = seen.resource.status.operation
    if operation is None or operation.type is not OperationType.DRAIN:
        return None
    return None if operation.step in (Step.COPYING, Step.VERIFYING) else operation.pod


def allowed_replicas(seen: PoolSeen) -> int:
    """Return the wanted replicas of the StatefulSet: never fewer than exist, as only a drain removes one."""
    return max(seen.resource.spec.replicas, replicas_there(seen))


def last_pod(seen: PoolSeen) -> str:
    """Return the pod that a StatefulSet would remove next: the one with the highest ordinal."""
    return pod_name(seen.resource.meta.name, BOOKIE, replicas_there(seen) - 1)
