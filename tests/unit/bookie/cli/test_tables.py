"""The output forms of rows, objects and streams."""

import json

import pytest
import yaml

from quire_bookie.cli.tables import Column, Output, print_item, print_one, print_rows

ROWS = [{"name": "b", "size": 7, "note": None}, {"name": "a\x1b[2J", "size": 12, "note": "x"}]
COLUMNS = (
    Column("name", lambda row: row["name"]),
    Column("size", lambda row: row["size"]),
    Column("note", lambda row: row["note"], wide=True),
)


def shown(capsys: pytest.CaptureFixture[str], output: Output, rows: list[dict[str, object]] = ROWS) -> str:
    print_rows(rows, COLUMNS, output, name=lambda row: row["name"], empty="there is none")
    return capsys.readouterr().out


def test_rows_are_printed_in_each_form(capsys: pytest.CaptureFixture[str]) -> None:
    table = shown(capsys, Output.TABLE).splitlines()
    assert table[0].split() == ["name", "size"] and table[1].split() == ["b", "7"]
    assert shown(capsys, Output.WIDE).splitlines()[0].split() == ["name", "size", "note"]
    assert json.loads(shown(capsys, Output.JSON)) == ROWS
    assert shown(capsys, Output.NAME) == "b\na\\x1b[2J\n"
    text = shown(capsys, Output.YAML)
    assert yaml.safe_load(text) == ROWS and "\x1b" not in text


def test_no_rows_are_a_sentence_for_people_and_an_empty_list_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([], COLUMNS, Output.TABLE, name=str, empty="there is none")
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "there is none\n")
    assert json.loads(shown(capsys, Output.JSON, [])) == []
    assert shown(capsys, Output.NAME, []) == ""


def test_an_object_has_facts_for_people_and_its_value_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    value, facts = {"isOn": True, "count": 0}, {"is on": True, "count": 0, "owner": None}
    print_one(value, facts, Output.TABLE, name="it")
    assert capsys.readouterr().out.splitlines() == ["is on  yes", "count  0", "owner  -"]
    print_one(value, facts, Output.YAML, name="it")
    assert yaml.safe_load(capsys.readouterr().out) == value
    print_one(value, facts, Output.NAME, name="it")
    assert capsys.readouterr().out == "it\n"


def test_a_stream_is_one_line_of_json_or_one_document_of_yaml_for_each_value(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for output in (Output.JSON, Output.YAML, Output.NAME):
        for row in ROWS:
            print_item(row, output, name=row["size"])
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert [json.loads(line) for line in lines[:2]] == ROWS
    assert list(yaml.safe_load_all("\n".join(lines[2:-2]))) == ROWS
    assert lines[-2:] == ["7", "12"]
