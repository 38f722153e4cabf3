"""Key arithmetic shared by both stores."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.errors import MetadataError
from quire_bookie.limits import METADATA_TRANSACTION_OPERATIONS_MAX, METADATA_VALUE_BYTES_MAX
from quire_bookie.metadata.contract import (
    after_child,
    check_key,
    check_transaction,
    check_value,
    prefix_end,
    sequence_parent,
)
from quire_bookie.metadata.store import Check, Delete, Operation, Put

keys = st.lists(st.sampled_from([b"a", b"b", b"-", b"/", b"0", b"\xff"]), min_size=1, max_size=5).map(b"".join)


@given(keys.filter(lambda key: key.strip(b"\xff") != b""), keys)
def test_the_end_of_a_prefix_separates_keys_with_it_from_later_ones(prefix: bytes, other: bytes) -> None:
    end = prefix_end(prefix)
    assert (prefix <= other < end) == other.startswith(prefix)
    assert prefix + b"\xff" * 9 < end


@given(st.sets(keys, max_size=8))
def test_iterating_over_children_finds_every_name(below: set[bytes]) -> None:
    base = b"/p/"
    stored = sorted(base + key for key in below)
    names, start = set(), base
    while (key := next((key for key in stored if key >= start), None)) is not None:
        names.add(key[len(base) :].partition(b"/")[0])
        start = after_child(base, key)
        assert start > key
    assert names == {key.partition(b"/")[0] for key in below}


@pytest.mark.parametrize("key", ["", "a", "/a/", "/"])
def test_a_key_that_is_not_a_path_fails_an_assertion(key: str) -> None:
    with pytest.raises(AssertionError):
        check_key(key)


def test_a_value_may_be_as_large_as_the_limit() -> None:
    check_value("/a", bytes(METADATA_VALUE_BYTES_MAX))
    with pytest.raises(MetadataError, match="/a"):
        check_value("/a", bytes(METADATA_VALUE_BYTES_MAX + 1))


def test_sequential_nodes_count_on_the_folder_of_their_prefix() -> None:
    assert sequence_parent("/counters/producer-name/-") == "/counters/producer-name"
    with pytest.raises(AssertionError):
        sequence_parent("/top-")


def test_a_transaction_has_a_limited_size_and_writes_no_key_twice() -> None:
    half = METADATA_TRANSACTION_OPERATIONS_MAX // 2
    checks = [Check(f"/{n}", 0) for n in range(half)]
    operations: list[Operation] = [Put(f"/{n}", b"") for n in range(half)]
    check_transaction(checks, operations)
    with pytest.raises(AssertionError):
        check_transaction([*checks, Check("/x", 0)], operations)
    with pytest.raises(AssertionError):
        check_transaction([], [Put("/a", b""), Delete("/a")])
    with pytest.raises(MetadataError):
        check_transaction([], [Put("/a", bytes(METADATA_VALUE_BYTES_MAX + 1))])
