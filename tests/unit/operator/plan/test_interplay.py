"""Operations of a pool combined with each other, a deletion, a pause, another pool, or an accepted loss."""

import copy
from dataclasses import replace

import pytest

from quire_operator.plan.bookie import plan_bookie
from quire_operator.plan.bookie_status import oldest_mark_age_s
from quire_operator.plan.observation import ObservedDrain, ObservedNamespace, PoolObservation
from quire_operator.plan.operations import rfc3339
from tests.unit.operator.plan.small_world import Killed, World
from tests.unit.operator.plan.test_bookie import MORE_VOLUMES, deleting, pods_asked_for, reasons, running

LOST, LAST = "pool-bookie-1", "pool-bookie-4"


def until(world: World, step: str, passes: int = 60) -> None:
    """Reconcile until the operation is at this step."""
    for _ in range(passes):
        if (world.resource.get("status", {}).get("operation") or {}).get("step") == step:
            return
        world.reconcile()
        world.settle()
    raise AssertionError(f"never {step}: {world.status()}")


def passes(world: World, count: int = 30) -> None:
    for _ in range(count):
        world.reconcile()
        world.settle()


def draining(step: str = "Copying") -> World:
    world = running(5)
    world.change(replicas=4)
    until(world, step)
    return world


def lose(world: World, pod: str = LOST) -> str:
    """Declare the volumes of a pod lost by annotation. Return the id of the lost bookie."""
    old = world.disks[pod].bookie
    world.lose_node(pod)
    world.ask_to_replace(pod)
    return old


@pytest.mark.parametrize("step", ["Copying", "Verifying"])
def test_a_replacement_preempts_a_drain_whose_bookie_stays_meanwhile(step: str) -> None:
    world = draining(step)
    leaving, old = world.disks[LAST].bookie, lose(world)
    world.reconcile()
    assert world.status()["operation"]["type"] == "Replace"
    assert leaving not in world.drains, "otherwise its drain would never be cancelled if it were no longer wanted"
    world.run()
    assert old not in world.cookies
    assert (len(world.pods), len(world.cookies)) == (4, 4), "and the drain continued afterwards"
    assert reasons(world).count("DrainStarted") == 2


def test_a_drain_that_deleted_the_pod_finishes_before_a_replacement() -> None:
    world = draining("Shrinking")
    old = lose(world)
    world.reconcile()
    assert world.status()["operation"]["type"] == "Drain"
    world.run()
    assert (len(world.pods), len(world.cookies)) == (4, 4)
    assert old not in world.cookies


def test_a_lost_draining_bookie_is_not_replaced_but_drained_from_its_replicas() -> None:
    world = draining()
    lose(world, LAST)
    world.run()
    assert "ReplaceStarted" not in reasons(world)
    assert (len(world.pods), len(world.cookies)) == (4, 4)


def test_a_replacement_preempts_an_expansion_that_waits_for_claims() -> None:
    world = running(4)
    world.change(storage=MORE_VOLUMES)
    until(world, "ResizingClaims")
    old = lose(world)
    world.reconcile()
    assert world.status()["operation"]["type"] == "Replace"
    world.run()
    assert old not in world.cookies
    assert len(world.claims) == 12, "and the expansion continued afterwards"


@pytest.mark.slow
def test_an_operator_killed_during_a_preemption_reaches_the_same_end() -> None:
    before = draining()
    before.done = 0
    whole = copy.deepcopy(before)
    lose(whole)
    whole.run()
    for step in range(1, whole.done + 1):
        world = copy.deepcopy(before)
        world.kill_at = step
        lose(world)
        world.run()
        assert (len(world.pods), len(world.cookies)) == (4, 4), f"killed before step {step}"
        assert not world.drains, f"killed before step {step}"


def test_a_draining_bookie_without_a_cookie_is_still_removed() -> None:
    world = draining("Verifying")
    world.pods[LAST] = replace(world.pods[LAST], ready=False)  # it crashed, and refuses to start without its cookie
    world.cookies.discard(world.disks[LAST].bookie)
    world.drains.clear()
    world.broken.add("quire:1")
    world.run()
    assert len(world.pods) == 4
    assert len(world.claims) == 8


def test_a_drain_does_not_end_if_its_bookie_is_needed_again() -> None:
    world = draining()
    world.namespaces = (ObservedNamespace("wide", 5),)
    passes(world)
    assert len(world.pods) == 5
    blocked = world.condition("ScaleDownBlocked")
    assert (blocked["status"], blocked["reason"]) == ("True", "BelowEnsemble")
    assert "wide" in blocked["message"]
    world.namespaces = (ObservedNamespace("wide", 4),)
    world.run()
    assert len(world.pods) == 4


@pytest.mark.parametrize(
    ("other", "leaving", "pods"),
    [("a-pool-bookie-3", True, 4), ("a-pool-bookie-3", False, 3), ("z-pool-bookie-3", True, 3)],
    ids=["the first", "the first, which the auditor has wait", "the second"],
)
def test_one_of_two_pools_drains_if_both_would_be_too_many(other: str, leaving: bool, pods: int) -> None:
    world = running(4)
    world.change(replicas=3)
    until(world, "Copying")
    world.drains[other] = ObservedDrain(other, emptied=False, ledgers_left=1, leaving=leaving)
    seen = world.observe()
    assert seen.cluster is not None
    world.audited = False
    own = world.disks["pool-bookie-3"].bookie
    world.disks["pool-bookie-3"].ledgers = 0
    # The other one is still writable: it does not know yet.
    world.drains[own] = ObservedDrain(own, emptied=True, ledgers_left=0, checked_at_s=world.now_s + 10**6)
    world.namespaces = (ObservedNamespace("orders", 3),)
    observe = world.observe
    cluster = replace(seen.cluster, drains=tuple(world.drains.values()))
    too_few = frozenset({"pool-bookie-0", "pool-bookie-1"} | {other})
    world.observe = lambda: replace(observe(), cluster=replace(cluster, writable=too_few))  # type: ignore[method-assign]
    for _ in range(10):
        world.reconcile()
        world.now_s += 5
        cluster = replace(cluster, drains=tuple(replace(one, checked_at_s=world.now_s) for one in cluster.drains))
    assert pods_asked_for(world) == pods


def both_emptied(other: str) -> World:
    """Return a pool with one of three bookies draining, beside one of another pool; both are empty and read-only."""
    world = running(3)
    world.namespaces = (ObservedNamespace("orders", 2),)
    world.change(replicas=2)
    until(world, "Verifying")
    world.disks["pool-bookie-2"].ledgers = 0
    observe = world.observe

    def with_the_other_pool() -> PoolObservation:
        seen = observe()
        assert seen.cluster is not None
        theirs = {"a-1", "z-1"} | ({other} - set(world.drains))
        return replace(seen, cluster=replace(seen.cluster, writable=seen.cluster.writable | theirs))

    world.observe = with_the_other_pool  # type: ignore[method-assign]
    world.drains[other] = ObservedDrain(other, emptied=True, ledgers_left=0, checked_at_s=world.now_s)
    world.namespaces = (ObservedNamespace("orders", 5),)
    world.audited = False  # the modelled auditor knows one pool
    return world


def test_of_two_mutually_waiting_drains_the_higher_id_stays() -> None:
    world = both_emptied("a-2")
    own = world.disks["pool-bookie-2"].bookie
    world.reconcile()
    assert own not in world.drains
    assert "operation" not in world.status()
    passes(world, 5)
    assert own not in world.drains, "it does not begin again while too few bookies are writable"
    assert world.condition("ScaleDownBlocked")["reason"] == "BelowEnsemble"


def test_of_two_mutually_waiting_drains_the_lower_id_leaves_after_the_other_yields() -> None:
    world = both_emptied("z-2")
    own = world.disks["pool-bookie-2"].bookie
    for _ in range(5):
        world.now_s += 5
        world.drains[own] = replace(world.drains[own], checked_at_s=world.now_s)
        world.reconcile()
    assert own in world.drains
    assert pods_asked_for(world) == 3, "it waits"
    del world.drains["z-2"]
    world.audited = True
    passes(world, 10)
    assert pods_asked_for(world) == 2


def test_a_drain_needs_two_checks_of_the_auditor_even_with_a_wrong_clock() -> None:
    world = draining()
    world.audited = False
    own = world.disks[LAST].bookie
    world.disks[LAST].ledgers = 0
    world.drains[own] = ObservedDrain(own, emptied=True, ledgers_left=0, checked_at_s=world.now_s + 3600)
    passes(world, 10)
    assert world.status()["operation"]["step"] == "Verifying"
    assert pods_asked_for(world) == 5
    world.drains[own] = replace(world.drains[own], checked_at_s=world.now_s - 3600)  # by the clock of another auditor
    passes(world, 2)
    assert pods_asked_for(world) == 4


def test_no_drain_begins_during_one_of_another_pool_if_both_would_be_too_many() -> None:
    world = running(4)
    world.change(replicas=3)
    world.drains["pool-bookie-0-other"] = ObservedDrain("pool-bookie-0-other", emptied=False, ledgers_left=1)
    world.drains[world.disks["pool-bookie-0"].bookie] = ObservedDrain(world.disks["pool-bookie-0"].bookie, False, 1)
    world.audited = False
    passes(world, 5)
    assert "operation" not in world.status()
    assert world.condition("ScaleDownBlocked")["reason"] == "BelowEnsemble"


@pytest.mark.parametrize("step", ["Copying", "Verifying"])
def test_deletion_during_a_drain_keeps_the_bookie(step: str) -> None:
    world = draining(step)
    deleting(world)
    world.reconcile()
    assert not world.drains, "otherwise its cookie would be removed as soon as its pod ends"
    world.namespaces = ()
    world.run()
    assert world.resource["metadata"]["finalizers"] == []
    assert len(world.claims) == 10


def test_deletion_waits_for_the_metadata_store_to_cancel_a_drain() -> None:
    world = draining()
    world.namespaces, world.etcd_away = (), True
    world.resource["metadata"]["deletionTimestamp"] = "1970-01-12T13:46:40Z"
    world.now_s = 1_000_001.0
    world.reconcile()
    assert "waiting for the metadata store" in world.condition("Ready")["message"]
    world.now_s += 301
    world.reconcile()
    assert world.resource["metadata"]["finalizers"] == []


@pytest.mark.parametrize("step", ["Shrinking", "RemovingCookie"])
def test_deletion_late_in_a_drain_leaves_no_claims_of_the_drained_bookie(step: str) -> None:
    world = draining(step)
    deleting(world)
    world.namespaces = ()
    world.stateful_set, pods = None, dict(world.pods)
    world.pods.clear()
    world.reconcile()
    assert pods
    assert world.resource["metadata"]["finalizers"] == []
    assert len(world.claims) == 8


@pytest.mark.parametrize("step", ["Unbinding", "Rejoining", "RemovingCookie"])
def test_deletion_during_a_replacement_has_the_lost_bookie_removed(step: str) -> None:
    world = running(4)
    old = lose(world)
    until(world, step)
    deleting(world)
    world.namespaces = ()
    world.drains.clear()  # the reconciliation of this step is the first to observe the deletion
    world.reconcile()
    assert world.resource["metadata"]["finalizers"] == []
    assert old in world.drains, "a new pool of this name would not know it"


def test_a_lost_bookie_without_an_operation_is_removed_with_the_pool() -> None:
    world = running(4)
    old = world.disks[LOST].bookie
    world.audited = False
    world.wipe(LOST)
    until(world, "RemovingCookie")
    world.resource["status"]["operation"] = None
    deleting(world)
    world.namespaces = ()
    world.drains.clear()
    world.reconcile()
    assert old in world.drains


def test_reappeared_volumes_keep_their_bookie_when_the_pool_is_deleted() -> None:
    world = running(4)
    old = lose(world)
    until(world, "Rejoining")
    world.pods[LOST] = replace(world.pods[LOST], ready=True)
    world.disks[LOST] = world.lost.pop(old)
    deleting(world)
    world.namespaces = ()
    world.drains.clear()
    world.reconcile()
    assert world.resource["metadata"]["finalizers"] == []
    assert not world.drains


def test_deletion_waits_for_the_metadata_store_to_remove_a_lost_bookie() -> None:
    world = running(4)
    old = lose(world)
    until(world, "Unbinding")
    world.namespaces, world.etcd_away = (), True
    world.resource["metadata"]["deletionTimestamp"] = rfc3339(world.now_s)
    world.reconcile()
    assert f"{old} was replaced" in world.condition("Ready")["message"]
    assert world.status()["operation"]["step"] == "Unbinding"
    world.now_s += 301
    world.reconcile()
    assert world.resource["metadata"]["finalizers"] == []


def test_deletion_while_the_stateful_set_is_recreated_deletes_the_pods() -> None:
    world = running(3)
    world.change(storage=MORE_VOLUMES)
    until(world, "Recreating")
    world.stateful_set = None
    deleting(world)
    world.namespaces = ()
    world.reconcile()
    assert not world.pods, "no StatefulSet would delete them"
    world.reconcile()
    assert world.resource["metadata"]["finalizers"] == []


ELSEWHERE = (ObservedNamespace("billing", 2, uses_this_pool=False),)


def deleted_with_another_pool(policy: str = "Delete") -> World:
    """Return one of two pools of an etcd, which is deleted: it has three bookies, and the other pool has three."""
    world = running(3)
    world.change(storage={"journal": {"size": "10Gi"}, "ledgers": {"size": "100Gi"}, "reclaimPolicy": policy})
    world.namespaces = ELSEWHERE
    observe = world.observe

    def with_the_other_pool() -> PoolObservation:
        seen = observe()
        if seen.cluster is None:
            return seen
        theirs = {"other-0", "other-1", "other-2"}
        cluster = replace(seen.cluster, writable=seen.cluster.writable | theirs, known=seen.cluster.known | theirs)
        return replace(seen, cluster=cluster)

    world.observe = with_the_other_pool  # type: ignore[method-assign]
    deleting(world)
    return world


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
@pytest.mark.parametrize("etcd_away", [False, True])
def test_a_pool_with_ledgers_of_other_pools_namespaces_is_not_deleted(policy: str, etcd_away: bool) -> None:
    world = deleted_with_another_pool(policy)
    world.etcd_away = etcd_away
    passes(world)
    assert world.resource["metadata"]["finalizers"] == ["quire.dev/bookie"]
    assert (len(world.pods), len(world.claims)) == (3, 6)
    assert world.status()["phase"] == "Deleting"
    ready = world.condition("Ready")
    assert ready["reason"] == "DeletionHeld"
    assert "billing" in ready["message"] and "set replicas to 0" in ready["message"]
    assert reasons(world).count("DeletionHeld") == 1


def test_a_deleted_pool_is_gone_once_the_cluster_knows_none_of_its_bookies() -> None:
    world = deleted_with_another_pool()
    world.run()
    world.change(replicas=0)
    world.run()
    assert reasons(world).count("DrainStarted") == 3, "no pod is removed without a drain: the model would refuse it"
    assert world.resource["metadata"]["finalizers"] == []
    assert not world.claims
    assert not world.cookies


@pytest.mark.slow
def test_an_operator_killed_while_a_deleted_pool_drains_reaches_the_same_end() -> None:
    whole = deleted_with_another_pool()
    whole.done = 0
    whole.change(replicas=0)
    whole.run()
    assert whole.resource["metadata"]["finalizers"] == []
    for step in range(1, whole.done + 1):
        world = deleted_with_another_pool()
        world.done, world.kill_at = 0, step
        world.change(replicas=0)
        world.run()
        assert world.resource["metadata"]["finalizers"] == [], f"killed before step {step}"
        assert not world.cookies, f"killed before step {step}"


def test_a_deleted_pool_is_gone_after_the_other_namespaces_or_as_the_last_one() -> None:
    world = deleted_with_another_pool()
    passes(world, 5)
    world.namespaces = ()
    world.run()
    assert world.resource["metadata"]["finalizers"] == []
    assert not world.claims


def test_a_pool_without_known_bookies_is_not_held_by_other_namespaces() -> None:
    world = deleted_with_another_pool()
    world.cookies.clear()
    world.run()
    assert world.resource["metadata"]["finalizers"] == []


def test_a_pause_stops_every_operation_at_its_step() -> None:
    world = draining()
    world.change(paused=True)
    lose(world)
    before = copy.deepcopy(world.status()["operation"])
    passes(world, 10)
    assert world.status()["operation"] == before
    assert len(world.pods) == 5
    world.change(paused=False)
    world.run()
    assert (len(world.pods), len(world.cookies)) == (4, 4)


def stuck_behind_a_loss() -> tuple[World, str]:
    """Return a pool whose new bookie runs while an unreadable ledger still names the old one."""
    world = running(4)
    world.unrecoverable = 1
    old = lose(world)
    until(world, "RemovingCookie")
    passes(world, 10)
    return world, old


def test_a_replacement_waits_for_an_accepted_loss_and_ends_with_it() -> None:
    world, old = stuck_behind_a_loss()
    message = world.condition("Reconciling")["message"]
    assert f"quire cluster decommission {old} --accept-loss" in message
    world.accepted = 1
    world.run()
    assert old not in world.cookies
    assert "operation" not in world.status()
    assert world.condition("FullyReplicated")["status"] == "True"
    assert "accepted losses" in world.condition("FullyReplicated")["message"]


def test_during_an_unaccepted_loss_other_work_continues_and_the_id_is_removed_later() -> None:
    world, old = stuck_behind_a_loss()
    world.change(storage=MORE_VOLUMES)
    world.broken.clear()
    for _ in range(60):
        world.reconcile()
        world.settle()
        if world.stateful_set and len(world.stateful_set["spec"]["volumeClaimTemplates"]) == 3:
            break
    else:
        raise AssertionError(world.status())
    assert old in world.cookies
    world.accepted = 1
    world.run()
    assert old not in world.cookies
    assert len(world.claims) == 12


def test_another_replacement_preempts_the_removal_of_an_old_id() -> None:
    world, old = stuck_behind_a_loss()
    other = lose(world, "pool-bookie-2")
    world.reconcile()
    assert world.status()["operation"]["pod"] == "pool-bookie-2"
    until(world, "Rejoining")
    world.accepted = 1
    world.run()
    assert not {old, other} & world.cookies


def test_an_accepted_loss_blocks_no_drain() -> None:
    world = running(5)
    world.unrecoverable = 1
    world.change(replicas=4)
    passes(world, 5)
    assert world.condition("ScaleDownBlocked")["reason"] == "LedgersUnreadable"
    world.accepted = 1
    world.run()
    assert len(world.pods) == 4


def test_a_cancellation_interrupted_by_a_kill_is_repeated() -> None:
    world = draining()
    world.namespaces = ()
    deleting(world)
    world.kill_at = world.done + 2
    with pytest.raises(Killed):
        world.reconcile()
    world.run()
    assert not world.drains
    assert world.resource["metadata"]["finalizers"] == []


@pytest.mark.parametrize(
    ("age_s", "expected"), [(None, None), (-5, 0), (9, 0), (59, 50), (61, 60), (3599, 3540), (3700, 3600), (9000, 9000)]
)
def test_the_age_of_the_oldest_mark_is_rounded_to_avoid_frequent_writes(
    age_s: float | None, expected: int | None
) -> None:
    seen = running().observe()
    assert seen.cluster is not None
    marked_s = None if age_s is None else seen.now_s - age_s
    aged = replace(seen, cluster=replace(seen.cluster, under_replicated=2, oldest_mark_s=marked_s))
    assert oldest_mark_age_s(aged) == expected
    found = plan_bookie(aged, "quire:1").status.under_replicated
    assert found is not None
    assert (found.count, found.oldest_seconds) == (2, expected)
