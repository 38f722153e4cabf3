"""Where `quire topic tail` begins to read."""

import pytest

from quire_broker.cli.tail import start_of

LEDGERS = [{"ledgerId": 3, "entries": 5}, {"ledgerId": 8, "entries": 0}, {"ledgerId": 9, "entries": 2}]


@pytest.mark.parametrize(
    ("entries", "after"),
    [(0, (9, 1)), (1, (9, 0)), (2, (9, -1)), (3, (3, 3)), (7, (3, -1)), (8, (-1, -1)), (10_000, (-1, -1))],
)
def test_reading_begins_before_the_last_entries(entries: int, after: tuple[int, int]) -> None:
    assert start_of({"ledgers": LEDGERS}, entries) == after


def test_a_topic_without_ledgers_is_read_from_its_beginning() -> None:
    assert start_of({"ledgers": []}, 3) == (-1, -1)
