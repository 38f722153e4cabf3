"""Typed rows: schema versions in one superset, conflicts named, undecodable rows kept separately."""

import io
import json
import struct
from base64 import b64encode
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from quire_broker.schemas.stored import Schema, SchemaType
from quire_jobs.decode.columns import MESSAGE_SCHEMA
from quire_jobs.decode.payloads import PayloadDecoder
from quire_jobs.decode.table import TableDecoder, TablePlan, plan_table
from quire_jobs.errors import TableSchemaError, UndecodableError

TOPIC, KEY = "persistent://t/n/x-partition-1", "t/n/x"


def record(*fields: tuple[str, Any], kind: SchemaType = SchemaType.AVRO, name: str = "R") -> Schema:
    listed = [{"name": field, "type": shape} for field, shape in fields]
    return Schema(kind, json.dumps({"type": "record", "name": name, "fields": listed}).encode())


def written(schema: Schema, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(schema.data)), value)
    return out.getvalue()


def messages(*rows: tuple[int | None, bytes | None], keys: list[bytes | None] | None = None) -> pa.RecordBatch:
    """Return messages of (schema version, payload)."""
    count = len(rows)
    given: dict[str, list[Any]] = {
        "topic": [TOPIC] * count,
        "entry": list(range(count)),
        "schema_version": [None if version is None else version.to_bytes(8, "big") for version, _ in rows],
        "payload": [payload for _, payload in rows],
        "key_bytes": keys or [None] * count,
    }
    columns = [pa.array(given.get(field.name, [None] * count), field.type) for field in MESSAGE_SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)


def decoded(plan: TablePlan, batch: pa.RecordBatch) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        TableDecoder(plan)
        .rows(batch)
        .select([*(field.name for field in plan.fields), "_payload", "_error"])
        .to_pylist()
    )
    return rows


def test_added_removed_and_promoted_fields_are_one_table() -> None:
    one = record(("id", "int"), ("gone", "string"), ("amount", "float"))
    two = record(("id", "long"), ("amount", "double"), ("tag", ["null", "string"]))
    three = record(("id", "long"), ("amount", "int"))
    plan = plan_table({KEY: {0: one, 1: two, 2: three}})
    assert {field.name: str(field.type) for field in plan.fields} == {
        "id": "int64", "gone": "string", "amount": "double", "tag": "string"
    }  # fmt: skip
    rows = decoded(plan, messages(
        (0, written(one, {"id": 1, "gone": "g", "amount": 0.5})),
        (1, written(two, {"id": 2**40, "amount": 1.5, "tag": "t"})),
        (2, written(three, {"id": 3, "amount": 7})),
    ))  # fmt: skip
    assert [[row[field.name] for field in plan.fields] for row in rows] == [
        [1, "g", 0.5, None], [2**40, None, 1.5, "t"], [3, None, 7.0, None]
    ]  # fmt: skip
    assert all(row["_error"] is None and row["_payload"] is None for row in rows)


def test_incompatible_versions_are_named_at_planning() -> None:
    nested = {"type": "record", "name": "N", "fields": [{"name": "x", "type": "int"}]}
    other = {"type": "record", "name": "N", "fields": [{"name": "x", "type": "string"}]}
    with pytest.raises(TableSchemaError, match=r"version 3 of t/n/x .*field in\.x is int32 .* string"):
        plan_table({KEY: {1: record(("in", nested)), 3: record(("in", other))}})
    with pytest.raises(TableSchemaError, match="field A has the same name as field a"):
        plan_table({KEY: {0: record(("a", "int"), ("A", "int"))}})
    with pytest.raises(TableSchemaError, match="field _Topic has the same name as a column of metadata"):
        plan_table({KEY: {0: record(("_Topic", "int"))}})
    with pytest.raises(TableSchemaError, match="none is registered"):
        plan_table({KEY: {}})
    with pytest.raises(TableSchemaError, match="contains itself"):
        plan_table({KEY: {0: record(("next", ["null", "R"]))}})


def test_an_undecodable_payload_is_a_row_with_its_bytes_or_an_error_on_request() -> None:
    good = record(("id", "int"))
    plan = plan_table({KEY: {0: good, 1: Schema(SchemaType.PROTOBUF, good.data)}})
    ok = written(good, {"id": 5})
    batch = messages((0, ok), (0, b""), (0, ok + b"x"), (None, b"raw"), (7, b"new"), (1, b"pb"), (0, None))
    rows = decoded(plan, batch)
    assert [row["id"] for row in rows] == [5, None, None, None, None, None, None]
    assert [row["_payload"] for row in rows] == [None, b"", ok + b"x", b"raw", b"new", b"pb", None]
    errors = [None, "EOFError", "1 bytes remain", "no schema version", "version 7 of t/n/x did not exist", "PROTOBUF"]
    for row, text in zip(rows, [*errors, None], strict=True):
        assert row["_error"] is None if text is None else text in row["_error"]
    with pytest.raises(UndecodableError, match=r"entry None:1, .*EOFError"):
        TableDecoder(plan, fail=True).rows(batch)


def test_an_earlier_error_and_its_payload_are_kept() -> None:
    plan = plan_table({KEY: {0: record(("id", "int"))}})
    batch = messages((0, b"cipher"))
    index = batch.schema.get_field_index("_error")
    batch = batch.set_column(index, "_error", pa.array(["encrypted: no"]))
    assert decoded(plan, batch) == [{"id": None, "_payload": b"cipher", "_error": "encrypted: no"}]


def test_each_value_of_json_is_checked_against_its_schema() -> None:
    schema = record(
        ("n", "int"), ("s", ["null", "string"]), ("b", "bytes"), ("f", "boolean"),
        ("t", {"type": "long", "logicalType": "timestamp-millis"}), ("d", {"type": "int", "logicalType": "date"}),
        kind=SchemaType.JSON,
    )  # fmt: skip
    plan = plan_table({KEY: {0: schema}})
    good = {"n": 1, "s": None, "b": b64encode(b"\x00").decode(), "f": True, "t": 1000, "d": 1, "more": 1}
    changes: list[dict[str, Any]] = [{}, {"n": "1"}, {"s": 5}, {"b": "!"}, {"f": 1}, {"n": 2**40}, {"n": 1.5}]
    payloads = [json.dumps({**good, **change}).encode() for change in changes]
    rows = decoded(plan, messages(*((0, payload) for payload in [*payloads, b"[1]", b"{"])))
    assert [row["_error"] is None for row in rows] == [True] + [False] * 8
    assert (rows[0]["n"], rows[0]["b"], rows[0]["f"]) == (1, b"\x00", True)
    assert (rows[0]["t"], rows[0]["d"]) == (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), date(1970, 1, 2))


def test_logical_types_unions_lists_maps_enums_and_decimals() -> None:
    schema = record(
        ("d", {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}),
        ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
        ("l", {"type": "array", "items": "E"}),
        ("m", {"type": "map", "values": ["null", "long"]}),
        ("u", ["null", "int", "string"]),
        ("w", ["int", "long"]),
        ("x", {"type": "fixed", "name": "F", "size": 2}),
        ("i", {"type": "string", "logicalType": "uuid"}),
        ("c", {"type": "int", "logicalType": "time-millis"}),
    )
    value = {
        "d": Decimal("12.34"), "e": "B", "l": ["A", "B"], "m": {"k": 1, "z": None}, "u": 5, "w": 6, "x": b"ab",
        "i": "00000000-0000-0000-0000-000000000001", "c": 9,
    }  # fmt: skip
    plain = json.loads(schema.data)
    plain["fields"][7]["type"] = "string"
    plain["fields"][8]["type"] = "int"
    payload = written(Schema(SchemaType.AVRO, json.dumps(plain).encode()), value)
    (row,) = decoded(plan_table({KEY: {0: schema}}), messages((0, payload)))
    assert row.pop("m") == [("k", 1), ("z", None)]
    assert row == {
        **{key: item for key, item in value.items() if key != "m"},
        "u": "5",
        "_payload": None,
        "_error": None,
    }


PRIMITIVE = [
    (SchemaType.STRING, "é".encode(), "é"),
    (SchemaType.BOOLEAN, b"\1", True),
    (SchemaType.INT8, b"\xff", -1),
    (SchemaType.INT16, b"\x01\x00", 256),
    (SchemaType.INT32, struct.pack(">i", -5), -5),
    (SchemaType.INT64, struct.pack(">q", 1 << 40), 1 << 40),
    (SchemaType.FLOAT, struct.pack(">f", 0.5), 0.5),
    (SchemaType.DOUBLE, struct.pack(">d", 0.1), 0.1),
    (SchemaType.TIMESTAMP, struct.pack(">q", 1500), datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)),
    (SchemaType.INSTANT, struct.pack(">qi", 1, 5000), datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC)),
    (SchemaType.LOCAL_DATE, struct.pack(">q", 2), date(1970, 1, 3)),
    (SchemaType.LOCAL_TIME, struct.pack(">q", 7), 7),
]


@pytest.mark.parametrize(("kind", "payload", "value"), PRIMITIVE, ids=lambda each: getattr(each, "name", None))
def test_primitive_payloads_are_one_column(kind: SchemaType, payload: bytes, value: Any) -> None:
    plan = plan_table({KEY: {0: Schema(kind, b"")}})
    good, short = decoded(plan, messages((0, payload), (0, payload + b"\xff")))
    assert good["value"] == value
    assert short["_error"] is not None


def test_key_value_schemas_give_key_and_value_inline_and_separated() -> None:
    inner = record(("id", "int"))
    data = b"\0\0\0\0" + len(inner.data).to_bytes(4, "big") + inner.data
    properties = {"key.schema.type": "STRING", "value.schema.type": "AVRO"}
    value = written(inner, {"id": 5})
    inline = Schema(SchemaType.KEY_VALUE, data, properties | {"kv.encoding.type": "INLINE"})
    apart = Schema(SchemaType.KEY_VALUE, data, properties | {"kv.encoding.type": "SEPARATED"})
    body = b"\0\0\0\1k" + len(value).to_bytes(4, "big") + value
    rows = decoded(
        plan_table({KEY: {0: inline, 1: apart}}),
        messages((0, body), (1, value), (0, body[:-1]), (0, b"\xff\xff\xff\xff" * 2), keys=[None, b"k", None, None]),
    )
    assert [(row["key"], row["value"]) for row in rows] == [
        ("k", {"id": 5}), ("k", {"id": 5}), (None, None), (None, None)
    ]  # fmt: skip
    assert [row["_error"] is None for row in rows] == [True, True, False, True]


def native(*fields: tuple[str, int, int, bool]) -> tuple[Schema, Any]:
    """Return a native Protobuf schema of (name, number, type, repeated) and its message class."""
    file = FileDescriptorProto(name="m.proto", package="p", syntax="proto3")
    message = file.message_type.add(name="M")
    for name, number, kind, repeated in fields:
        message.field.add(name=name, number=number, type=kind, label=3 if repeated else 1)
    pool = DescriptorPool()
    pool.Add(file)
    definition = {
        "fileDescriptorSet": b64encode(FileDescriptorSet(file=[file]).SerializeToString()).decode(),
        "rootMessageTypeName": "p.M",
        "rootFileDescriptorName": "m.proto",
    }
    made = GetMessageClass(pool.FindMessageTypeByName("p.M"))
    return Schema(SchemaType.PROTOBUF_NATIVE, json.dumps(definition).encode()), made


def test_native_protobuf_messages_of_two_versions() -> None:
    one, first = native(("id", 1, FieldDescriptorProto.TYPE_INT32, False))
    two, second = native(
        ("id", 1, FieldDescriptorProto.TYPE_INT64, False),
        ("names", 2, FieldDescriptorProto.TYPE_STRING, True),
        ("raw", 3, FieldDescriptorProto.TYPE_BYTES, False),
    )
    plan = plan_table({KEY: {0: one, 1: two}})
    payloads = (first(id=5).SerializeToString(), second(id=1 << 40, names=["a"], raw=b"r").SerializeToString())
    rows = decoded(plan, messages((0, payloads[0]), (1, payloads[1]), (1, b"\xff")))
    assert [(row["id"], row["names"], row["raw"]) for row in rows] == [
        (5, None, None), (1 << 40, ["a"], b"r"), (None, None, None)
    ]  # fmt: skip
    assert [row["_error"] is None for row in rows] == [True, True, False]


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=40), st.sampled_from([SchemaType.AVRO, SchemaType.JSON]))
def test_no_payload_raises_an_error(payload: bytes, kind: SchemaType) -> None:
    schema = record(("a", "long"), ("b", {"type": "array", "items": "string"}), kind=kind)
    (row,) = decoded(plan_table({KEY: {0: schema}}), messages((0, payload)))
    assert row["_error"] is None or row["_payload"] == payload


@settings(max_examples=60, deadline=None)
@given(
    st.integers(-(2**63), 2**63 - 1), st.text(max_size=9), st.binary(max_size=9), st.lists(st.booleans(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.floats(allow_nan=False), max_size=3),
)  # fmt: skip
def test_avro_values_are_read_back(
    number: int, text: str, raw: bytes, flags: list[bool], floats: dict[str, float]
) -> None:
    schema = record(
        ("n", "long"), ("t", "string"), ("r", "bytes"), ("l", {"type": "array", "items": "boolean"}),
        ("m", {"type": "map", "values": "double"}),
    )  # fmt: skip
    payload = written(schema, {"n": number, "t": text, "r": raw, "l": flags, "m": floats})
    (row,) = decoded(plan_table({KEY: {0: schema}}), messages((0, payload)))
    assert (row["n"], row["t"], row["r"], row["l"], dict(row["m"])) == (number, text, raw, flags, floats)


@pytest.mark.parametrize("bad", [b"{", b'"nope"', b'{"type":"record","name":"R"}'])
def test_a_definition_that_does_not_parse_is_a_value_error(bad: bytes) -> None:
    for kind in (SchemaType.AVRO, SchemaType.PROTOBUF_NATIVE):
        with pytest.raises(ValueError, match="not a"):
            PayloadDecoder(Schema(kind, bad))
