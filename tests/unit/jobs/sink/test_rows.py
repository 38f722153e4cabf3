"""Rows to messages: metadata columns, payloads, records in Avro and JSON that mode table reads back."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from quire_broker.schemas.stored import Schema, SchemaType
from quire_jobs.decode.payloads import PayloadDecoder
from quire_jobs.errors import QuireJobError, TableSchemaError
from quire_jobs.sink.options import PayloadSchema
from quire_jobs.sink.rows import Outgoing, RowEncoder


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_metadata_columns_are_used_and_the_payload_is_bytes_or_text() -> None:
    times = pa.array([datetime(2026, 1, 1, tzinfo=UTC), None], pa.timestamp("us", tz="UTC"))
    pairs = pa.array([[("a", "b")], None], pa.map_(pa.string(), pa.string()))
    rows = batch(value=["x", "é"], key=["k", None], ordering_key=[b"o", None], event_time=times, properties=pairs)
    assert list(RowEncoder(rows.schema, PayloadSchema.NONE).messages(rows)) == [
        Outgoing(b"x", "k", "o", 1_767_225_600_000, {"a": "b"}),
        Outgoing("é".encode(), None, None, None, None),
    ]


@pytest.mark.parametrize(
    ("columns", "kind", "text"),
    [
        ({"key": [1], "value": ["x"]}, PayloadSchema.NONE, "column key is int64"),
        ({"id": [1]}, PayloadSchema.NONE, r"the columns are id \(int64\)"),
        ({"value": ["x"], "id": [1]}, PayloadSchema.NONE, "columns id would not be sent"),
        ({"key": ["x"]}, PayloadSchema.AVRO, "no column for the payload besides the metadata key"),
        ({"a b": [1]}, PayloadSchema.AVRO, "'a b' is not a valid name"),
        ({"t": [1]}, PayloadSchema.AVRO, "column t of type duration"),
    ],
)
def test_columns_that_form_no_message_are_named(columns: dict[str, Any], kind: PayloadSchema, text: str) -> None:
    rows = batch(**columns)
    if text.endswith("duration"):
        rows = batch(t=pa.array([1], pa.duration("s")))
    with pytest.raises(TableSchemaError, match=text):
        RowEncoder(rows.schema, kind)


def test_a_payload_of_null_is_refused() -> None:
    rows = batch(value=pa.array([None], pa.string()))
    with pytest.raises(QuireJobError, match="null in value"):
        list(RowEncoder(rows.schema, PayloadSchema.NONE).messages(rows))


def test_an_ordering_key_that_is_not_utf8_is_refused() -> None:
    rows = batch(value=["x", "x"], ordering_key=["é".encode(), b"\xff"])
    messages = RowEncoder(rows.schema, PayloadSchema.NONE).messages(rows)
    assert next(messages).ordering_key == "é"  # the client sends its UTF-8
    with pytest.raises(QuireJobError, match=r"ordering_key b'\\xff' is not UTF-8"):
        next(messages)


@pytest.mark.parametrize("kind", [PayloadSchema.AVRO, PayloadSchema.JSON])
def test_records_of_every_column_type_are_read_back(kind: PayloadSchema) -> None:
    fields = {
        "b": (pa.bool_(), True),
        "i": (pa.int16(), -3),
        "l": (pa.int64(), 1 << 40),
        "f": (pa.float32(), 0.5),
        "d": (pa.float64(), 0.1),
        "s": (pa.string(), "é"),
        "y": (pa.binary(), b"\x00\xff"),
        "day": (pa.date32(), date(2026, 1, 2)),
        "at": (pa.timestamp("us", tz="UTC"), datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)),
        "n": (pa.decimal128(6, 2), Decimal("12.30")),
        "a": (pa.list_(pa.int32()), [1, None]),
        "m": (pa.map_(pa.string(), pa.int64()), [("k", 1)]),
        "r": (pa.struct([("x", pa.int32()), ("z", pa.string())]), {"x": 1, "z": None}),
    }
    made = [pa.array([value, None], shape) for shape, value in fields.values()]
    rows = pa.RecordBatch.from_arrays(made, names=list(fields))
    encoder = RowEncoder(rows.schema, kind)
    reader = PayloadDecoder(Schema(SchemaType[kind.name], json.dumps(encoder.definition).encode()))
    full, empty = encoder.messages(rows)
    assert reader.row(full.payload, None) == {name: value for name, (_, value) in fields.items()}
    assert reader.row(empty.payload, None) == dict.fromkeys(fields)
