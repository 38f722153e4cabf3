"""The settings of a topic and its ledger by policies."""

from quire_bookie.quorum.bookie_groups import BookieGroups
from quire_broker.policies.affinity import BOOKIE_AFFINITY
from quire_broker.policies.fields import PAUSE_ON_ACKS
from quire_broker.settings.managed_ledger import UNLIMITED, ManagedLedgerSettings
from quire_broker.topic.settings_in_force import ledger_settings, topic_settings
from quire_broker.topic.topic import TopicSettings


def test_the_namespace_determines_quorums_and_retention() -> None:
    base = ManagedLedgerSettings()
    assert ledger_settings(base, {}) is base
    policies = {
        "persistence": {"bookkeeperEnsemble": 5, "bookkeeperWriteQuorum": 4, "bookkeeperAckQuorum": 3},
        "retention_policies": {"retentionTimeInMinutes": 2, "retentionSizeInMB": -1},
    }
    changed = ledger_settings(base, policies)
    assert (changed.ensemble_size, changed.write_quorum, changed.ack_quorum) == (5, 4, 3)
    assert (changed.retention_s, changed.retention_bytes) == (120.0, UNLIMITED)


def test_policies_determine_deduplication_and_delivery() -> None:
    base = TopicSettings()
    assert topic_settings(base, {}) == base
    policies = {
        "deduplicationEnabled": True,
        "deduplicationSnapshotIntervalSeconds": 7,
        "max_unacked_messages_per_consumer": 5,
        "delayed_delivery_policies": {"active": False},
    }
    changed = topic_settings(base, policies)
    assert (changed.deduplication, changed.deduplication_snapshots.interval_s) == (True, 7.0)
    delivery, before = changed.subscriptions, base.subscriptions
    assert (delivery.unacked_per_consumer_max, delivery.delayed_delivery) == (5, False)
    assert delivery.unacked_per_subscription_max == before.unacked_per_subscription_max


def test_a_namespace_names_the_groups_of_bookies_of_its_ledgers() -> None:
    policies = {BOOKIE_AFFINITY: {"bookkeeperAffinityGroupPrimary": "a", "bookkeeperAffinityGroupSecondary": "b,c"}}
    groups = ledger_settings(ManagedLedgerSettings(), policies).groups
    assert groups == BookieGroups(frozenset({"a"}), frozenset({"b", "c"}))


def test_delivery_pauses_for_acknowledgments_as_the_policy_says() -> None:
    base = TopicSettings()
    assert not base.subscriptions.pause_on_acks
    assert topic_settings(base, {PAUSE_ON_ACKS: True}).subscriptions.pause_on_acks
