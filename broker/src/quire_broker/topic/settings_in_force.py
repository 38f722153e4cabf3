"""The settings of a topic and its ledger: those of the broker, changed by the policies of the topic. Decides only."""

import logging
from dataclasses import replace

from quire_bookie.errors import ConfigError
from quire_bookie.quorum.bookie_groups import BookieGroups
from quire_broker.errors import OffloadError
from quire_broker.offload.policies import with_policies
from quire_broker.policies.affinity import BOOKIE_AFFINITY, affinity_names
from quire_broker.policies.fields import ENTRY_FILTERS, PAUSE_ON_ACKS
from quire_broker.policies.store import Json
from quire_broker.settings.managed_ledger import UNLIMITED, ManagedLedgerSettings
from quire_broker.topic.topic import TopicSettings

log = logging.getLogger("quire.broker.topic")
_UNACKED = {
    "unacked_per_consumer_max": "max_unacked_messages_per_consumer",
    "unacked_per_subscription_max": "max_unacked_messages_per_subscription",
}


def ledger_settings(base: ManagedLedgerSettings, policies: Json) -> ManagedLedgerSettings:
    """Return the broker's settings with the namespace's policies for quorums, bookies, retention and offloading."""
    changes: Json = {}
    try:
        offload = with_policies(base.offload, policies)
    except (ConfigError, OffloadError) as error:  # stored by another broker implementation: the topic is served anyway
        log.warning("ignoring the invalid offload policies of a namespace: %s", error)
    else:
        if offload != base.offload:
            changes["offload"] = offload
    persistence = policies.get("persistence")
    if persistence and persistence.get("bookkeeperEnsemble"):
        changes |= {
            "ensemble_size": persistence["bookkeeperEnsemble"],
            "write_quorum": persistence["bookkeeperWriteQuorum"],
            "ack_quorum": persistence["bookkeeperAckQuorum"],
        }
    if groups := policies.get(BOOKIE_AFFINITY):
        changes["groups"] = BookieGroups.named(*affinity_names(groups))
    retention = policies.get("retention_policies")
    if retention:
        minutes, megabytes = retention.get("retentionTimeInMinutes", 0), retention.get("retentionSizeInMB", 0)
        changes["retention_s"] = minutes * 60.0 if minutes >= 0 else UNLIMITED
        changes["retention_bytes"] = megabytes << 20 if megabytes >= 0 else UNLIMITED
    return replace(base, **changes) if changes else base


def topic_settings(base: TopicSettings, policies: Json) -> TopicSettings:
    """Return the broker's settings with the policies of a topic for deduplication and delivery."""
    found, delivery = base, base.subscriptions
    if policies.get("deduplicationEnabled") is not None:
        found = replace(found, deduplication=bool(policies["deduplicationEnabled"]))
    interval = policies.get("deduplicationSnapshotIntervalSeconds")
    if interval:
        snapshots = replace(base.deduplication_snapshots, interval_s=float(interval))
        found = replace(found, deduplication_snapshots=snapshots)
    changes: Json = {}
    for field_name, policy in _UNACKED.items():
        if policies.get(policy) is not None:
            changes[field_name] = policies[policy]
    if policies.get(PAUSE_ON_ACKS) is not None:
        changes["pause_on_acks"] = policies[PAUSE_ON_ACKS]
    delays = policies.get("delayed_delivery_policies") or {}
    if delays.get("active") is not None:
        changes["delayed_delivery"] = delays["active"]
    return replace(found, subscriptions=replace(delivery, **changes)) if changes else found


def filter_names(policies: Json, default: str) -> str:
    """Return the names of the entry filters in force, separated by commas: of the policies, else of the broker."""
    names = (policies.get(ENTRY_FILTERS) or {}).get("entryFilterNames")
    return default if names is None else str(names)
