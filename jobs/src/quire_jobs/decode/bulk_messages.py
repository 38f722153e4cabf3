"""Decodes common entries to messages in Arrow, many at a time. Leaves unusual and invalid entries to `messages`.

The work is done by `quire_bookie.bulk.message_columns`. Its plain Python version takes no entries.
"""

from base64 import b64decode
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from quire_bookie.bulk import message_columns
from quire_bookie.model import Buffer
from quire_broker.compression import CompressionError, decompress
from quire_jobs.decode.columns import MESSAGE_SCHEMA, OF_ENTRY, TIMESTAMP, sparse

_MS = pa.timestamp("ms", tz="UTC")
_Column = tuple[bytes | None, ...]


class BulkResult(NamedTuple):
    """`stop`: the first entry that was not taken. `rows`: None without any. `size_bytes`: approximate size of the
    rows."""

    stop: int
    rows: pa.RecordBatch | None
    size_bytes: int


class BulkMessages:
    """Decodes entries of a task to these columns of MESSAGE_SCHEMA."""

    def __init__(self, columns: Sequence[str] | None = None) -> None:
        names = MESSAGE_SCHEMA.names if columns is None else columns
        self._schema = pa.schema([MESSAGE_SCHEMA.field(name) for name in names])
        self._wants_payload = "payload" in names

    def take(self, entries: pa.RecordBatch, data: Buffer, offsets: Buffer, first: int, bytes_max: int) -> BulkResult:
        """Decode `entries` from number `first` on, whose payloads are `data` at `offsets`.

        Stops at an entry that this class does not handle, or after the entry with which the rows reach `bytes_max`.
        """
        stop, count, size_bytes, columns, base64_rows = message_columns(
            data, offsets, first, bytes_max, self._wants_payload, _inflated
        )
        if not count:
            return BulkResult(stop, None, 0)
        made = _Columns(entries, count, columns, base64_rows)
        arrays = [made.column(field.name, field.type) for field in self._schema]
        return BulkResult(stop, pa.RecordBatch.from_arrays(arrays, schema=self._schema), size_bytes)


def _inflated(body: bytes, codec: int, size: int) -> bytes | None:
    try:
        return decompress(body, codec, size)
    except CompressionError:
        return None


class _Columns:
    """Builds columns from buffers."""

    def __init__(
        self, entries: pa.RecordBatch, count: int, columns: dict[str, _Column], base64_rows: list[int]
    ) -> None:
        self._entries = entries
        self._count = count
        self._columns = columns
        self._source = self._array(columns["source"], pa.int64())
        self._key_bytes: dict[int, bytes] = {}
        self._errors: dict[int, str] = {}
        self._decode_keys(base64_rows)

    def column(self, name: str, kind: pa.DataType) -> pa.Array:
        """Return one column of MESSAGE_SCHEMA."""
        if name in OF_ENTRY:
            return self._entries.column(name).take(self._source)
        if name == "key_bytes":
            return sparse(self._key_bytes, self._count, kind)
        if name == "_error":
            return sparse(self._errors, self._count, kind)
        if name == "properties":
            return self._properties()
        buffers = self._columns.get(name)
        if buffers is None:
            return pa.nulls(self._count, kind)
        if kind == TIMESTAMP:
            return self._array(buffers, _MS).cast(kind)
        return self._array(buffers, kind)

    def _array(self, buffers: _Column, kind: pa.DataType, count: int | None = None) -> pa.Array:
        wrapped = [None if each is None else pa.py_buffer(each) for each in buffers]
        return pa.Array.from_buffers(kind, self._count if count is None else count, wrapped)

    def _properties(self) -> pa.Array:
        # Map arrays have no validity bitmap here: a message without properties has an empty map, not null.
        offsets, *parts = self._columns.get("properties") or (
            bytes(4 * (self._count + 1)),
            bytes(4),
            b"",
            bytes(4),
            b"",
        )
        starts = self._array((None, offsets), pa.int32(), self._count + 1)
        pairs = starts[-1].as_py()
        keys = self._array((None, *parts[:2]), pa.string(), pairs)
        return pa.MapArray.from_arrays(starts, keys, self._array((None, *parts[2:]), pa.string(), pairs))

    def _decode_keys(self, rows: list[int]) -> None:
        if not rows:
            return
        keys = self._array(self._columns["key"], pa.string())
        for row in rows:
            text = keys[row].as_py()
            found = key_bytes(text)
            if found is None:
                self._errors[row] = not_base64(text)
            else:
                self._key_bytes[row] = found


def key_bytes(key: str) -> bytes | None:
    """Return the bytes of a base64 key; None if it is not valid base64."""
    try:
        return b64decode(key, validate=True)
    except ValueError:
        return None


def not_base64(key: str) -> str:
    """Return the `_error` of a message with such a key."""
    return f"the key {key[:40]!r} is marked as base64 but is not valid base64"
