"""How many pods a pool may have now: arithmetic over ordinals. Pure."""

from quire_operator.api.operations import OperationType, Step
from quire_operator.builders.naming import BOOKIE, ordinal_of, pod_name
from quire_operator.plan.seen import PoolSeen


def replicas_there(seen: PoolSeen) -> int:
    """Pods that the pool has, or had when it was last whole: the highest ordinal of a pod, a claim or the set, plus 1.

    Claims count: they hold a bookie's data, of a pool that was deleted and made anew, for example. Leaving one out
    would take a bookie away without a drain.
    """
    leaving = _leaving(seen)
    claimed = [claim.pod for claim in seen.claims if not claim.deleting and claim.pod != leaving]
    if seen.stateful_set is not None:
        # Its own number is what was decided last; pods above it are on their way out.
        return max(seen.stateful_set.replicas, _above(claimed))
    return _above([*claimed, *(pod.name for pod in seen.pods if pod.name != leaving)])


def _above(pods: list[str]) -> int:
    return max((ordinal_of(pod) + 1 for pod in pods), default=0)


def _leaving(seen: PoolSeen) -> str | None:
    """The pod of a drain that was found to be empty: from then on its claims count no more."""
    operation = seen.resource.status.operation
    if operation is None or operation.type is not OperationType.DRAIN:
        return None
    return None if operation.step in (Step.COPYING, Step.VERIFYING) else operation.pod


def allowed_replicas(seen: PoolSeen) -> int:
    """Pods that the StatefulSet should have: never fewer than there are; a drain alone takes one away."""
    return max(seen.resource.spec.replicas, replicas_there(seen))


def last_pod(seen: PoolSeen) -> str:
    """The pod that would leave next: a StatefulSet takes the highest ordinal."""
    return pod_name(seen.resource.meta.name, BOOKIE, replicas_there(seen) - 1)
