"""Computes how many pods a pool may have now, from ordinals. Pure."""

from quire_operator.api.operations import OperationType, Step
from quire_operator.builders.naming import BOOKIE, ordinal_of, pod_name
from quire_operator.plan.observation import PoolObservation


def replicas_there(observed: PoolObservation) -> int:
    """Return the number of pods of the pool: the highest ordinal of a pod, a claim or the StatefulSet, plus 1.

    Claims count because they have a bookie's data, for example those of a pool that was deleted and recreated. Omitting
    one would remove a bookie without a drain.
    """
    leaving = _leaving(observed)
    claimed = [claim.pod for claim in observed.claims if not claim.deleting and claim.pod != leaving]
    if observed.stateful_set is not None:
        # Its replicas are the latest decision; pods above are terminating.
        return max(observed.stateful_set.replicas, _above(claimed))
    return _above([*claimed, *(pod.name for pod in observed.pods if pod.name != leaving)])


def _above(pods: list[str]) -> int:
    return max((ordinal_of(pod) + 1 for pod in pods), default=0)


def _leaving(observed: PoolObservation) -> str | None:
    """Return the pod of a drain whose bookie was found empty; its claims no longer count."""
    operation = observed.resource.status.operation
    if operation is None or operation.type is not OperationType.DRAIN:
        return None
    return None if operation.step in (Step.COPYING, Step.VERIFYING) else operation.pod


def allowed_replicas(observed: PoolObservation) -> int:
    """Return the wanted replicas of the StatefulSet: never fewer than exist, as only a drain removes one."""
    return max(observed.resource.spec.replicas, replicas_there(observed))


def last_pod(observed: PoolObservation) -> str:
    """Return the pod that a StatefulSet would remove next: the one with the highest ordinal."""
    return pod_name(observed.resource.meta.name, BOOKIE, replicas_there(observed) - 1)
