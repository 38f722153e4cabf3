import json

from quire_jobs.tables.marks import Advance, decode_positions


def test_an_advance_counts_once_and_keeps_the_positions_of_other_topics() -> None:
    first = Advance({}, {"a": "3:9", "b": "4:1"})
    found = first.merged(None, 0)
    assert decode_positions(found) == {"a": "3:9", "b": "4:1"}
    assert first.merged(found, 0) is None, "the table has it already"
    second = Advance({"a": "3:9"}, {"a": "5:0"})
    assert decode_positions(second.merged(found, 0)) == {"a": "5:0", "b": "4:1"}


def test_an_advance_from_a_position_that_the_table_has_left_adds_nothing() -> None:
    found = json.dumps({"a": "5:0"})
    assert Advance({"a": "3:9"}, {"a": "6:0"}).merged(found, 0) is None
    assert Advance({}, {"a": "6:0"}).merged(found, 0) is None
    assert Advance({"a": "3:9"}, {"a": "6:0"}).merged(None, 0) is None, "the table was made again"
