"""Hashes of topic lists."""

import pytest

from quire_broker.server.topic_lists import topics_hash

PREFIX = "persistent://public/default/"


@pytest.mark.parametrize(
    ("names", "expected"),
    [(["b", "a"], "c7559e98"), (["jw-1"], "f9f9f3d6"), (["jw-1", "jw-2"], "6064a51d")],
)
def test_the_hash_of_topics_is_the_stock_one(names: list[str], expected: str) -> None:
    assert topics_hash([PREFIX + name for name in names]) == expected
