"""Resolves the topics, managed ledgers and ledgers that options name, and takes a snapshot of each. Reads metadata.

The last readable entry of an open ledger comes from its bookies, without recovery. Bookies receive the confirmation of
an entry with the next entry, so the last entries of a pausing writer are not visible yet, unless the topic's broker is
asked too.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from fnmatch import fnmatchcase

from quire_bookie.errors import NoSuchLedgerError
from quire_bookie.model import EntryId
from quire_broker.managed_ledger.list_store import ROOT, node_path
from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_broker.managed_ledger.nodes.node_codec import decode_list
from quire_broker.managed_ledger.position import Position
from quire_broker.names import (
    PERSISTENT,
    TopicName,
    decode_name,
    parse_namespace,
    parse_topic,
    topic_of,
    topic_of_ledger,
)
from quire_broker.policies.store import PARTITIONED_TOPICS, decode_json
from quire_jobs.errors import JobOptionsError, NotFoundError
from quire_jobs.source.broker_http import BrokerHttp
from quire_jobs.source.cluster import Cluster
from quire_jobs.source.options import SourceOptions
from quire_jobs.source.spans import Log, LogName, Span
from quire_jobs.source.topic_cursors import last_confirmed

AT_ONCE = 16
"""Number of snapshots taken concurrently."""
_log = logging.getLogger("quire.jobs.source")


def log_of_topic(name: TopicName) -> LogName:
    """Return the managed ledger of a plain topic or of one partition."""
    return LogName(name.ledger_name, str(name.partitioned), name.partition)


def topic_of_log(log: LogName) -> TopicName | None:
    """Return the topic of this managed ledger; None if it belongs to no topic."""
    if log.name.count("/") < 3 or log.name.split("/")[2] != PERSISTENT:
        return None
    return topic_of_ledger(log.name)


async def logs_named(cluster: Cluster, options: SourceOptions) -> list[LogName]:
    """Return the managed ledgers that the options select, partitions by index. NotFoundError if none of them exists."""
    if options.ledgers:
        return [LogName("", None, None)]
    if options.managed_ledger:
        name = options.managed_ledger
        log = LogName(name, name, -1)
        topic = topic_of_log(log)
        found = [log if topic is None else log_of_topic(topic)]
        what = f"there is no managed ledger {name}"
    elif options.topic:
        topic = parse_topic(options.topic)
        if not topic.persistent:
            raise JobOptionsError(
                f"quire source: topic = {topic}: it is non-persistent, so its messages are not stored"
            )
        found = [log_of_topic(part) for part in await _partitions(cluster, topic)]
        what = f"there is no topic {topic}"
    else:
        found = [log_of_topic(topic) async for topic in _matching(cluster, options.topics)]
        what = f"no topic matches {options.topics}"
    present = [log for log in found if await cluster.metadata.get(node_path(log.name)) is not None]
    if not present and not (len(found) > 1 and options.topic):
        raise NotFoundError(f"quire source: {what}; a topic is tenant/namespace/name, and its first use creates it")
    return present


async def _partitions(cluster: Cluster, topic: TopicName) -> list[TopicName]:
    key = f"{PARTITIONED_TOPICS}/{topic.namespace}/{topic.domain}/{topic.encoded_local}"
    node = await cluster.metadata.get(key)
    value = {} if node is None else decode_json(key, node.value)
    count = 0 if value.get("deleted") else int(value.get("partitions", 0))
    return [topic.partition_of(index) for index in range(count)] or [topic]


async def _matching(cluster: Cluster, wanted: str) -> AsyncIterator[TopicName]:
    name, _, pattern = wanted.rpartition("/")
    namespace = parse_namespace(name)
    for child in await cluster.metadata.children(f"{ROOT}/{namespace}/{PERSISTENT}"):
        topic = topic_of(PERSISTENT, namespace, decode_name(child))
        if fnmatchcase(topic.partitioned.local, pattern) and not topic.is_system:
            yield topic


async def snapshots(
    cluster: Cluster, names: Sequence[LogName], options: SourceOptions, brokers: BrokerHttp | None
) -> list[Log]:
    """Return a snapshot of each log, in the order of `names`. Errors of the ledger client and of the metadata store."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(name: LogName) -> Log:
        async with slots:
            if not name.name:
                return await _of_ledgers(cluster, name, options.ledgers)
            return await snapshot(cluster, name, brokers)

    return list(await asyncio.gather(*map(one, names)))


async def snapshot(cluster: Cluster, name: LogName, brokers: BrokerHttp | None) -> Log:
    """Return the present state of one managed ledger. Raises NotFoundError."""
    topic = topic_of_log(name)
    # Ask the broker first: the list that is read afterwards then contains the ledger of the confirmed entry.
    reported = None if brokers is None or topic is None else await last_confirmed(brokers, topic)
    node = await cluster.metadata.get(node_path(name.name))
    if node is None:
        raise NotFoundError(f"quire source: there is no managed ledger {name.name}")
    records = decode_list(node.value).ledgers
    spans = [span for record in records if (span := await _span(cluster, record, reported)) is not None]
    return Log(name, tuple(spans), tuple(record.ledger_id for record in records))


async def _span(cluster: Cluster, record: LedgerRecord, reported: Position | None) -> Span | None:
    if record.closed_ms:
        if not record.entries:
            return None
        last, size_bytes = record.entries - 1, record.size_bytes
        return Span(record.ledger_id, 0, last, size_bytes, record.closed_ms, record if record.offloaded else None)
    try:
        confirmed = reported.entry_id if reported is not None and reported.ledger_id == record.ledger_id else None
        found = await _open_span(cluster, record.ledger_id, confirmed)
    except NoSuchLedgerError:
        _log.info("ledger %d is listed but does not exist: it is being created or deleted", record.ledger_id)
        return None
    return found if found.entries else None


async def _open_span(cluster: Cluster, ledger_id: int, confirmed: int | None = None) -> Span:
    """Return the readable part of a ledger; without entries its end is -1. `confirmed`: last entry that its broker
    reports."""
    reader = await cluster.open_ledger(ledger_id)
    async with reader:
        last = await reader.read_explicit_lac()
        if confirmed is None or confirmed <= last:
            return Span(ledger_id, 0, last, reader.length)
        reader.take_confirmed(EntryId(confirmed))
        # The bookies do not know this entry as confirmed yet; the entry itself contains the length of the ledger.
        (entry,) = await reader.read(EntryId(confirmed), EntryId(confirmed))
        return Span(ledger_id, 0, confirmed, entry.length)


async def _of_ledgers(cluster: Cluster, name: LogName, ledgers: Sequence[int]) -> Log:
    spans = []
    for ledger_id in sorted(set(ledgers)):
        try:
            span = await _open_span(cluster, ledger_id)
        except NoSuchLedgerError as error:
            raise NotFoundError(f"quire source: ledgers: ledger {ledger_id} does not exist") from error
        if span.entries:
            spans.append(span)
    return Log(name, tuple(spans), tuple(sorted(set(ledgers))))
