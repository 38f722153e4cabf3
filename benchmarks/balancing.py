"""Measures what load balancing costs with 10,000 bundles: rounds of the leader, assignments, splits, reports.

python -m benchmarks.balancing [--brokers 100] [--bundles 10000]

The share of a core is that of one round in each interval of the default settings.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable

from quire_broker.balancing.load_report import BundleStats, Usage, load_of, report_of
from quire_broker.balancing.plan.candidates import Rules
from quire_broker.balancing.plan.loads import BrokerId, BrokerLoad, BundleLoad, BundleName, Snapshot
from quire_broker.balancing.plan.placement import place
from quire_broker.balancing.plan.shedding import SheddingState, plan_moves
from quire_broker.balancing.plan.splitting import plan_splits
from quire_broker.policies.store import encode_json
from quire_broker.settings.balancing import BalancingSettings

ROUNDS = 20
ASSIGNMENTS = 1000


def cluster(brokers: int, bundles: int) -> Snapshot:
    """Return a cluster in which one broker of ten is overloaded."""
    chance, found = random.Random(1), {}
    for number in range(brokers):
        name = BrokerId(f"broker-{number}:8080")
        loads = tuple(
            BundleLoad(
                BundleName(f"tenant/namespace-{number}-{index // 64}/0x{index:08x}_0x{index + 1:08x}"),
                topics=chance.randrange(20),
                messages_per_s=chance.expovariate(0.01),
            )
            for index in range(bundles // brokers)
        )
        found[name] = BrokerLoad(
            name,
            0.8 if number % 10 == 0 else chance.uniform(0.3, 0.5),
            bundles=loads,
            bundle_count=len(loads),
            topics=sum(each.topics for each in loads),
            messages_per_s=sum(each.messages_per_s for each in loads),
            reported_s=1e6,
        )
    return Snapshot(1e6, found)


def milliseconds(work: Callable[[], object], rounds: int) -> float:
    """Return the median time of `work`."""
    took = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        took.append((time.perf_counter() - begun) * 1000)
    return statistics.median(took)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", type=int, default=100)
    parser.add_argument("--bundles", type=int, default=10_000)
    given = parser.parse_args()
    settings, seen = BalancingSettings(hits=1, split_hits=1), cluster(given.brokers, given.bundles)
    loads = [load for broker in seen.brokers.values() for load in broker.bundles]
    moves = len(plan_moves(seen, SheddingState(), Rules(), settings).moves)
    shed = milliseconds(lambda: plan_moves(seen, SheddingState(), Rules(), settings), ROUNDS)
    split = milliseconds(lambda: plan_splits(loads, {}, {}, settings), ROUNDS)
    names = iter(load.name for load in loads * 2)
    placed = milliseconds(lambda: place(next(names), seen, Rules(), {}, settings), ASSIGNMENTS)
    share = shed / 1000 / settings.shedding_interval_s
    print(f"{given.brokers} brokers, {given.bundles} bundles; shares of a core at the default intervals")
    print(f"a round with {moves} moves: {shed:.1f} ms, {share:.3%} of a core")
    print(f"a check for splits:   {split:.1f} ms, {split / 1000 / settings.report_interval_s:.3%}, of all brokers")
    print(f"an assignment:        {placed:.2f} ms")
    stats = {load.name: BundleStats(load.messages_per_s, topics=load.topics) for load in loads}

    def report() -> object:
        made = report_of(Usage(), stats, (), 0, settings.report_bundles_max)
        return load_of("broker-0:8080", json.loads(encode_json(made)), 0.0)

    took = milliseconds(report, ROUNDS)
    print(f"a report of a broker with all bundles: {took:.1f} ms, {took / 1000 / settings.report_interval_s:.3%}")


if __name__ == "__main__":
    main()
