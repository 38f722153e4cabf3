"""Simulated clusters come to rest, with few moves and none repeated; broken variants of the rules are noticed."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from quire_broker.balancing.plan.loads import BrokerId
from quire_broker.balancing.plan.shedding import plan_moves
from quire_broker.settings.balancing import BalancingSettings
from tests.unit.broker.balancing.plan.simulated_cluster import (
    Leader,
    Planner,
    SimulatedCluster,
    forgetting,
    trusting_old_reports,
)

SETTINGS = BalancingSettings()
ROUNDS = 40


def one_broker_has_everything(cluster: SimulatedCluster) -> None:
    """Let the owners be as after an assignment that asks the first broker only, with a load that it can carry."""
    first = cluster.brokers[0]
    for name in cluster.rates:
        cluster.owners[name] = first
        cluster.rates[name] /= len(cluster.brokers)


def brokers_join(cluster: SimulatedCluster) -> None:
    """Add half as many brokers as there are, without any bundle."""
    cluster.assign(SETTINGS)
    cluster.brokers += [BrokerId(f"new-{number}:8080") for number in range(len(cluster.brokers) // 2)]


def traffic_moves(cluster: SimulatedCluster) -> None:
    """Let one tenth of the brokers get three times the traffic."""
    cluster.assign(SETTINGS)
    hot = set(cluster.brokers[::10])
    for name, owner in cluster.owners.items():
        if owner in hot:
            cluster.rates[name] *= 3


def idle(cluster: SimulatedCluster) -> None:
    """Let nearly nothing happen."""
    cluster.assign(SETTINGS)
    for name in cluster.rates:
        cluster.rates[name] /= 100


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("upset", [one_broker_has_everything, brokers_join, traffic_moves, idle])
def test_a_cluster_comes_to_rest(upset: Callable[[SimulatedCluster], None], seed: int) -> None:
    cluster = SimulatedCluster(9, 300, seed)
    upset(cluster)
    cluster.run(ROUNDS, Leader(plan_moves, SETTINGS))
    cluster.check(SETTINGS, quiet_after_s=ROUNDS * 60.0 / 2)
    assert upset is not idle or not cluster.moves


def test_hundreds_of_brokers_with_thousands_of_bundles_come_to_rest() -> None:
    cluster = SimulatedCluster(200, 4000, 1)
    traffic_moves(cluster)
    cluster.run(30, Leader(plan_moves, SETTINGS))
    cluster.check(SETTINGS, quiet_after_s=20 * 60.0)
    assert len(cluster.moves) < 300, "a small part of the bundles"


@pytest.mark.parametrize(
    ("planner", "leaders", "said"),
    [
        (trusting_old_reports, 1, "gave and got"),
        (plan_moves, 2, "within a minute|more than once|not balanced"),
        (forgetting, 1, "moved more than once|still"),
    ],
    ids=["an old report is trusted", "two leaders", "no hysteresis"],
)
def test_broken_variants_are_noticed(planner: Planner, leaders: int, said: str) -> None:
    settings = replace(SETTINGS, moves_per_minute_max=10)
    found = []
    for seed in range(3):
        cluster = SimulatedCluster(9, 300, seed, noise=0.1, delay_rounds=2)
        traffic_moves(cluster)
        cluster.run(ROUNDS, *(Leader(planner, settings) for _ in range(leaders)))
        try:
            cluster.check(settings, quiet_after_s=ROUNDS * 60.0 / 2)
        except AssertionError as error:
            found.append(str(error))
    assert re.search(said, "\n".join(found))


def test_the_rules_hold_where_the_broken_variants_do_not() -> None:
    settings = replace(SETTINGS, moves_per_minute_max=10)
    for seed in range(3):
        cluster = SimulatedCluster(9, 300, seed, noise=0.1, delay_rounds=2)
        traffic_moves(cluster)
        cluster.run(ROUNDS, Leader(plan_moves, settings))
        cluster.check(settings, quiet_after_s=ROUNDS * 60.0 / 2)
