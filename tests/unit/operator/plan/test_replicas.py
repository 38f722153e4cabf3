"""Allowed numbers of pods."""

import pytest

from quire_operator.api.bookie import Bookie
from quire_operator.api.operations import OperationType, Step
from quire_operator.plan.drain import replicas_during
from quire_operator.plan.observation import ObservedClaim, ObservedPod, ObservedStatefulSet, PoolObservation
from quire_operator.plan.operations import begun
from quire_operator.plan.replicas import allowed_replicas, last_pod, replicas_there
from tests.support.kube_resources import bookie


def seen(
    wanted: int, in_set: int | None, pods: list[int], claims: list[int], step: Step | None = None
) -> PoolObservation:
    resource = Bookie.model_validate(bookie(replicas=wanted))
    if step is not None:
        operation = begun(OperationType.DRAIN, step, 0, pod=f"pool-bookie-{max(claims)}", target=str(max(claims)))
        resource = resource.model_copy(update={"status": resource.status.model_copy(update={"operation": operation})})
    return PoolObservation(
        resource,
        0,
        None if in_set is None else ObservedStatefulSet("pool-bookie", "u", in_set),
        tuple(ObservedPod(f"pool-bookie-{ordinal}") for ordinal in pods),
        tuple(ObservedClaim(f"c-{ordinal}", "ledgers0", f"pool-bookie-{ordinal}", "1Gi") for ordinal in claims),
    )


@pytest.mark.parametrize(
    ("wanted", "in_set", "pods", "claims", "there", "allowed"),
    [
        (3, None, [], [], 0, 3),  # a new pool
        (3, 3, [0, 1, 2], [0, 1, 2], 3, 3),
        (5, 3, [0, 1, 2], [0, 1, 2], 3, 5),  # scaled up: at once
        (2, 3, [0, 1, 2], [0, 1, 2], 3, 3),  # scaled down: only by a drain
        (3, None, [0, 1, 2, 3, 11], [], 12, 12),  # the StatefulSet is gone, its pods are not; ordinals of two digits
        (3, None, [], [0, 1, 4], 5, 5),  # a pool that was deleted: its claims have data
        (3, 3, [0, 1], [0, 1, 2, 3], 4, 4),  # the StatefulSet was scaled down manually: restored
        (0, 1, [0], [0], 1, 1),
    ],
)
def test_a_pool_never_has_fewer_pods_than_bookies_with_data(
    wanted: int, in_set: int | None, pods: list[int], claims: list[int], there: int, allowed: int
) -> None:
    found = seen(wanted, in_set, pods, claims)
    assert replicas_there(found) == there
    assert allowed_replicas(found) == allowed


@pytest.mark.parametrize("step", list(Step)[:5])
def test_only_a_drain_found_empty_removes_a_pod(step: Step) -> None:
    found = seen(2, 3, [0, 1, 2], [0, 1, 2], step)
    operation = found.resource.status.operation
    assert operation is not None
    empty = step not in (Step.COPYING, Step.VERIFYING)
    assert replicas_during(operation, allowed_replicas(found)) == (2 if empty else 3)


def test_claims_of_a_drained_bookie_do_not_count() -> None:
    found = seen(2, 2, [0, 1], [0, 1, 2], Step.RELEASING_CLAIMS)
    assert replicas_there(found) == 2


def test_the_pod_with_the_highest_ordinal_is_removed_first() -> None:
    assert last_pod(seen(3, 12, list(range(12)), list(range(12)))) == "pool-bookie-11"
