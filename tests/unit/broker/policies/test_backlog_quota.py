"""The quotas of a namespace: its own, the broker's or none, with any content of its node."""

from typing import Any

import pytest

from quire_broker.policies.backlog_quota import BacklogQuota, BacklogQuotas, QuotaKind, QuotaPolicy, quotas_of

DEFAULT = BacklogQuotas(BacklogQuota(100), BacklogQuota(60, QuotaPolicy.EVICT))
EVICT = "consumer_backlog_eviction"


def stored(**kinds: Any) -> dict[str, Any]:
    return {"backlog_quota_map": kinds}


def test_a_namespace_without_quotas_has_those_of_the_broker() -> None:
    for policies in ({}, stored(), {"backlog_quota_map": None}, {"backlog_quota_map": [1]}):
        assert quotas_of(policies, DEFAULT) == DEFAULT


def test_each_kind_is_set_separately_and_uses_its_own_limit() -> None:
    said = {"limitSize": 7, "limitTime": 9, "policy": EVICT}
    assert quotas_of(stored(destination_storage=said), DEFAULT) == BacklogQuotas(
        BacklogQuota(7, QuotaPolicy.EVICT), DEFAULT.age
    )
    assert quotas_of(stored(message_age=said), DEFAULT).age == BacklogQuota(9, QuotaPolicy.EVICT)


def test_minus_one_is_no_limit_with_any_default_of_the_broker() -> None:
    said = {"limitSize": -1, "limitTime": -1, "policy": EVICT}
    assert quotas_of(stored(destination_storage=said, message_age=said), DEFAULT) == BacklogQuotas()


@pytest.mark.parametrize(
    "said",
    [
        *({"limitSize": 0, "policy": EVICT}, {"limitSize": "1", "policy": EVICT}, {"limitSize": True, "policy": EVICT}),
        *({"limitSize": -2, "policy": EVICT}, {"limitSize": 1, "policy": "x"}, {"limitSize": 1}, "text", None, [1]),
        {"limitSize": 1, "limitTime": 0.5, "policy": EVICT},
    ],
)
def test_unreadable_quotas_are_ignored(said: Any) -> None:
    assert quotas_of(stored(**{QuotaKind.SIZE: said}), DEFAULT) == DEFAULT
