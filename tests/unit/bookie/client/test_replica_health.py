"""Tests the order in which replicas are read."""

from quire_bookie.client.replica_health import ReplicaHealth
from quire_bookie.limits import KIB, READ_FAILURE_AVOIDED_S, REPLICA_LATENCY_REMEMBERED_S
from quire_bookie.model import BookieId

A, B, C = BookieId("a"), BookieId("b"), BookieId("c")


class World:
    """Provides a clock, suspects and quarantined bookies."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.suspects: set[BookieId] = set()
        self.quarantined: set[BookieId] = set()
        self.health = ReplicaHealth(lambda: self.now_s, lambda: self.suspects, lambda: self.quarantined)

    def answers(self, bookie: BookieId, waited_s: float, times: int = 1, size_bytes: int = 0) -> None:
        for _ in range(times):
            self.health.answered(bookie, waited_s, self.now_s, size_bytes)

    def order(self, preferred: BookieId | None = None) -> list[BookieId]:
        return self.health.order([A, B, C], preferred)


def test_without_observations_the_write_set_keeps_its_order_after_the_preferred_one() -> None:
    world = World()
    assert world.order() == [A, B, C]
    assert world.order(C) == [C, A, B]


def test_a_replica_that_is_much_slower_is_read_last_even_if_preferred() -> None:
    world = World()
    world.answers(A, 0.5)
    world.answers(B, 0.001)
    world.answers(C, 0.003)
    assert world.order(A) == [B, C, A]


def test_small_differences_do_not_change_the_order() -> None:
    world = World()
    world.answers(A, 0.009)
    world.answers(B, 0.0001)
    assert world.order() == [A, B, C], "below the threshold of a slow replica"
    world.answers(A, 0.3, times=100)
    world.answers(B, 0.1, times=100)
    world.answers(C, 0.1, times=100)
    assert world.order() == [A, B, C], "all of them have slow disks"


def test_a_replica_of_unknown_latency_is_tried_if_the_others_are_slow() -> None:
    world = World()
    world.answers(A, 1.0)
    assert world.order(A) == [B, C, A]


def test_one_slow_response_among_many_fast_ones_counts_little() -> None:
    world = World()
    world.answers(A, 0.001, times=50)
    world.answers(A, 0.05)
    world.answers(B, 0.001)
    assert world.order() == [A, B, C]


def test_the_time_of_a_large_response_is_scaled_down() -> None:
    world = World()
    world.answers(A, 0.1, size_bytes=20 * 256 * KIB)
    world.answers(B, 0.004)
    world.answers(C, 0.004)
    assert world.order() == [A, B, C]


def test_slowness_is_forgotten_so_that_the_replica_is_tried_again() -> None:
    world = World()
    world.answers(A, 1.0)
    world.now_s += REPLICA_LATENCY_REMEMBERED_S + 1
    assert world.order() == [A, B, C]
    assert world.health.latency_s(A) is None
    world.answers(A, 0.001)
    assert world.health.latency_s(A) == 0.001, "expired observations are not part of the mean"


def test_a_failure_orders_a_replica_after_the_slow_ones_for_a_while() -> None:
    world = World()
    world.answers(B, 1.0)
    world.health.failed(A)
    assert world.order(A) == [C, B, A]
    world.now_s += READ_FAILURE_AVOIDED_S + 0.1
    assert world.order(A) == [A, C, B]


def test_quarantine_counts_as_a_failure_and_unreachable_replicas_come_last() -> None:
    world = World()
    world.quarantined = {A}
    world.suspects = {B}
    assert world.order() == [C, A, B]


def test_every_observation_that_may_change_an_order_changes_the_version() -> None:
    world = World()
    seen = [world.health.version]

    def changed() -> bool:
        seen.append(world.health.version)
        return seen[-1] != seen[-2]

    world.answers(A, 0.001)
    assert changed()
    world.answers(A, 0.001)
    assert not changed(), "a normal response changes nothing"
    world.answers(A, 5.0)
    assert changed()
    world.health.failed(B)
    assert changed()
    world.health.overdue(C, 2.0)
    assert changed()
