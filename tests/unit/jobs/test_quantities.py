import pytest
from pydantic import TypeAdapter, ValidationError

from quire_jobs.quantities import Duration, Size

DURATION, SIZE = TypeAdapter(Duration), TypeAdapter(Size)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5s", 1.5), ("30m", 1800), ("12h", 43_200), ("7d", 604_800), ("2w", 1_209_600)]
)
def test_durations_are_seconds(text: str, seconds: float) -> None:
    assert DURATION.validate_python(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("64Ki", 65_536), ("1.5Mi", 1_572_864), ("2k", 2000), ("3G", 3 * 10**9), ("1Ti", 1 << 40)],
)
def test_sizes_are_bytes(text: str, size: int) -> None:
    assert SIZE.validate_python(text) == size


def test_numbers_are_unchanged() -> None:
    assert (DURATION.validate_python(5), SIZE.validate_python(7)) == (5.0, 7)


@pytest.mark.parametrize("text", ["", "d", "7 days", "-1h", "1Mi"])
def test_the_error_for_an_invalid_duration_shows_the_form(text: str) -> None:
    with pytest.raises(ValidationError, match=r"expected a number, alone or with s, m, h, d, w; e\.g\. 7d"):
        DURATION.validate_python(text)


@pytest.mark.parametrize("text", ["lots", "1MB", "1h", "1m"])
def test_the_error_for_an_invalid_size_shows_the_form(text: str) -> None:
    with pytest.raises(ValidationError, match=r"alone or with k, M, G, T, Ki, Mi, Gi, Ti; e\.g\. 64Mi"):
        SIZE.validate_python(text)
