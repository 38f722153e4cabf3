"""A cluster in numbers: brokers with bundles of unequal, noisy traffic, late load reports, a leader's rounds.

Time goes in steps of one round. A broker's usage is the sum of what its bundles cause. Its report is a sample of that
from some rounds ago. Traffic changes only where a test changes it.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from quire_broker.balancing.plan.candidates import Rules
from quire_broker.balancing.plan.loads import BrokerId, BrokerLoad, BundleLoad, BundleName, Snapshot
from quire_broker.balancing.plan.placement import NONE_PENDING, Pending, place
from quire_broker.balancing.plan.shedding import Move, SheddingPlan, SheddingState, plan_moves
from quire_broker.settings.balancing import BalancingSettings

ROUND_S = 60.0
Planner = Callable[[Snapshot, SheddingState, Rules, BalancingSettings], SheddingPlan]


@dataclass
class Leader:
    """One leader with its own memory and its own view of the reports."""

    planner: Planner
    settings: BalancingSettings
    state: SheddingState = field(default_factory=SheddingState)

    def round(self, seen: Snapshot) -> tuple[Move, ...]:
        plan = self.planner(seen, self.state, Rules(), self.settings)
        self.state = self.state.after(plan, seen.now_s, self.settings)
        return plan.moves


class SimulatedCluster:
    """Brokers, bundles and the history of moves."""

    def __init__(self, brokers: int, bundles: int, seed: int, *, noise: float = 0.05, delay_rounds: int = 1) -> None:
        self._chance = random.Random(seed)
        self._noise, self._delay = noise, delay_rounds
        self.now_s = 0.0
        self.rates: dict[BundleName, float] = {}
        """Messages per second of each bundle; 100,000 keep one broker busy."""
        self.owners: dict[BundleName, BrokerId] = {}
        self.brokers = [BrokerId(f"broker-{number}:8080") for number in range(brokers)]
        self._reports: list[dict[BrokerId, BrokerLoad]] = []
        self.moves: list[tuple[float, Move]] = []
        mean = 0.5 * 100_000 * brokers / bundles
        for number in range(bundles):
            name = BundleName(f"shop/orders{number}/0x00000000_0xffffffff")
            self.rates[name] = mean * self._chance.expovariate(1.0)

    def assign(self, settings: BalancingSettings) -> None:
        """Assign all bundles as a leader does that knows no traffic yet."""
        pending: dict[BrokerId, Pending] = {}
        seen = Snapshot(self.now_s, {name: BrokerLoad(name, 0.0) for name in self.brokers})
        for name in self.rates:
            found = place(name, seen, Rules(), pending, settings)
            assert found is not None
            before = pending.get(found.broker, NONE_PENDING)
            pending[found.broker] = Pending(before.bundles + 1, before.usage + found.added)
            self.owners[name] = found.broker

    def usages(self) -> dict[BrokerId, float]:
        """Return the true usage of each broker."""
        found = dict.fromkeys(self.brokers, 0.0)
        for name, owner in self.owners.items():
            found[owner] += self.rates[name] / 100_000
        return found

    def _report(self) -> dict[BrokerId, BrokerLoad]:
        held = defaultdict(list)
        for name, owner in self.owners.items():
            rate = self.rates[name] * self._chance.uniform(1 - self._noise, 1 + self._noise)
            held[owner].append(BundleLoad(name, topics=1, messages_per_s=rate))
        return {
            broker: BrokerLoad(
                broker,
                sum(each.messages_per_s for each in held[broker]) / 100_000,
                bundles=tuple(held[broker]),
                bundle_count=len(held[broker]),
                messages_per_s=sum(each.messages_per_s for each in held[broker]),
                reported_s=self.now_s,
            )
            for broker in self.brokers
        }

    def run(self, rounds: int, *leaders: Leader) -> None:
        """Run the rounds; with several leaders each acts without the other's memory."""
        for _ in range(rounds):
            self.now_s += ROUND_S
            self._reports.append(self._report())
            late = self._reports[max(0, len(self._reports) - 1 - self._delay)]
            for leader in leaders:
                for move in leader.round(Snapshot(self.now_s, late)):
                    self.owners[move.bundle] = move.target
                    self.moves.append((self.now_s, move))

    def check(self, settings: BalancingSettings, *, quiet_after_s: float) -> None:
        """AssertionError unless it is balanced, calm since `quiet_after_s`, and moves were few and not repeated."""
        usages = self.usages()
        average = sum(usages.values()) / len(usages)
        mark = max(settings.idle, average + settings.threshold) * (1 + 2 * self._noise)
        high = {broker: usage for broker, usage in usages.items() if usage > mark}
        assert not high, f"not balanced: {high}, average {average:.2f}"
        late = [move for at, move in self.moves if at > quiet_after_s]
        assert not late, f"moves still after {quiet_after_s:.0f} s: {len(late)}"
        repeated = [name for name, count in Counter(move.bundle for _, move in self.moves).items() if count > 1]
        assert not repeated, f"moved more than once: {repeated[:5]}"
        both = {move.source for _, move in self.moves} & {move.target for _, move in self.moves}
        assert len(both) <= len(self.brokers) / 20, f"gave and got bundles: {both}"
        per_round = Counter(at for at, _ in self.moves)
        most = max(per_round.values(), default=0)
        assert most <= settings.moves_per_minute_max, f"{most} moves within a minute"


def trusting_old_reports(
    seen: Snapshot, state: SheddingState, rules: Rules, settings: BalancingSettings
) -> SheddingPlan:
    """Plan as if every report were from now: a broken variant."""
    return plan_moves(seen, replace(state, touched={}), rules, settings)


def forgetting(seen: Snapshot, state: SheddingState, rules: Rules, settings: BalancingSettings) -> SheddingPlan:
    """Plan without the memory of earlier rounds: a broken variant without hysteresis and cool-down."""
    return plan_moves(seen, SheddingState(recent=state.recent), rules, replace(settings, hits=1, threshold=0.01))
