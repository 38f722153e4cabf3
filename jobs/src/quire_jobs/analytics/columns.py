"""The columns of what analyses read: the table of messages, and small tables of metadata, bookies and buckets.

LEDGERS        a row a ledger that a managed ledger lists; `entries` and `bytes` of an open one as far as they were read
CURSORS        a row a durable cursor
ACKED          a row a run of entries behind the mark-delete that a cursor acknowledged one by one
BOOKIES        a row a bookie that is registered or has a cookie
STORED         a row a ledger of BookKeeper's metadata, whoever made it
EXPECTED       a row a ledger and bookie: the highest entry that the metadata puts there
SAID           what tasks bring from bookies: a row a ledger and bookie, and a last one of each bookie
LOOKED         what tasks found that read replicas: a row a damaged run of entries, or what could not be read
OBJECTS        a row an object of the bucket
DEFINITIONS    a row a version of a topic's schema

A topic is `persistent://tenant/namespace/name` without `-partition-N`; `partition` is -1 for a plain topic. Times are
in UTC. Ids are as BookKeeper counts them.
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
    """Columns by name, all of them nullable."""
    return StructType([StructField(name, kind) for name, kind in columns.items()])


_PLACE: Final = {"topic": TEXT, "partition": INT}

MESSAGES: Final = table(
    **_PLACE, ledger=LONG, entry=LONG, key=TEXT, publish_time=TIME, producer=TEXT, schema_version=BYTES, size=INT
)
"""What analyses use of the table of messages."""

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
"""`state`: open, closed, or missing when the metadata of the ledger itself is gone. `opened_at`: null when unknown."""

CURSORS: Final = table(**_PLACE, cursor=TEXT, mark_ledger=LONG, mark_entry=LONG, last_active=TIME, unreadable=TEXT)
"""`unreadable`: why the position may be older than the cursor's; null when it is its last one."""

ACKED: Final = table(**_PLACE, cursor=TEXT, ledger=LONG, first=LONG, last=LONG)

BOOKIES: Final = table(bookie=TEXT, state=TEXT, free_bytes=LONG, total_bytes=LONG, reason=TEXT)
"""`state`: writable, read-only or away; `reason`: why its space is not known."""

STORED: Final = table(ledger=LONG, state=TEXT, entries=LONG, bytes=LONG, owner=TEXT, cursor=TEXT, opened_at=TIME)
"""`owner`: the managed ledger that its metadata names; null for ledgers of others."""

EXPECTED: Final = table(ledger=LONG, bookie=TEXT, last=LONG, closed=YES)
SAID: Final = table(bookie=TEXT, asked=LONG, ledger=LONG, last=LONG, fenced=YES, limbo=YES, reason=TEXT)
"""The last row of a bookie has no ledger: it answered to the end, or `reason` says why not. `asked`: of each asking."""

HELD: Final = table(ledger=LONG, bookie=TEXT, last=LONG, fenced=YES, limbo=YES)
"""What bookies hold that answered to the end."""

SILENT: Final = table(bookie=TEXT, reason=TEXT)
LOOKED: Final = table(ledger=LONG, bookie=TEXT, first=LONG, last=LONG, what=TEXT, unknown=TEXT)
"""`unknown`: why nothing is known of the bookie's replica, or without a bookie of the ledger; `what` is null then."""

OBJECTS: Final = table(key=TEXT, bytes=LONG)
DEFINITIONS: Final = table(topic=TEXT, version=LONG, type=TEXT, definition=TEXT, registered_at=TIME)
