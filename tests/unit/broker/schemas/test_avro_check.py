"""Avro's schema resolution, compared with fastavro, which really resolves: it reads what we accept."""

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire_broker.schemas.avro_check import AvroSchema, unreadable
from quire_broker.schemas.budget import Budget


def check(reader: Any, writer: Any) -> str | None:
    return unreadable(parsed(reader), parsed(writer), Budget())


def parsed(schema: Any) -> AvroSchema:
    return AvroSchema(json.dumps(schema).encode(), Budget())


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


@pytest.mark.parametrize(
    ("reader", "writer", "flaw"),
    [
        ("long", "int", None),
        ("int", "long", "long was written"),
        ("double", "float", None),
        ("string", "bytes", None),
        (["null", "string"], "string", None),
        ("string", ["null", "string"], "null was written"),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, None),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}, "/values"),
        (record({"name": "a", "type": "int", "default": 0}), record(), None),
        (record({"name": "a", "type": "int"}), record(), "/a: the reader's field has no default"),
        (record(), record({"name": "a", "type": "int"}), None),
        (record({"name": "b", "aliases": ["a"], "type": "int"}), record({"name": "a", "type": "int"}), None),
        (record(name="A"), record(name="B"), None),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, {"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B"),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 3}, "3 bytes"),
        ({"type": "int", "logicalType": "date"}, "int", None),
    ],
)
def test_the_rules_of_resolution(reader: Any, writer: Any, flaw: str | None) -> None:
    found = check(reader, writer)
    assert found is None if flaw is None else flaw in str(found)


def test_recursive_records_are_compared_once() -> None:
    tree = record({"name": "next", "type": ["null", "R"], "default": None})
    assert check(tree, tree) is None


def test_a_record_that_did_not_fit_once_does_not_fit_the_second_time() -> None:
    inner = record({"name": "a", "type": "int"}, name="I")
    wider = record({"name": "a", "type": "int"}, {"name": "b", "type": "int"}, name="I")
    one = {"name": "one", "type": [wider, {**inner, "name": "x.I"}]}  # `x.I` reads it, `I` does not
    two = {"name": "two", "type": "I"}
    writer = record({"name": "one", "type": inner}, two, name="O")
    assert check(record(one, name="O"), writer) is None
    assert "/b: the reader's field has no default" in str(check(record(one, two, name="O"), writer))


@pytest.mark.parametrize(
    "bad",
    [
        '{"type":"enum","name":"E","symbols":[{}]}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int","aliases":[[]]}]}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int","aliases":null}]}',
    ],
)
def test_names_that_are_not_texts_are_refused_before_they_are_compared(bad: str) -> None:
    with pytest.raises(ValueError, match=r"symbols|aliases"):
        AvroSchema(bad.encode(), Budget())


@pytest.mark.parametrize("bad", ["{", '"nope"', '{"type":"record"}', '{"type":"record","name":"R","fields":[{}]}', "7"])
def test_invalid_schemas_are_refused(bad: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        AvroSchema(bad.encode(), Budget())


primitives = st.sampled_from(["null", "boolean", "int", "long", "float", "double", "bytes", "string"])
VALUES = {"null": None, "boolean": True, "int": 5, "long": 6, "float": 1.5, "double": 2.5, "bytes": b"b", "string": "s"}


unions = st.lists(primitives, min_size=1, max_size=3, unique=True)


@settings(max_examples=150, deadline=None)
@given(unions, unions)
def test_fastavro_reads_what_the_check_accepts(old: list[str], new: list[str]) -> None:
    writer = record({"name": "f", "type": old if len(old) > 1 else old[0]})
    reader = record({"name": "f", "type": new if len(new) > 1 else new[0]})
    if check(reader, writer) is not None:
        return
    for kind in old:
        written = io.BytesIO()
        value = (kind, VALUES[kind]) if len(old) > 1 else VALUES[kind]
        fastavro.schemaless_writer(written, fastavro.parse_schema(writer), {"f": value})
        written.seek(0)
        fastavro.schemaless_reader(written, fastavro.parse_schema(writer), fastavro.parse_schema(reader))
