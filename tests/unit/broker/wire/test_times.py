"""Times as texts, and back."""

import pytest

from quire_broker.wire.times import time_of, time_text


@pytest.mark.parametrize(
    ("time_ms", "text"), [(0, "1970-01-01T00:00:00.000Z"), (1795788000123, "2026-11-27T14:00:00.123Z")]
)
def test_a_time_has_milliseconds_and_is_in_utc(time_ms: int, text: str) -> None:
    assert time_text(time_ms) == text
    assert time_of(text) == time_ms


def test_a_time_that_no_calendar_has_is_the_epoch() -> None:
    assert time_text(2**62) == "1970-01-01T00:00:00.000Z"


def test_any_time_zone_is_read_and_none_is_refused() -> None:
    assert time_of("2026-11-27T15:00:00.123+01:00") == 1795788000123
    for text in ("2026-11-27T14:00:00", "yesterday", ""):
        with pytest.raises(ValueError, match=r"."):
            time_of(text)
