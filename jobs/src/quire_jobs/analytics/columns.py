"""The columns that analyses read: the table of messages, and small tables from metadata, bookies and buckets.

LEDGERS        a row per ledger that a managed ledger lists; `entries` and `bytes` of an open one as far as it was read
CURSORS        a row per durable cursor
ACKED          a row per individually acknowledged range above a cursor's mark-delete position
BOOKIES        a row per bookie that is registered or has a cookie
STORED         a row per ledger in BookKeeper's metadata, of any owner
EXPECTED       a row per ledger and bookie: the highest entry that the metadata assign to the bookie
RESPONSES           responses of bookies: a row per ledger and bookie, and a final row per bookie
CHECKED         results of reading replicas: a row per damaged run of entries, or per unreadable replica
OBJECTS        a row per object of the bucket
DEFINITIONS    a row per version of a topic's schema

A topic is `persistent://tenant/namespace/name` without `-partition-N`; `partition` is -1 for a plain topic. Times are
in UTC. Ids are BookKeeper's.
"""

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

TEXT, LONG, INT, REAL, YES = StringType(), LongType(), IntegerType(), DoubleType(), BooleanType()
TIME, BYTES = TimestampType(), BinaryType()


def table(**columns: DataType) -> StructType:
    """Return a schema with these columns, all nullable."""
    return StructType([StructField(name, kind) for name, kind in columns.items()])


_PLACE: Final = {"topic": TEXT, "partition": INT}

MESSAGES: Final = table(
    **_PLACE,
    ledger=LONG,
    entry=LONG,
    batch_index=INT,
    key=TEXT,
    publish_time=TIME,
    producer=TEXT,
    schema_version=BYTES,
    size=INT,
)
"""Columns of the table of messages that analyses use."""

LEDGERS: Final = table(
    **_PLACE,
    ledger=LONG,
    entries=LONG,
    bytes=LONG,
    opened_at=TIME,
    closed_at=TIME,
    state=TEXT,
    offloaded=YES,
    bookkeeper_deleted=YES,
    offload_uuid=TEXT,
    ensemble_size=INT,
    write_quorum=INT,
    ack_quorum=INT,
    ensemble=ArrayType(TEXT),
)
"""`state`: open, closed, or missing if the ledger has no metadata. `opened_at`: null if unknown."""

CURSORS: Final = table(**_PLACE, cursor=TEXT, mark_ledger=LONG, mark_entry=LONG, last_active=TIME, unreadable=TEXT)
"""`unreadable`: why the position may be outdated; null if it is the cursor's last one."""

ACKED: Final = table(**_PLACE, cursor=TEXT, ledger=LONG, first=LONG, last=LONG)

BOOKIES: Final = table(bookie=TEXT, state=TEXT, free_bytes=LONG, total_bytes=LONG, reason=TEXT)
"""`state`: writable, read-only or away; `reason`: why its space is unknown."""

STORED: Final = table(ledger=LONG, state=TEXT, entries=LONG, bytes=LONG, owner=TEXT, cursor=TEXT, opened_at=TIME)
"""`owner`: the managed ledger in its metadata; null for other ledgers."""

EXPECTED: Final = table(ledger=LONG, bookie=TEXT, last=LONG, closed=YES)
RESPONSES: Final = table(bookie=TEXT, asked=LONG, ledger=LONG, last=LONG, fenced=YES, limbo=YES, reason=TEXT)
"""The final row of a bookie has no ledger; `reason` is null if the response was complete. `asked`: id of the
request."""

HELD: Final = table(ledger=LONG, bookie=TEXT, last=LONG, fenced=YES, limbo=YES)
"""Ledgers of bookies with a complete response."""

SILENT: Final = table(bookie=TEXT, reason=TEXT)
CHECKED: Final = table(ledger=LONG, bookie=TEXT, first=LONG, last=LONG, what=TEXT, unknown=TEXT)
"""`unknown`: why the bookie's replica, or without a bookie the ledger, could not be checked; `what` is null then."""

OBJECTS: Final = table(key=TEXT, bytes=LONG)
DEFINITIONS: Final = table(topic=TEXT, version=LONG, type=TEXT, definition=TEXT, registered_at=TIME)
