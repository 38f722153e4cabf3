"""What brokers were given and no report shows: exact sums, whose cost does not grow with their number."""

import random

from quire_broker.balancing.given import PENDING_S, REPORT_LAG_S, Given, GivenBundles
from quire_broker.balancing.plan.candidates import Rules
from quire_broker.balancing.plan.loads import BrokerId, BrokerLoad
from quire_broker.names import parse_namespace
from quire_broker.ownership.owners import Bundle

BROKERS = [BrokerId(f"{host}:1") for host in "abc"]


def bundle(number: int) -> Bundle:
    return Bundle(parse_namespace(f"shop/ns{number % 7}"), f"0x{number:08x}_0x{number + 1:08x}")


class CountedLoads(dict[BrokerId, BrokerLoad]):
    """Counts the reports that are looked at."""

    looks = 0

    def get(self, key: BrokerId, default: object = None) -> BrokerLoad | None:  # type: ignore[override]
        self.looks += 1
        return super().get(key)


def test_the_sums_are_those_of_the_bundles_that_count() -> None:
    chance, given, now_s = random.Random(7), GivenBundles(), 1000.0
    known: dict[Bundle, Given] = {}
    loads = {broker: BrokerLoad(broker, 0.5, reported_s=now_s) for broker in BROKERS}
    for _ in range(5000):
        now_s += chance.choice((0.0, 0.1, 1.0))
        one = Given(bundle(chance.randrange(60)), chance.choice(BROKERS), now_s, chance.random() / 3)
        if chance.random() < 0.7:
            known[one.bundle] = one
            given.add(one)
        elif (gone := known.pop(one.bundle, None)) is not None:
            given.remove(gone)
            given.remove(gone)
        if chance.random() < 0.05:
            reporter = chance.choice(BROKERS)
            loads[reporter] = BrokerLoad(reporter, 0.5, reported_s=now_s)
        pending = given.pending(loads, now_s)
        for broker in BROKERS:
            counting = [
                each.usage
                for each in known.values()
                if each.broker == broker
                and loads[broker].reported_s - REPORT_LAG_S < each.at_s
                and now_s - each.at_s < PENDING_S
            ]
            assert (broker in pending) == bool(counting)
            if counting:
                assert pending[broker].bundles == len(counting)
                assert abs(pending[broker].usage - sum(counting)) < 1e-12
        assert {each.bundle: each for each in given.all()} == known


def test_one_that_was_replaced_is_not_removed_and_counts_no_more() -> None:
    given = GivenBundles()
    first, second = (Given(bundle(1), broker, 1.0, 0.25) for broker in BROKERS[:2])
    given.add(first)
    given.add(second)
    given.remove(first)
    assert given.get(bundle(1)) is second
    assert {broker: each.usage for broker, each in given.pending({}, 1.0).items()} == {BROKERS[1]: 0.25}


def test_a_decision_after_many_looks_at_each_broker_once() -> None:
    given, loads = GivenBundles(), CountedLoads({broker: BrokerLoad(broker, 0.5) for broker in BROKERS})
    for number in range(10_000):
        given.add(Given(bundle(number), BROKERS[number % 3], 10.0, 0.001))
    assert sum(each.bundles for each in given.pending(loads, 10.0).values()) == 10_000
    assert loads.looks == len(BROKERS)


def test_the_namespaces_of_a_group_count_where_they_were_just_given() -> None:
    given = GivenBundles()
    rules = Rules(groups={"shop/ns1": "g", "shop/ns2": "g", "shop/ns3": "other"}, placed={BROKERS[0]: frozenset("x")})
    assert given.placed_in(rules, "shop/ns0") is rules, "it has no group"
    several = [Given(bundle(number), BROKERS[0], 1.0) for number in (1, 8, 3)]
    for one in several:
        given.add(one)
    for removed, expected in ((None, {"x", "shop/ns1"}), (0, {"x", "shop/ns1"}), (1, {"x"})):
        if removed is not None:
            given.remove(several[removed])
        assert given.placed_in(rules, "shop/ns2").placed == {BROKERS[0]: frozenset(expected)}
    assert rules.placed == {BROKERS[0]: frozenset("x")}
