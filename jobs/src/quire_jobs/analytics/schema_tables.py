"""Rows for small tables from the brokers' schema registry: all schema versions of topics. Read-only."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.errors import LedgerError, MetadataFormatError
from quire_broker.errors import InvalidTopicNameError
from quire_broker.names import parse_topic
from quire_broker.schemas.registry import SchemaRegistry
from quire_broker.schemas.stored import schema_id
from quire_broker.settings.managed_ledger import ManagedLedgerSettings
from quire_jobs.source.cluster import Cluster

Row = tuple[Any, ...]


async def read_definitions(cluster: Cluster, topics: Sequence[str]) -> tuple[list[Row], dict[str, str]]:
    """Return rows of the columns DEFINITIONS, the active versions; and topics with unreadable schemas, with the
    reason."""
    settings = ManagedLedgerSettings(password=cluster.password)
    registry = SchemaRegistry(cluster.metadata, cluster.client, settings, SystemClock(), SystemChance())
    found: list[Row] = []
    failed: dict[str, str] = {}
    for topic in topics:
        try:
            versions = await registry.versions(schema_id(parse_topic(topic)))
        except (LedgerError, MetadataFormatError, InvalidTopicNameError) as error:
            failed[topic] = f"cannot read its schemas: {error}"
            continue
        found += [
            (
                topic,
                one.version,
                one.schema.type.name,
                one.schema.data.decode("utf-8", "replace"),
                datetime.fromtimestamp(one.timestamp_ms / 1000, UTC) if one.timestamp_ms else None,
            )
            for one in versions
        ]
    return found, failed
