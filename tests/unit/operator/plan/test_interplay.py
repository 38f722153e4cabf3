"""Operations of a pool that meet each other, a deletion, a pause, another pool, or a loss that a person accepts."""

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
    """Passes until an operation is at this step."""
    for _ in range(passes):
        if (world.resource.get("status", {}).get("operation") or {}).get("step") == step:
            return
        world.one_pass()
        world.settle()
    raise AssertionError(f"never {step}: {world.status()}")


def passes(world: World, count: int = 30) -> None:
    for _ in range(count):
        world.one_pass()
        world.settle()


def draining(step: str = "Copying") -> World:
    world = running(5)
    world.change(replicas=4)
    until(world, step)
    return world


def lose(world: World, pod: str = LOST) -> str:
    """For good, by a person's word; the id that was there."""
    old = world.disks[pod].bookie
    world.lose_node(pod)
    world.ask_to_replace(pod)
    return old


@pytest.mark.parametrize("step", ["Copying", "Verifying"])
def test_a_lost_bookie_goes_before_a_drain_whose_bookie_stays_meanwhile(step: str) -> None:
    world = draining(step)
    leaving, old = world.disks[LAST].bookie, lose(world)
    world.one_pass()
    assert world.status()["operation"]["type"] == "Replace"
    assert leaving not in world.drains, "nobody would call that off, if the drain were not wanted any more"
    world.run()
    assert old not in world.cookies
    assert (len(world.pods), len(world.cookies)) == (4, 4), "and the drain went on afterwards"
    assert reasons(world).count("DrainStarted") == 2


def test_a_drain_that_took_the_pod_is_finished_before_a_lost_bookie_is_replaced() -> None:
    world = draining("Shrinking")
    old = lose(world)
    world.one_pass()
    assert world.status()["operation"]["type"] == "Drain"
    world.run()
    assert (len(world.pods), len(world.cookies)) == (4, 4)
    assert old not in world.cookies


def test_the_bookie_that_leaves_is_not_replaced_when_it_is_lost_but_emptied_from_its_replicas() -> None:
    world = draining()
    lose(world, LAST)
    world.run()
    assert "ReplaceStarted" not in reasons(world)
    assert (len(world.pods), len(world.cookies)) == (4, 4)


def test_a_lost_bookie_goes_before_an_expansion_that_waits_for_claims() -> None:
    world = running(4)
    world.change(storage=MORE_VOLUMES)
    until(world, "ResizingClaims")
    old = lose(world)
    world.one_pass()
    assert world.status()["operation"]["type"] == "Replace"
    world.run()
    assert old not in world.cookies
    assert len(world.claims) == 12, "and the expansion went on afterwards"


@pytest.mark.slow
def test_an_operator_that_is_killed_anywhere_while_one_takes_the_others_place_goes_on_to_the_same_end() -> None:
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


def test_a_bookie_that_was_forgotten_while_it_was_away_is_taken_away_all_the_same() -> None:
    world = draining("Verifying")
    world.pods[LAST] = replace(world.pods[LAST], ready=False)  # it crashed, and refuses to start without its cookie
    world.cookies.discard(world.disks[LAST].bookie)
    world.drains.clear()
    world.broken.add("quire:1")
    world.run()
    assert len(world.pods) == 4
    assert len(world.claims) == 8


def test_a_drain_does_not_end_when_its_bookie_is_needed_by_now() -> None:
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
def test_of_two_pools_that_began_at_once_one_bookie_leaves_when_both_would_be_too_many(
    other: str, leaving: bool, pods: int
) -> None:
    world = running(4)
    world.change(replicas=3)
    until(world, "Copying")
    world.drains[other] = ObservedDrain(other, emptied=False, ledgers_left=1, leaving=leaving)
    seen = world.observe()
    assert seen.cluster is not None
    world.audited = False
    own = world.disks["pool-bookie-3"].bookie
    world.disks["pool-bookie-3"].ledgers = 0
    # The other one is writable yet: nobody has told it.
    world.drains[own] = ObservedDrain(own, emptied=True, ledgers_left=0, checked_at_s=world.now_s + 10**6)
    world.namespaces = (ObservedNamespace("orders", 3),)
    observe = world.observe
    cluster = replace(seen.cluster, drains=tuple(world.drains.values()))
    too_few = frozenset({"pool-bookie-0", "pool-bookie-1"} | {other})
    world.observe = lambda: replace(observe(), cluster=replace(cluster, writable=too_few))  # type: ignore[method-assign]
    for _ in range(10):
        world.one_pass()
        world.now_s += 5
        cluster = replace(cluster, drains=tuple(replace(one, checked_at_s=world.now_s) for one in cluster.drains))
    assert pods_asked_for(world) == pods


def both_emptied(other: str) -> World:
    """A pool of three of which one is to leave; so is one of another pool. Both are empty and read-only."""
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
    world.audited = False  # the auditor of this small world knows one pool
    return world


def test_of_two_that_wait_for_each_other_the_one_whose_id_comes_last_stays() -> None:
    world = both_emptied("a-2")
    own = world.disks["pool-bookie-2"].bookie
    world.one_pass()
    assert own not in world.drains
    assert "operation" not in world.status()
    passes(world, 5)
    assert own not in world.drains, "it does not begin anew while there is no room"
    assert world.condition("ScaleDownBlocked")["reason"] == "BelowEnsemble"


def test_of_two_that_wait_for_each_other_the_one_whose_id_comes_first_leaves_once_the_other_one_stays() -> None:
    world = both_emptied("z-2")
    own = world.disks["pool-bookie-2"].bookie
    for _ in range(5):
        world.now_s += 5
        world.drains[own] = replace(world.drains[own], checked_at_s=world.now_s)
        world.one_pass()
    assert own in world.drains
    assert pods_asked_for(world) == 3, "it waits"
    del world.drains["z-2"]
    world.audited = True
    passes(world, 10)
    assert pods_asked_for(world) == 2


def test_a_bookie_is_not_taken_by_one_look_of_the_auditor_however_wrong_its_clock_is() -> None:
    world = draining()
    world.audited = False
    own = world.disks[LAST].bookie
    world.disks[LAST].ledgers = 0
    world.drains[own] = ObservedDrain(own, emptied=True, ledgers_left=0, checked_at_s=world.now_s + 3600)
    passes(world, 10)
    assert world.status()["operation"]["step"] == "Verifying"
    assert pods_asked_for(world) == 5
    world.drains[own] = replace(world.drains[own], checked_at_s=world.now_s - 3600)  # of another auditor's clock
    passes(world, 2)
    assert pods_asked_for(world) == 4


def test_no_drain_begins_beside_one_of_another_pool_when_both_would_be_too_many() -> None:
    world = running(4)
    world.change(replicas=3)
    world.drains["pool-bookie-0-other"] = ObservedDrain("pool-bookie-0-other", emptied=False, ledgers_left=1)
    world.drains[world.disks["pool-bookie-0"].bookie] = ObservedDrain(world.disks["pool-bookie-0"].bookie, False, 1)
    world.audited = False
    passes(world, 5)
    assert "operation" not in world.status()
    assert world.condition("ScaleDownBlocked")["reason"] == "BelowEnsemble"


@pytest.mark.parametrize("step", ["Copying", "Verifying"])
def test_a_pool_that_is_deleted_while_a_bookie_was_to_leave_keeps_it(step: str) -> None:
    world = draining(step)
    deleting(world)
    world.one_pass()
    assert not world.drains, "else it would be forgotten as soon as its pod ends"
    world.namespaces = ()
    world.run()
    assert world.resource["metadata"]["finalizers"] == []
    assert len(world.claims) == 10


def test_the_deletion_waits_a_while_for_the_metadata_store_so_that_the_bookie_is_told() -> None:
    world = draining()
    world.namespaces, world.etcd_away = (), True
    world.resource["metadata"]["deletionTimestamp"] = "1970-01-12T13:46:40Z"
    world.now_s = 1_000_001.0
    world.one_pass()
    assert "waiting for the metadata store" in world.condition("Ready")["message"]
    world.now_s += 301
    world.one_pass()
    assert world.resource["metadata"]["finalizers"] == []


@pytest.mark.parametrize("step", ["Shrinking", "RemovingCookie"])
def test_a_pool_that_is_deleted_behind_a_drain_leaves_no_claims_of_a_bookie_that_is_forgotten(step: str) -> None:
    world = draining(step)
    deleting(world)
    world.namespaces = ()
    world.stateful_set, pods = None, dict(world.pods)
    world.pods.clear()
    world.one_pass()
    assert pods
    assert world.resource["metadata"]["finalizers"] == []
    assert len(world.claims) == 8


@pytest.mark.parametrize("step", ["Unbinding", "Rejoining", "RemovingCookie"])
def test_a_pool_that_is_deleted_while_a_lost_bookie_is_replaced_has_the_auditor_forget_it(step: str) -> None:
    world = running(4)
    old = lose(world)
    until(world, step)
    deleting(world)
    world.namespaces = ()
    world.drains.clear()  # the pass of this step is the one that sees the deletion
    world.one_pass()
    assert world.resource["metadata"]["finalizers"] == []
    assert old in world.drains, "a pool of this name would never learn of it"


def test_a_lost_bookie_that_no_operation_is_about_is_forgotten_with_the_pool() -> None:
    world = running(4)
    old = world.disks[LOST].bookie
    world.audited = False
    world.wipe(LOST)
    until(world, "RemovingCookie")
    world.resource["status"]["operation"] = None
    deleting(world)
    world.namespaces = ()
    world.drains.clear()
    world.one_pass()
    assert old in world.drains


def test_volumes_that_turned_up_again_keep_their_bookie_when_the_pool_is_deleted() -> None:
    world = running(4)
    old = lose(world)
    until(world, "Rejoining")
    world.pods[LOST] = replace(world.pods[LOST], ready=True)
    world.disks[LOST] = world.lost.pop(old)
    deleting(world)
    world.namespaces = ()
    world.drains.clear()
    world.one_pass()
    assert world.resource["metadata"]["finalizers"] == []
    assert not world.drains


def test_the_deletion_waits_a_while_for_the_metadata_store_so_that_a_lost_bookie_is_forgotten() -> None:
    world = running(4)
    old = lose(world)
    until(world, "Unbinding")
    world.namespaces, world.etcd_away = (), True
    world.resource["metadata"]["deletionTimestamp"] = rfc3339(world.now_s)
    world.one_pass()
    assert f"{old} was replaced" in world.condition("Ready")["message"]
    assert world.status()["operation"]["step"] == "Unbinding"
    world.now_s += 301
    world.one_pass()
    assert world.resource["metadata"]["finalizers"] == []


def test_a_pool_that_is_deleted_while_its_set_is_made_anew_ends_its_pods() -> None:
    world = running(3)
    world.change(storage=MORE_VOLUMES)
    until(world, "Recreating")
    world.stateful_set = None
    deleting(world)
    world.namespaces = ()
    world.one_pass()
    assert not world.pods, "no StatefulSet would end them"
    world.one_pass()
    assert world.resource["metadata"]["finalizers"] == []


ELSEWHERE = (ObservedNamespace("billing", 2, uses_this_pool=False),)


def deleted_with_another_pool(policy: str = "Delete") -> World:
    """One of two pools of an etcd is deleted: three bookies of it, and three of another one that go on."""
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
def test_a_pool_whose_bookies_hold_ledgers_of_other_pools_namespaces_is_not_taken_away(
    policy: str, etcd_away: bool
) -> None:
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


def test_a_deleted_pool_that_is_drained_goes_once_the_cluster_knows_none_of_its_bookies() -> None:
    world = deleted_with_another_pool()
    world.run()
    world.change(replicas=0)
    world.run()
    assert reasons(world).count("DrainStarted") == 3, "no pod goes without one: the small world would refuse it"
    assert world.resource["metadata"]["finalizers"] == []
    assert not world.claims
    assert not world.cookies


@pytest.mark.slow
def test_a_deleted_pool_that_is_killed_anywhere_on_its_way_to_none_comes_to_the_same_end() -> None:
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


def test_a_deleted_pool_goes_when_the_other_namespaces_have_and_when_it_is_the_last_one() -> None:
    world = deleted_with_another_pool()
    passes(world, 5)
    world.namespaces = ()
    world.run()
    assert world.resource["metadata"]["finalizers"] == []
    assert not world.claims


def test_a_pool_of_which_the_cluster_knows_no_bookie_is_held_by_nobody_elses_ledgers() -> None:
    world = deleted_with_another_pool()
    world.cookies.clear()
    world.run()
    assert world.resource["metadata"]["finalizers"] == []


def test_a_pause_holds_every_operation_where_it_is() -> None:
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
    """The new bookie is up, and a ledger that nobody can read still names the old one."""
    world = running(4)
    world.unrecoverable = 1
    old = lose(world)
    until(world, "RemovingCookie")
    passes(world, 10)
    return world, old


def test_a_replacement_behind_a_loss_says_whose_word_it_waits_for_and_ends_with_it() -> None:
    world, old = stuck_behind_a_loss()
    message = world.condition("Progressing")["message"]
    assert f"quire cluster decommission {old} --accept-loss" in message
    world.accepted = 1
    world.run()
    assert old not in world.cookies
    assert "operation" not in world.status()
    assert world.condition("FullyReplicated")["status"] == "True"
    assert "accepted losses" in world.condition("FullyReplicated")["message"]


def test_behind_a_loss_other_work_goes_on_and_the_id_is_forgotten_when_the_word_is_said() -> None:
    world, old = stuck_behind_a_loss()
    world.change(storage=MORE_VOLUMES)
    world.broken.clear()
    for _ in range(60):
        world.one_pass()
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


def test_another_lost_bookie_goes_before_the_forgetting_of_the_first() -> None:
    world, old = stuck_behind_a_loss()
    other = lose(world, "pool-bookie-2")
    world.one_pass()
    assert world.status()["operation"]["pod"] == "pool-bookie-2"
    until(world, "Rejoining")
    world.accepted = 1
    world.run()
    assert not {old, other} & world.cookies


def test_an_accepted_loss_keeps_nobody_from_leaving() -> None:
    world = running(5)
    world.unrecoverable = 1
    world.change(replicas=4)
    passes(world, 5)
    assert world.condition("ScaleDownBlocked")["reason"] == "LedgersUnreadable"
    world.accepted = 1
    world.run()
    assert len(world.pods) == 4


def test_a_kill_while_a_drain_is_called_off_for_a_deletion_does_it_again() -> None:
    world = draining()
    world.namespaces = ()
    deleting(world)
    world.kill_at = world.done + 2
    with pytest.raises(Killed):
        world.one_pass()
    world.run()
    assert not world.drains
    assert world.resource["metadata"]["finalizers"] == []


@pytest.mark.parametrize(
    ("age_s", "said"), [(None, None), (-5, 0), (9, 0), (59, 50), (61, 60), (3599, 3540), (3700, 3600), (9000, 9000)]
)
def test_the_age_of_the_oldest_mark_is_told_in_steps_so_that_it_is_no_write_in_each_pass(
    age_s: float | None, said: int | None
) -> None:
    seen = running().observe()
    assert seen.cluster is not None
    marked_s = None if age_s is None else seen.now_s - age_s
    aged = replace(seen, cluster=replace(seen.cluster, under_replicated=2, oldest_mark_s=marked_s))
    assert oldest_mark_age_s(aged) == said
    found = plan_bookie(aged, "quire:1").status.under_replicated
    assert found is not None
    assert (found.count, found.oldest_seconds) == (2, said)
