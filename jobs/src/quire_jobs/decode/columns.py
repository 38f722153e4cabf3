"""The columns of decoded messages, and the rows collected before they become Arrow. Knows no wire format.

Values that most messages lack (properties, ordering key, event time, an error) are stored by row number, so that a
message costs only the columns that it has.
"""

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", tz="UTC")
PROPERTIES = pa.map_(pa.string(), pa.string())
ENTRY_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("ledger", pa.int64()),
        ("entry", pa.int64()),
        ("size", pa.int32()),
        ("payload", pa.binary()),
    ]
)
"""Mode `entries`: stored entries, unchanged. `partition`: -1 for a plain topic, null for a bare ledger."""

MESSAGE_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("ledger", pa.int64()),
        ("entry", pa.int64()),
        ("batch_index", pa.int32()),
        ("key", pa.string()),
        ("key_bytes", pa.binary()),
        ("ordering_key", pa.binary()),
        ("publish_time", TIMESTAMP),
        ("event_time", TIMESTAMP),
        ("producer", pa.string()),
        ("sequence_id", pa.int64()),
        ("properties", PROPERTIES),
        ("schema_version", pa.binary()),
        ("size", pa.int32()),
        ("payload", pa.binary()),
        ("_error", pa.string()),
    ]
)
"""Mode `messages`. `batch_index`: -1 outside a batch; `key_bytes`: set if the producer's key is bytes, `key` then
holds its base64 text; `size`: bytes of the payload; `payload`: null for a null value (a tombstone); `_error`: why
this row is not a message, its payload then holds the stored bytes."""

TIME_MS_MAX = 253_402_300_799_999
"""End of the year 9999: Spark and Python support no later times."""
ROW_BYTES = 64
"""Approximate cost of a row, or of a property, besides its text and payload."""
OF_ENTRY = ("topic", "partition", "ledger", "entry")
"""Columns that a message takes from its entry."""


class Rows:
    """Messages collected from one batch of entries. `take` turns them into Arrow and clears them."""

    def __init__(self, columns: Sequence[str] | None = None) -> None:
        self._schema = (
            MESSAGE_SCHEMA if columns is None else pa.schema([MESSAGE_SCHEMA.field(each) for each in columns])
        )
        self.wants_payload = "payload" in self._schema.names
        self.clear()

    def clear(self) -> None:
        """Remove all rows."""
        self.size_bytes = 0  # approximate
        self.source = array("q")  # the row's entry: its number in the batch of entries
        self.batch_index = array("i")
        self.publish_ms = array("q")
        self.sequence_id = array("q")
        self.size = array("i")
        self.producer: list[str | None] = []
        self.payload: list[Any] = []
        self.key: dict[int, str] = {}
        self.key_bytes: dict[int, bytes] = {}
        self.ordering_key: dict[int, bytes] = {}
        self.event_ms: dict[int, int] = {}
        self.properties: dict[int, list[tuple[str, str]]] = {}
        self.schema_version: dict[int, bytes] = {}
        self.null_payload: dict[int, bool] = {}
        self.error: dict[int, str] = {}
        self.no_publish_time: set[int] = set()

    def __len__(self) -> int:
        return len(self.size)

    def take(self, entries: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows as Arrow. `entries`: the batch to which the numbers in `source` refer."""
        built = pa.RecordBatch.from_arrays(
            [self._column(field.name, field.type, entries) for field in self._schema], schema=self._schema
        )
        self.clear()
        return built

    def _column(self, name: str, kind: pa.DataType, entries: pa.RecordBatch) -> pa.Array:
        count = len(self)
        if name in OF_ENTRY:
            return entries.column(name).take(
                pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(self.source)])
            )
        if name in ("batch_index", "size", "sequence_id"):
            return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(getattr(self, name))])
        if name == "publish_time":
            return self._publish_times()
        if name == "producer":
            return pa.array(self.producer, kind)
        if name == "properties":
            return self._properties()
        if name == "payload":
            return self._payloads()
        if name == "event_time":
            return sparse(self.event_ms, count, pa.timestamp("ms", tz="UTC")).cast(TIMESTAMP)
        return sparse(self.error if name == "_error" else getattr(self, name), count, kind)

    def _publish_times(self) -> pa.Array:
        kind = pa.timestamp("ms", tz="UTC")
        if self.no_publish_time:
            times = [None if row in self.no_publish_time else ms for row, ms in enumerate(self.publish_ms)]
            return pa.array(times, kind).cast(TIMESTAMP)
        return pa.Array.from_buffers(kind, len(self), [None, pa.py_buffer(self.publish_ms)]).cast(TIMESTAMP)

    def _properties(self) -> pa.Array:
        offsets, keys, values = array("i", [0]), [], []
        if not self.properties:
            offsets = array("i", bytes(4 * (len(self) + 1)))
        else:
            for row in range(len(self)):
                for key, value in self.properties.get(row, ()):
                    keys.append(key)
                    values.append(value)
                offsets.append(len(keys))
        start = pa.Array.from_buffers(pa.int32(), len(offsets), [None, pa.py_buffer(offsets)])
        return pa.MapArray.from_arrays(start, pa.array(keys, pa.string()), pa.array(values, pa.string()))

    def _payloads(self) -> pa.Array:
        offsets = array("i", accumulate(map(len, self.payload), initial=0))
        validity = None
        if self.null_payload:
            validity = pa.array([row not in self.null_payload for row in range(len(self))], pa.bool_()).buffers()[1]
        buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(b"".join(self.payload))]
        return pa.Array.from_buffers(pa.binary(), len(self), buffers)


def sparse(values: dict[int, Any], count: int, kind: pa.DataType) -> pa.Array:
    """Return `count` rows, null where there is no value."""
    if not values:
        return pa.nulls(count, kind)
    if len(values) == count:
        return pa.array(list(values.values()), kind)
    dense: list[Any] = [None] * count
    for row, value in values.items():
        dense[row] = value
    return pa.array(dense, kind)
