"""Decides which bundles leave overloaded brokers, and where they go. Pure.

A broker is a *source* if its usage has been above the high mark for some rounds in a row, and then until it is below
the low mark:

    high mark   the average plus the threshold, at least the idle threshold; never above the overloaded threshold
    low mark    the average plus half of the threshold, likewise

What keeps moves from going back and forth:

* A move makes the target at most as busy as the source becomes. Only if the source is then still above the low mark,
  further moves may make a target busier than it, but clearly less busy than the source was.
* A broker that gave or got a bundle is neither source nor target until its usage has settled and a later report has
  arrived: an earlier one shows the load before the move.
* A moved bundle stays for the grace period, and one whose load is not known until it is (`carried`).
* The number of moves within a minute is bounded. The others that a round planned wait in a queue, and their brokers
  get no further plan until it is done.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from quire_bookie.dataclass import dataclass
from quire_broker.balancing.plan.candidates import Rules, candidates
from quire_broker.balancing.plan.loads import BrokerId, BrokerLoad, BundleLoad, BundleName, Snapshot
from quire_broker.settings.balancing import BalancingSettings

MINUTE_S = 60.0
PLANNED_MINUTES = 10
"""A round plans at most as many moves as this many minutes allow; later ones wait in a queue."""
MOVED_USAGE_MIN = 0.0005
"""A bundle that causes less than this is not worth the interruption of its clients."""
_EQUAL = 1e-9


@dataclass(frozen=True, slots=True)
class Move:
    """A bundle that leaves its broker, with the figures that decided. Usages are those before the move."""

    bundle: BundleName
    source: BrokerId
    target: BrokerId
    usage: float
    """The usage that the bundle is expected to cause."""
    source_usage: float
    target_usage: float
    average: float
    resource: str = "cpu"

    def explain(self) -> str:
        """Describe the move in one line."""
        return (
            f"{self.bundle} from {self.source} to {self.target}: the source uses {self.source_usage:.0%} of its "
            f"{self.resource}, the average is {self.average:.0%}, the target {self.target_usage:.0%}; the bundle "
            f"causes about {self.usage:.1%}, so that they become {self.source_usage - self.usage:.0%} and "
            f"{self.target_usage + self.usage:.0%}"
        )


@dataclass(frozen=True, slots=True)
class SheddingState:
    """The leader's memory between two rounds. A new leader begins with `recent` alone."""

    hits: Mapping[BrokerId, int] = field(default_factory=dict)
    """Rounds in a row in which a broker was above the high mark."""
    sources: frozenset[BrokerId] = frozenset()
    """Brokers whose bundles are being moved until they are below the low mark."""
    moved: Mapping[BundleName, float] = field(default_factory=dict)
    """When a bundle was last moved."""
    touched: Mapping[BrokerId, float] = field(default_factory=dict)
    """When a broker last gave or got a bundle."""
    recent: tuple[float, ...] = ()
    """Times of the moves of the last minute."""
    queued: tuple[Move, ...] = ()
    """Planned moves that wait because of the limit."""

    def made(self, now_s: float) -> int:
        """Return how many moves were made within the last minute."""
        return sum(now_s - at < MINUTE_S for at in self.recent)

    def after(self, plan: "SheddingPlan", now_s: float, settings: BalancingSettings) -> "SheddingState":
        """Return the state after a round whose moves were ordered."""
        moves = plan.moves
        moved = {name: at for name, at in self.moved.items() if now_s - at < settings.grace_s}
        touched = {broker: at for broker, at in self.touched.items() if now_s - at < settings.grace_s}
        return replace(
            self,
            hits=plan.hits,
            sources=plan.sources,
            moved=moved | {each.bundle: now_s for each in moves},
            touched=touched | {broker: now_s for each in moves for broker in (each.source, each.target)},
            queued=plan.queued,
            recent=(*(at for at in self.recent if now_s - at < MINUTE_S), *(now_s for _ in moves)),
        )


@dataclass(frozen=True, slots=True)
class SheddingPlan:
    """The result of one round."""

    average: float
    moves: tuple[Move, ...] = ()
    """To be ordered now."""
    queued: tuple[Move, ...] = ()
    """To be ordered in later rounds."""
    hits: Mapping[BrokerId, int] = field(default_factory=dict)
    sources: frozenset[BrokerId] = frozenset()
    notes: tuple[str, ...] = ()
    """Why a broker that looks overloaded gives no bundle, or not enough."""


def plan_moves(snapshot: Snapshot, state: SheddingState, rules: Rules, settings: BalancingSettings) -> SheddingPlan:
    """Return the moves of this round. Draining brokers are no targets; their bundles leave by the drain."""
    notes: list[str] = []
    waiting = [each for each in state.queued if _still_possible(each, snapshot, rules, settings)]
    busy = {broker for each in waiting for broker in (each.source, each.target)}
    usable = [
        each
        for each in snapshot.brokers.values()
        if each.broker not in busy and _is_usable(each, snapshot.now_s, state, settings, notes)
    ]
    average = sum(each.usage for each in usable) / len(usable) if usable else 0.0
    high, low = _mark(average + settings.threshold, settings), _mark(average + settings.threshold / 2, settings)
    hits = {each.broker: state.hits.get(each.broker, 0) + 1 for each in usable if each.usage > high}
    continued = {each.broker for each in usable if each.broker in state.sources and each.usage > low}
    sources = continued | {broker for broker, count in hits.items() if count >= settings.hits}
    for broker, count in hits.items():
        if broker not in sources:
            notes.append(f"{broker} is above {high:.0%} for {count} of {settings.hits} rounds")
    shedding = _Shedding(usable, average, low, rules, settings)
    for source in sorted((each for each in usable if each.broker in sources), key=lambda each: -each.usage):
        shedding.relieve(source, sources, snapshot.now_s, state)
    planned = (*waiting, *shedding.moves)
    room = max(0, settings.moves_per_minute_max - state.made(snapshot.now_s))
    if len(planned) > room:
        notes.append(f"{len(planned) - room} moves wait: at most {settings.moves_per_minute_max} are made in a minute")
    return SheddingPlan(average, planned[:room], planned[room:], hits, frozenset(sources), (*notes, *shedding.notes))


def _still_possible(move: Move, snapshot: Snapshot, rules: Rules, settings: BalancingSettings) -> bool:
    """Return whether a move that waited can still be made, by reports that are recent enough."""
    source, target = snapshot.brokers.get(move.source), snapshot.brokers.get(move.target)
    if source is None or target is None or any(_is_old(each, snapshot.now_s, settings) for each in (source, target)):
        return False
    return target in candidates(move.bundle, [source, target], rules)


def _is_old(load: BrokerLoad, now_s: float, settings: BalancingSettings) -> bool:
    return now_s - load.reported_s > settings.report_ttl_s


def _mark(usage: float, settings: BalancingSettings) -> float:
    return min(settings.overloaded, max(settings.idle, usage))


def _is_usable(
    load: BrokerLoad, now_s: float, state: SheddingState, settings: BalancingSettings, notes: list[str]
) -> bool:
    """Return whether the report shows the broker's load as it is now."""
    if load.draining:
        return False
    if _is_old(load, now_s, settings):
        notes.append(f"the report of {load.broker} is {now_s - load.reported_s:.0f} s old: it takes no part")
        return False
    touched_s = state.touched.get(load.broker)
    if touched_s is not None and (load.reported_s <= touched_s or now_s < touched_s + settings.settle_s):
        notes.append(f"{load.broker} gave or got a bundle {now_s - touched_s:.0f} s ago: its usage has not settled")
        return False
    return True


class _Shedding:
    """Collects the moves of one round, with the usages that they lead to."""

    def __init__(
        self, usable: Sequence[BrokerLoad], average: float, low: float, rules: Rules, settings: BalancingSettings
    ) -> None:
        self._usable, self._average, self._low = usable, average, low
        self._rules, self._settings = rules, settings
        self._usages = {each.broker: each.usage for each in usable}
        self.moves: list[Move] = []
        self.notes: list[str] = []

    def relieve(self, source: BrokerLoad, sources: set[BrokerId], now_s: float, state: SheddingState) -> None:
        """Move the largest fitting bundles until the source is below the low mark."""
        begun, moves_max = len(self.moves), PLANNED_MINUTES * self._settings.moves_per_minute_max
        targets = [each for each in self._usable if each.broker not in sources]
        movable = [
            each
            for each in sorted(source.bundles, key=lambda each: -each.weight)
            if source.usage_of(each) >= MOVED_USAGE_MIN
            and not each.is_new
            and now_s - state.moved.get(each.name, -self._settings.grace_s) >= self._settings.grace_s
        ]
        for may_pass in (False, True):
            for bundle in list(movable):
                if len(self.moves) >= moves_max or self._usages[source.broker] <= self._low:
                    return
                target = self._target(source, bundle, targets, may_pass=may_pass)
                if target is not None:
                    self._move(source, bundle, target)
                    movable.remove(bundle)
        if len(self.moves) == begun:
            self.notes.append(
                f"{source.broker} uses {source.usage:.0%}, and no bundle fits another broker: "
                f"{len(source.bundles)} considered"
            )

    def _target(
        self, source: BrokerLoad, bundle: BundleLoad, targets: Sequence[BrokerLoad], *, may_pass: bool
    ) -> BrokerLoad | None:
        """Return the least loaded broker that may have the bundle and does not become too busy by it.

        That is busier than the source will be, or with `may_pass` nearly as busy as the source is.
        """
        usage, before = source.usage_of(bundle), self._usages[source.broker]
        after_max = before - (self._settings.threshold / 2 if may_pass else usage)
        limit = min(after_max, self._settings.overloaded) - usage + _EQUAL
        if not any(self._usages[each.broker] <= limit for each in targets):
            return None
        # The source counts, too: by anti-affinity it may be a better place than every target.
        allowed = candidates(bundle.name, [source, *targets], self._rules)
        fitting = [each for each in allowed if each is not source and self._usages[each.broker] <= limit]
        return min(fitting, key=lambda each: (self._usages[each.broker], each.broker), default=None)

    def _move(self, source: BrokerLoad, bundle: BundleLoad, target: BrokerLoad) -> None:
        usage = source.usage_of(bundle)
        self.moves.append(
            Move(
                bundle.name,
                source.broker,
                target.broker,
                usage,
                self._usages[source.broker],
                self._usages[target.broker],
                self._average,
                source.resource,
            )
        )
        self._usages[source.broker] -= usage
        self._usages[target.broker] += usage
