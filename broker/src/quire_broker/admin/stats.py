"""TopicStats and internal stats in Pulsar's JSON. Rates are computed between two samples at least a second apart."""

import logging
from itertools import islice
from typing import Any

from quire_bookie.client import LedgerClient
from quire_bookie.errors import LedgerError, MetadataError, NoSuchLedgerError
from quire_bookie.model import LedgerId
from quire_broker.dispatch.consumer import Consumer
from quire_broker.dispatch.entry_filters import FilterStats
from quire_broker.limits import INFO_RANGES_MAX
from quire_broker.managed_ledger.cursors.ack_ranges import AckRanges
from quire_broker.managed_ledger.cursors.cursor import COMPACTION_CURSOR
from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_broker.policies.backlog_quota import NO_LIMIT
from quire_broker.server.broker import RunningBroker
from quire_broker.topic.producers import Producer
from quire_broker.topic.subscription import Subscription
from quire_broker.topic.topic import Topic
from quire_broker.wire.times import time_text

log = logging.getLogger("quire.broker.admin")


def publisher_stats(producer: Producer) -> dict[str, Any]:
    """Return the PublisherStats of one producer."""
    stats = producer.stats
    return {
        "accessMode": producer.mode.name.title().replace("_", ""),
        "msgRateIn": stats.message_rate.per_s,
        "msgThroughputIn": stats.byte_rate.per_s,
        "averageMsgSize": stats.size_bytes / stats.messages if stats.messages else 0.0,
        "chunkedMessageRate": stats.chunk_rate.per_s,
        "producerId": producer.producer_id,
        "supportsPartialProducer": False,
        "producerName": producer.name,
        "address": producer.link.peer,
        "connectedSince": time_text(producer.connected_since_ms),
        "clientVersion": producer.link.client_version,
        "metadata": producer.metadata,
    }


def consumer_stats(consumer: Consumer) -> dict[str, Any]:
    """Return the ConsumerStats of one consumer."""
    stats = consumer.stats
    return {
        "msgRateOut": stats.message_rate.per_s,
        "msgThroughputOut": stats.byte_rate.per_s,
        "bytesOutCounter": stats.bytes_out,
        "msgOutCounter": stats.messages_out,
        "msgRateRedeliver": stats.redelivery_rate.per_s,
        "messageAckRate": stats.ack_rate.per_s,
        "consumerName": consumer.spec.name,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked,
        "avgMessagesPerEntry": round(consumer.messages_per_entry.mean),
        "blockedConsumerOnUnackedMsgs": consumer.blocked,
        "address": consumer.link.peer,
        "connectedSince": time_text(consumer.spec.connected_since_ms),
        "clientVersion": consumer.link.client_version,
        "metadata": dict(consumer.spec.metadata),
    }


_NO_LEDGER = {"ledgerId": -1, "entries": -1, "size": -1, "offloaded": False, "underReplicated": False}
_THROTTLED = tuple(
    f"dispatchThrottled{what}EventsBy{whose}Limit"
    for whose in ("Subscription", "Topic", "Broker")
    for what in ("Msg", "Bytes")
)


def _subscription(subscription: Subscription, backlog_bytes: int) -> dict[str, Any]:
    consumers, active = list(subscription.consumers), subscription.active_consumer
    stats = subscription.stats
    return {
        "msgRateOut": stats.message_rate.per_s,
        "msgThroughputOut": stats.byte_rate.per_s,
        "bytesOutCounter": stats.bytes_out,
        "msgOutCounter": stats.messages_out,
        "msgRateRedeliver": stats.redelivery_rate.per_s,
        "messageAckRate": sum(consumer.stats.ack_rate.per_s for consumer in consumers),
        "msgBacklog": subscription.cursor.backlog,
        "msgBacklogNoDelayed": subscription.cursor.backlog,
        "backlogSize": backlog_bytes,
        **dict(zip(_THROTTLED, subscription.throttled, strict=True)),
        "blockedSubscriptionOnUnackedMsgs": any(consumer.blocked for consumer in consumers),
        "unackedMessages": sum(consumer.unacked for consumer in consumers),
        "type": subscription.type_name,
        **({} if active is None else {"activeConsumerName": active.spec.name}),
        "msgRateExpired": subscription.expired_rate.per_s,
        "totalMsgExpired": subscription.expired,
        "lastExpireTimestamp": subscription.expired_at_ms,
        "nonContiguousDeletedMessagesRanges": len(subscription.cursor.acknowledged_ranges),
        **filter_stats(subscription.filters.stats),
        "consumers": [consumer_stats(consumer) for consumer in consumers],
        "isDurable": subscription.durable,
        "durable": subscription.durable,
        "isReplicated": subscription.replicated,
        "replicated": subscription.replicated,
        "subscriptionProperties": dict(subscription.cursor.cursor_properties),
    }


def _backlog_quotas(topic: Topic, now_ms: int) -> dict[str, Any]:
    """Return the limits of the last check, and the measured age if it has a limit."""
    quotas, oldest = topic.backlog.quotas, topic.backlog.oldest
    found: dict[str, Any] = {
        "backlogQuotaLimitSize": NO_LIMIT if quotas.size is None else quotas.size.limit,
        "backlogQuotaLimitTime": NO_LIMIT if quotas.age is None else quotas.age.limit,
        "oldestBacklogMessageAgeSeconds": -1 if oldest is None else max(0, now_ms - oldest.time_ms) // 1000,
    }
    return found if oldest is None else found | {"oldestBacklogMessageSubscriptionName": oldest.subscription}


def filter_stats(stats: FilterStats) -> dict[str, int]:
    """Return what the entry filters of a subscription did. They put no message off."""
    return {
        "filterProcessedMsgCount": stats.processed,
        "filterAcceptedMsgCount": stats.accepted,
        "filterRejectedMsgCount": stats.rejected,
        "filterRescheduledMsgCount": 0,
    }


def _compaction(topic: Topic) -> dict[str, Any]:
    stats = topic.compaction.stats
    return {
        "lastCompactionRemovedEventCount": stats.removed_messages,
        "lastCompactionSucceedTimestamp": stats.succeeded_ms,
        "lastCompactionFailedTimestamp": stats.failed_ms,
        "lastCompactionDurationTimeInMills": stats.duration_ms,
    }


def topic_stats(topic: Topic, broker: RunningBroker) -> dict[str, Any]:
    """Return the TopicStats of one topic."""
    stats, backlog = topic.stats, topic.backlog
    subscriptions = {name: _subscription(found, backlog.size_of(found)) for name, found in topic.subscriptions.items()}
    return {
        "msgRateIn": topic.rates.messages.per_s,
        "msgThroughputIn": topic.rates.size_bytes.per_s,
        "msgRateOut": sum(found["msgRateOut"] for found in subscriptions.values()),
        "msgThroughputOut": sum(found["msgThroughputOut"] for found in subscriptions.values()),
        "bytesInCounter": stats.bytes_in,
        "msgInCounter": stats.messages_in,
        "bytesOutCounter": sum(found["bytesOutCounter"] for found in subscriptions.values()),
        "msgOutCounter": sum(found["msgOutCounter"] for found in subscriptions.values()),
        "averageMsgSize": stats.bytes_in / stats.messages_in if stats.messages_in else 0.0,
        "msgChunkPublished": stats.chunks_in > 0,
        "publishRateLimitedTimes": topic.publish_limit.times,
        "storageSize": topic.ledger.size_bytes,
        "backlogSize": backlog.size_bytes,
        **_backlog_quotas(topic, broker.clock.now_ms()),
        "publishers": [publisher_stats(producer) for producer in topic.producers.connected],
        "waitingPublishers": topic.producers.waiting,
        "subscriptions": subscriptions,
        "replication": {},
        "compaction": _compaction(topic),
        "deduplicationStatus": "Enabled" if topic.deduplication is not None else "Disabled",
        **({} if topic.producers.topic_epoch is None else {"topicEpoch": topic.producers.topic_epoch}),
        "ownerBroker": broker.broker_id,
    }


_SUMS = (
    "msgRateIn",
    "msgThroughputIn",
    "msgRateOut",
    "msgThroughputOut",
    "bytesInCounter",
    "msgInCounter",
    "bytesOutCounter",
    "msgOutCounter",
)


def merged_stats(each: dict[str, dict[str, Any]], metadata: dict[str, Any], *, per_partition: bool) -> dict[str, Any]:
    """Aggregate the TopicStats of partitions: sums, subscriptions added up, and with `per_partition` each by name."""
    subscriptions: dict[str, Any] = {}
    for stats in each.values():
        for name, found in stats["subscriptions"].items():
            total = subscriptions.setdefault(name, {"msgBacklog": 0, "unackedMessages": 0, "type": found["type"]})
            total["msgBacklog"] += found["msgBacklog"]
            total["unackedMessages"] += found["unackedMessages"]
    return {
        **{key: sum(stats[key] for stats in each.values()) for key in (*_SUMS, "storageSize", "backlogSize")},
        "publishRateLimitedTimes": sum(stats.get("publishRateLimitedTimes", 0) for stats in each.values()),
        "publishers": [producer for stats in each.values() for producer in stats["publishers"]],
        "subscriptions": subscriptions,
        "metadata": metadata,
        "partitions": each if per_partition else {},
    }


async def _metadata_text(client: LedgerClient, record: LedgerRecord) -> str:
    try:
        return str(await client.read_metadata(LedgerId(record.ledger_id)))
    except NoSuchLedgerError:
        if not record.offloaded:
            raise
        return "offloaded; the bookies no longer have it"


async def _compacted_ledger(topic: Topic) -> dict[str, Any]:
    """Return the LedgerInfo of the compacted ledger; -1: there is none, or its size cannot be read now."""
    reader, entries, size = topic.compaction.reader, -1, -1
    if reader is not None:
        try:
            entries, size = await reader.size()
        except (LedgerError, MetadataError) as error:
            log.info("compacted ledger %d of %s cannot be read now: %s", reader.of.ledger_id, topic.name, error)
    ledger_id = -1 if reader is None else reader.of.ledger_id
    return _NO_LEDGER | {"ledgerId": ledger_id, "entries": entries, "size": size}


def _ranges_text(ranges: AckRanges) -> str:
    """Return the first ranges as stock brokers write them: the entry before each, exclusive, and its last one."""
    shown = [
        f"({one.ledger_id}:{one.first - 1}..{one.ledger_id}:{one.last}]" for one in islice(ranges, INFO_RANGES_MAX)
    ]
    return f"[{','.join(shown)}]"


def empty_internal_stats() -> dict[str, Any]:
    """Return PersistentTopicInternalStats of a topic that stores nothing."""
    counts = ("entriesAddedCounter", "numberOfEntries", "totalSize", "currentLedgerEntries", "currentLedgerSize")
    return {
        **dict.fromkeys((*counts, "pendingAddEntriesCount"), 0),
        "lastConfirmedEntry": "-1:-1",
        "state": "None",
        "ledgers": [],
        "cursors": {},
        "schemaLedgers": [],
        "compactedLedger": _NO_LEDGER,
    }


async def internal_stats(topic: Topic, client: LedgerClient, *, metadata: bool) -> dict[str, Any]:
    """Return PersistentTopicInternalStats. With `metadata` each ledger's metadata is read, as text."""
    ledger = topic.ledger
    created_ms = max([ledger.opened_ms, *(record.closed_ms for record in ledger.ledgers)])
    ledgers = []
    for record in ledger.ledgers:
        item: dict[str, Any] = {
            "ledgerId": record.ledger_id,
            "entries": record.entries,
            "size": record.size_bytes,
            "offloaded": record.offloaded,
            "timestamp": record.closed_ms,
        }
        if metadata:
            item["metadata"] = await _metadata_text(client, record)
        ledgers.append(item)
    last = ledger.last_confirmed
    cursors = {}
    compaction = ledger.cursors.get(COMPACTION_CURSOR)
    shown = {name: found.cursor for name, found in topic.subscriptions.items()}
    for name, cursor in (shown if compaction is None else {**shown, COMPACTION_CURSOR: compaction}).items():
        mark, read = cursor.mark_delete, cursor.read_position
        saved = cursor.store.last_snapshot if cursor.store is not None else None
        cursors[name] = {
            "markDeletePosition": str(mark),
            "readPosition": str(read),
            "cursorLedger": saved.ledger_id if saved is not None else -1,
            "cursorLedgerLastEntry": saved.entry_id if saved is not None else -1,
            "individuallyDeletedMessages": _ranges_text(cursor.acknowledged_ranges),
            "lastLedgerSwitchTimestamp": time_text(
                ledger.opened_ms if cursor.store is None else cursor.store.switched_ms
            ),
            "state": "Open",
            "active": bool(topic.subscriptions[name].consumers) if name in topic.subscriptions else False,
            "totalNonContiguousDeletedMessagesRange": len(cursor.acknowledged_ranges),
            "numberOfEntriesSinceFirstNotAckedMessage": ledger.entries_between(mark, last),
            "properties": dict(cursor.properties),
        }
    return {
        "entriesAddedCounter": ledger.append_stats.confirmed,
        "numberOfEntries": ledger.entries,
        "totalSize": ledger.size_bytes,
        "currentLedgerEntries": ledger.ledgers[-1].entries if ledger.ledgers else 0,
        "currentLedgerSize": ledger.ledgers[-1].size_bytes if ledger.ledgers else 0,
        "lastLedgerCreatedTimestamp": time_text(created_ms),
        "pendingAddEntriesCount": sum(producer.pending for producer in topic.producers.connected),
        "lastConfirmedEntry": str(last),
        "state": "LedgerOpened" if not topic.terminated else "Terminated",
        "ledgers": ledgers,
        "cursors": cursors,
        "schemaLedgers": [],
        "compactedLedger": await _compacted_ledger(topic),
    }
