"""The settings of a broker as policies, for `?applied=true`."""

from dataclasses import replace
from typing import Any

import pytest

from quire_broker.admin.inherited import inherited, inherited_quotas
from quire_broker.offload.settings import OffloadSettings
from quire_broker.policies.backlog_quota import BacklogQuota, BacklogQuotas, QuotaKind, QuotaPolicy, flaw_of_quota
from quire_broker.policies.fields import FIELDS
from quire_broker.policies.of_topics import PATHS
from quire_broker.policies.rates import BY_CLUSTER
from quire_broker.server.broker import BrokerSettings
from quire_broker.settings.managed_ledger import UNLIMITED
from quire_broker.settings.policies import DefaultPolicies


@pytest.mark.parametrize("field", sorted(set(PATHS.values()) - set(BY_CLUSTER)))
def test_each_policy_of_topics_has_a_value_that_could_be_set(field: str) -> None:
    assert FIELDS[field](inherited(BrokerSettings())[field]) is None


def test_the_settings_are_shown_in_the_units_of_policies() -> None:
    base = BrokerSettings()
    ledger = replace(base.topics.ledger, retention_s=840.0, retention_bytes=15 << 20)
    ledger = replace(ledger, offload=OffloadSettings(threshold_bytes=7, threshold_s=8.0, deletion_lag_s=9.5))
    defaults = DefaultPolicies(ttl_s=9, subscription_types="Shared,Failover", schema_strategy="FORWARD")
    found = inherited(replace(base, topics=replace(base.topics, ledger=ledger, defaults=defaults)))
    assert found["retention_policies"] == {"retentionTimeInMinutes": 14, "retentionSizeInMB": 15}
    assert (found["message_ttl_in_seconds"], found["subscription_types_enabled"]) == (9, ["Shared", "Failover"])
    assert found["schema_compatibility_strategy"] == "FORWARD"
    assert found["offload_policies"] == {
        "managedLedgerOffloadThresholdInBytes": 7,
        "managedLedgerOffloadThresholdInSeconds": 8,
        "managedLedgerOffloadDeletionLagInMillis": 9500,
        "managedLedgerOffloadedReadPriority": "tiered-storage-first",
        "managedLedgerOffloadMaxBlockSizeInBytes": 64 << 20,
    }
    ledger = replace(ledger, retention_s=UNLIMITED, retention_bytes=UNLIMITED)
    found = inherited(replace(base, topics=replace(base.topics, ledger=ledger)))
    assert found["retention_policies"] == {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


QUOTAS = BacklogQuotas(BacklogQuota(7, QuotaPolicy.EVICT), BacklogQuota(8))


@pytest.mark.parametrize("default", [BacklogQuotas(), QUOTAS], ids=["none", "both"])
def test_each_kind_of_backlog_quota_could_be_set(default: BacklogQuotas) -> None:
    found: dict[str, Any] = inherited_quotas(default)
    for kind, quota in ((QuotaKind.SIZE, default.size), (QuotaKind.AGE, default.age)):
        assert flaw_of_quota(found[kind], kind) is None
        assert found[kind][kind.field] == (-1 if quota is None else quota.limit)
