"""Quantities and durations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_operator.api.quantities import bytes_quantity, duration_ms, duration_s, quantity_bytes, quantity_mib


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("0", 0), ("1", 1), ("1k", 1000), ("1Ki", 1024), ("1.5Gi", 3 * 2**29), ("100G", 100 * 10**9), ("0.5", 1)],
)
def test_quantity_is_parsed_to_bytes(text: str, size_bytes: int) -> None:
    assert quantity_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "-1", "1e3", "1gi", "1m"])
def test_invalid_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        quantity_bytes(text)


@given(st.integers(0, 2**60))
def test_bytes_survive_formatting_as_a_quantity(size_bytes: int) -> None:
    assert quantity_bytes(bytes_quantity(size_bytes)) == size_bytes


def test_mebibytes_are_rounded_up_so_that_no_cache_has_size_zero() -> None:
    assert [quantity_mib(text) for text in ("0", "1", "1Mi", "1025Ki", "1G")] == [1, 1, 1, 2, 954]


@pytest.mark.parametrize(
    ("text", "expected_ms"), [("0s", 0), ("500ms", 500), ("1h30m", 5_400_000), ("168h", 604_800_000)]
)
def test_duration_is_parsed_to_milliseconds(text: str, expected_ms: int) -> None:
    assert duration_ms(text) == expected_ms
    assert duration_s(text) == expected_ms / 1000


@pytest.mark.parametrize("text", ["", "7d", "1", "1.5h", "h", "-1s"])
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        duration_ms(text)
