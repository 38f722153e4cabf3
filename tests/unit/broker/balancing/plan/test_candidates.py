"""Candidates for a bundle: isolation policies, draining brokers, anti-affinity."""

from typing import Any

import pytest

from quire_broker.balancing.plan.candidates import Rules, candidates
from quire_broker.balancing.plan.loads import BrokerId, BrokerLoad, BundleName

BUNDLE = BundleName("shop/orders/0x00000000_0xffffffff")
ORDERS_ON_A = {"orders": {"namespaces": ["shop/orders"], "primary": ["a"], "secondary": ["b"]}}
GROUP = {"shop/orders": "shop", "shop/audit": "shop", "shop/mails": "shop", "web/clicks": "web"}


def broker(name: str, **values: Any) -> BrokerLoad:
    return BrokerLoad(BrokerId(name), 0.5, **values)


def names(found: list[BrokerLoad]) -> str:
    return " ".join(each.broker.partition(":")[0] for each in found)


def placed(**namespaces: list[str]) -> dict[BrokerId, frozenset[str]]:
    return {BrokerId(f"{name}:1"): frozenset(found) for name, found in namespaces.items()}


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (Rules(), "a b c"),
        (Rules(isolation=ORDERS_ON_A), "a"),
        (Rules(isolation={"others": {"namespaces": ["shop/audit"], "primary": ["a"]}}), "a b c"),
        (Rules(groups=GROUP), "a b c"),
        (Rules(groups=GROUP, placed=placed(a=["shop/audit"])), "b c"),
        (Rules(groups=GROUP, placed=placed(a=["shop/orders"])), "a b c"),
        (Rules(groups=GROUP, placed=placed(a=["web/clicks"])), "a b c"),
        (Rules(groups=GROUP, placed=placed(a=["shop/audit", "shop/mails"], b=["shop/audit"], c=["shop/mails"])), "b c"),
        (
            Rules(
                groups=GROUP,
                placed=placed(a=["shop/audit"]),
                domains={BrokerId("a:1"): "zone 1", BrokerId("b:1"): "zone 1", BrokerId("c:1"): "zone 2"},
            ),
            "c",
        ),
        (
            Rules(
                groups=GROUP,
                placed=placed(a=["shop/audit"], c=["shop/mails"]),
                domains={BrokerId("a:1"): "zone 1", BrokerId("b:1"): "zone 1", BrokerId("c:1"): "zone 2"},
            ),
            "b",
        ),
        (Rules(isolation=ORDERS_ON_A, groups=GROUP, placed=placed(a=["shop/audit"])), "a"),
    ],
)
def test_rules_leave_these_candidates(rules: Rules, expected: str) -> None:
    assert names(candidates(BUNDLE, [broker("a:1"), broker("b:1"), broker("c:1")], rules)) == expected


def test_a_draining_broker_is_no_candidate_and_does_not_count_as_available() -> None:
    brokers = [broker("a:1", draining=True), broker("b:1"), broker("c:1")]
    assert names(candidates(BUNDLE, brokers, Rules())) == "b c"
    assert names(candidates(BUNDLE, brokers, Rules(isolation=ORDERS_ON_A))) == "b", "the secondary broker takes over"


def test_a_broker_that_is_gone_still_counts_in_its_failure_domain() -> None:
    rules = Rules(
        groups=GROUP,
        placed=placed(gone=["shop/audit"]),
        domains={BrokerId("gone:1"): "zone 1", BrokerId("a:1"): "zone 1"},
    )
    assert names(candidates(BUNDLE, [broker("a:1"), broker("b:1")], rules)) == "b"
