"""Changes between two versions of a record, by Avro's rules."""

import json
from typing import Any

import pytest

from quire_jobs.analytics.schema_changes import Breaks, DefinitionError, changes


def record(*fields: Any) -> str:
    return json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} | rest for name, kind, rest in fields]}
    )


BASE = record(("id", "int", {}), ("note", ["null", "string"], {"default": None}))


def only(after: str, before: str = BASE) -> tuple[str, str, Breaks]:
    found = changes(before, after)
    assert len(found) == 1, found
    return found[0].path, found[0].what, found[0].breaks


NOTE = ("note", ["null", "string"], {"default": None})


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (record(("id", "int", {}), NOTE, ("x", "int", {})), ("x", "added without default", Breaks.NEW_READERS)),
        (record(("id", "int", {}), NOTE, ("x", "int", {"default": 0})), ("x", "added", Breaks.NONE)),
        (record(NOTE), ("id", "removed", Breaks.OLD_READERS)),
        (record(("id", "int", {})), ("note", "removed", Breaks.NONE)),
        (record(("id", "long", {}), NOTE), ("id", "type changed", Breaks.OLD_READERS)),
        (record(("id", "string", {}), NOTE), ("id", "type changed", Breaks.BOTH)),
        (record(("id", ["null", "int"], {}), NOTE), ("id", "type changed", Breaks.OLD_READERS)),
        (record(("id", "int", {"default": 1}), NOTE), ("id", "default added", Breaks.NONE)),
    ],
)
def test_each_kind_of_change_breaks_the_expected_readers(after: str, expected: tuple[str, str, Breaks]) -> None:
    assert only(after) == expected


def test_narrowing_breaks_new_readers_and_text_to_bytes_breaks_none() -> None:
    assert only(record(("a", "int", {})), record(("a", "long", {})))[2] is Breaks.NEW_READERS
    assert only(record(("a", "bytes", {})), record(("a", "string", {})))[2] is Breaks.NONE


def test_an_enum_with_more_symbols_breaks_old_readers_and_one_with_fewer_the_new_ones() -> None:
    def enum(*symbols: str, name: str = "e") -> str:
        return record(("state", {"type": "enum", "name": name, "symbols": list(symbols)}, {}))

    assert only(enum("a", "b", "c"), enum("a", "b"))[2] is Breaks.OLD_READERS
    assert only(enum("a"), enum("a", "b"))[2] is Breaks.NEW_READERS
    assert only(enum("b", "a"), enum("a", "b"))[2] is Breaks.NONE
    assert only(enum("a", "c"), enum("a", "b"))[2] is Breaks.BOTH
    assert only(enum("a", "b", name="f"), enum("a", "b"))[2] is Breaks.BOTH


def test_fields_of_nested_records_have_dotted_paths() -> None:
    def nested(kind: str) -> str:
        inner = {"type": "record", "name": "I", "fields": [{"name": "x", "type": kind}]}
        return record(("items", {"type": "array", "items": inner}, {}))

    assert only(nested("string"), nested("int"))[0] == "items.x"


def test_the_same_definition_has_no_changes() -> None:
    assert changes(BASE, BASE) == []


@pytest.mark.parametrize(
    "definition",
    [
        *("", "{", "[]", '"string"', '{"type": "record"}', "[" * 100_000),
        record(("id", {"type": "enum", "name": "e", "symbols": 5}, {})),
    ],
)
def test_a_definition_that_is_not_a_record_is_refused(definition: str) -> None:
    with pytest.raises(DefinitionError):
        changes(definition, BASE)
