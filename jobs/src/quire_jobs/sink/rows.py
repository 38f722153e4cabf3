"""Turns rows into messages: metadata columns, payload, and the partition of a key. Pure.

key            string: partition key                        ordering_key   binary or string
event_time     timestamp                                    properties     map<string, string>
payload, or value if there is no payload: binary or string; with a schema: every other column is a field
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from quire_jobs.errors import QuireJobError, TableSchemaError
from quire_jobs.sink.options import PayloadSchema
from quire_jobs.sink.records import avro_payloads, definition_of, json_payloads

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_IS_METADATA: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "key": (lambda kind: pa.types.is_string(kind), "string"),
    "ordering_key": (lambda kind: pa.types.is_binary(kind) or pa.types.is_string(kind), "binary or string"),
    "event_time": (lambda kind: pa.types.is_timestamp(kind), "timestamp"),
    "properties": (lambda kind: pa.types.is_map(kind), "map<string,string>"),
}


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to send."""

    payload: bytes
    key: str | None
    ordering_key: str | None
    event_ms: int | None
    properties: dict[str, str] | None


class RowEncoder:
    """Encodes rows of one schema. TableSchemaError if the columns do not form messages."""

    def __init__(self, schema: pa.Schema, kind: PayloadSchema) -> None:
        self._metadata = [name for name in _IS_METADATA if name in schema.names]
        for name in self._metadata:
            fits, wanted = _IS_METADATA[name]
            if not fits(schema.field(name).type):
                found = schema.field(name).type
                raise TableSchemaError(
                    f"column {name} is {found}; the {name} of a message must be {wanted}: cast or rename it"
                )
        others = [field for field in schema if field.name not in self._metadata]
        self.definition: dict[str, Any] | None = None
        self._encode: Callable[[dict[str, Any]], bytes] | None = None
        self._fields = [field.name for field in others]
        if kind is PayloadSchema.NONE:
            self._payload = _payload_column(others)
            return
        if not others:
            raise TableSchemaError(
                f"schema = {kind}: no column for the payload besides the metadata {', '.join(self._metadata)}"
            )
        self.definition = definition_of(others)
        make = avro_payloads if kind is PayloadSchema.AVRO else json_payloads
        self._encode = make(self.definition)

    def messages(self, batch: pa.RecordBatch) -> Iterator[Outgoing]:
        """Yield the messages in the order of the rows. QuireJobError for a row that cannot be sent."""
        columns = {name: batch.column(name).to_pylist() for name in self._metadata}
        for number, payload in enumerate(self._payloads(batch)):
            given = {name: values[number] for name, values in columns.items()}
            ordering, event, pairs = given.get("ordering_key"), given.get("event_time"), given.get("properties")
            yield Outgoing(
                payload,
                given.get("key"),
                _ordering_text(ordering) if isinstance(ordering, bytes) else ordering,
                None if event is None else _milliseconds(event),
                dict(pairs) if pairs else None,
            )

    def _payloads(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        if self._encode is not None:
            for row in batch.select(self._fields).to_pylist():
                yield self._encode(row)
            return
        for value in batch.column(self._payload).to_pylist():
            if value is None:
                raise QuireJobError(
                    f"quire sink: a row has null in {self._payload}, and the client sends no message without a "
                    "payload: filter such rows out"
                )
            yield value.encode() if isinstance(value, str) else value


def _ordering_text(key: bytes) -> str:
    """Return the key as text. The client only accepts text and sends its UTF-8, so other bytes raise QuireJobError."""
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise QuireJobError(
            f"quire sink: ordering_key {key[:40]!r} is not UTF-8, and the client sends only text: encode it, "
            "e.g. as base64"
        ) from error


def _payload_column(others: list[pa.Field]) -> str:
    known = {field.name: field.type for field in others}
    name = "payload" if "payload" in known else "value"
    kind = known.get(name)
    if kind is None or not (pa.types.is_binary(kind) or pa.types.is_string(kind)):
        listed = ", ".join(f"{field.name} ({field.type})" for field in others) or "none"
        raise TableSchemaError(
            "without a schema the payload must be in a column payload or value, binary or string; the columns are "
            f"{listed}. To send a record of all columns, set schema to avro or json"
        )
    extra = sorted(set(known) - {name})
    if extra:
        raise TableSchemaError(
            f"columns {', '.join(extra)} would not be sent: drop them, or set schema to avro or json for records"
        )
    return name


def _milliseconds(time: datetime) -> int:
    since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
