"""Strategies, types, and equality of schemas."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from quire_broker.schemas import compatibility
from quire_broker.schemas.budget import Budget
from quire_broker.schemas.compatibility import Strategy
from quire_broker.schemas.stored import Schema, SchemaType


def avro(*names: str, default: Any = None, kind: SchemaType = SchemaType.AVRO) -> Schema:
    fields = [{"name": name, "type": "int"} | ({} if default is None else {"default": default}) for name in names]
    return Schema(kind, json.dumps({"type": "record", "name": "R", "fields": fields}).encode())


def incompatible(new: Schema, existing: Sequence[Schema], strategy: Strategy) -> str | None:
    return compatibility.incompatible(new, existing, strategy, Budget())


def same(one: Schema, other: Schema) -> bool:
    return compatibility.same(one, other, Budget())


def key_value(key: bytes, value: bytes, key_type: str = "STRING", value_type: str = "AVRO") -> Schema:
    data = b"".join(len(part).to_bytes(4, "big") + part for part in (key, value))
    return Schema(SchemaType.KEY_VALUE, data, {"key.schema.type": key_type, "value.schema.type": value_type})


@pytest.mark.parametrize(
    ("strategy", "adds", "drops"),
    [
        (Strategy.BACKWARD, False, True),
        (Strategy.FORWARD, True, False),
        (Strategy.FULL, False, False),
        (Strategy.ALWAYS_COMPATIBLE, True, True),
        (Strategy.ALWAYS_INCOMPATIBLE, False, False),
    ],
)
def test_each_strategy_allows_or_refuses_fields_without_default(strategy: Strategy, adds: bool, drops: bool) -> None:
    assert (incompatible(avro("a", "b"), [avro("a")], strategy) is None) == adds
    assert (incompatible(avro("a"), [avro("a", "b")], strategy) is None) == drops


def test_transitive_strategies_compare_every_version() -> None:
    versions = [avro("a"), avro("a", "b", default=0)]
    new = avro("b", default=0)
    assert incompatible(new, versions, Strategy.FORWARD) is None
    assert "readers of the existing" in str(incompatible(new, versions, Strategy.FORWARD_TRANSITIVE))


def test_types_never_change_and_consumers_only_read() -> None:
    new = Schema(SchemaType.STRING, b"")
    assert "exists schema type AVRO" in str(incompatible(new, [avro("a")], Strategy.FULL))
    assert incompatible(new, [avro("a")], Strategy.ALWAYS_COMPATIBLE) is None
    assert Strategy.FULL.of_consumer() is Strategy.BACKWARD
    assert Strategy.FULL_TRANSITIVE.of_consumer() is Strategy.BACKWARD_TRANSITIVE


def test_key_and_value_are_compared_each_by_its_type() -> None:
    one, more = avro("a").data, avro("a", "b").data
    assert incompatible(key_value(b"", one), [key_value(b"", one)], Strategy.FULL) is None
    assert "/b" in str(incompatible(key_value(b"", more), [key_value(b"", one)], Strategy.FULL))
    assert "INT32" in str(incompatible(key_value(b"", one, "INT32"), [key_value(b"", one)], Strategy.FULL))


def test_native_protobuf_keeps_its_root_message() -> None:
    def native(root: str) -> Schema:
        return Schema(SchemaType.PROTOBUF_NATIVE, json.dumps({"rootMessageTypeName": root}).encode())

    assert incompatible(native("a.B"), [native("a.B")], Strategy.FULL) is None
    assert "a.C" in str(incompatible(native("a.C"), [native("a.B")], Strategy.FULL))


def test_schemas_that_differ_in_spaces_only_are_one() -> None:
    pretty = Schema(SchemaType.AVRO, json.dumps(json.loads(avro("a").data), indent=1).encode())
    assert same(avro("a"), pretty)
    assert not same(avro("a"), avro("a", kind=SchemaType.JSON))
    assert not same(Schema(SchemaType.STRING, b""), Schema(SchemaType.STRING, b"null"))


@pytest.mark.parametrize(
    "schema",
    [
        Schema(SchemaType.AVRO, b"{"),
        key_value(b"", b"{"),
        Schema(SchemaType.KEY_VALUE, b"\0\0\1"),
        Schema(SchemaType.PROTOBUF_NATIVE, b"[" * 200_000),
    ],
    ids=["avro", "value", "lengths", "deep"],
)
def test_data_that_does_not_parse_is_not_a_schema(schema: Schema) -> None:
    assert "Invalid schema definition" in str(compatibility.flaw_of(schema, Budget()))


def test_a_stored_schema_in_another_form_is_incompatible_and_not_an_error() -> None:
    assert "does not parse" in str(incompatible(avro("a"), [Schema(SchemaType.AVRO, b"<xml>")], Strategy.FULL))
