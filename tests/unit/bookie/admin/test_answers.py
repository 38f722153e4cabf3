"""Numbers of paths and queries are limited; an error names the parameter and the limits."""

import pytest
from aiohttp.test_utils import make_mocked_request

from quire_bookie.admin.answers import LONG_MAX, LONG_MIN, RefusedError, integer, whole_number


@pytest.mark.parametrize("text", ["0", "-1", "007", str(LONG_MAX), str(LONG_MIN)])
def test_a_number_of_64_bits_is_accepted(text: str) -> None:
    assert whole_number("count", text) == int(text)
    assert integer(make_mocked_request("GET", f"/?count={text}"), "count") == int(text)


@pytest.mark.parametrize(
    "text", ["", "x", "1.0", "1e3", " 1", "1_0", "\u0661", str(LONG_MAX + 1), "9" * 5000, "-" + "9" * 30]
)
def test_other_values_are_refused_with_the_limits(text: str) -> None:
    with pytest.raises(
        RefusedError, match=f"^count=.* is not an integer from -9223372036854775808 to {LONG_MAX}$"
    ) as error:
        whole_number("count", text)
    assert error.value.status == 400
    assert len(str(error.value)) < 150


def test_the_error_contains_the_limits_of_the_parameter() -> None:
    assert whole_number("count", "5", 0, 5) == 5
    for text in ("6", "-1"):
        with pytest.raises(RefusedError, match=f"count={text} is not an integer from 0 to 5"):
            whole_number("count", text, 0, 5)


def test_a_missing_parameter_has_its_default() -> None:
    request = make_mocked_request("GET", "/")
    assert integer(request, "page", 3) == 3
    with pytest.raises(RefusedError, match="the query parameter page is missing"):
        integer(request, "page")
