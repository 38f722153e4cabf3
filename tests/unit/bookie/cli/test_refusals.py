"""The exit code of each kind of error."""

import pytest

from quire_bookie.cli.refusals import exit_code_of, refusal_of, refusal_of_status
from quire_bookie.errors import ConfigError, QuireError


@pytest.mark.parametrize(
    ("status", "code"), [(400, 1), (401, 4), (403, 4), (404, 3), (409, 5), (412, 5), (500, 1), (503, 1)]
)
def test_a_status_of_http_has_an_exit_code(status: int, code: int) -> None:
    error = refusal_of_status(status, "reason")
    assert (str(error), exit_code_of(error)) == ("reason", code)
    assert exit_code_of(refusal_of(error, "topic t")) == code


def test_usage_and_other_errors_have_their_own() -> None:
    assert exit_code_of(ConfigError("x")) == 2
    assert exit_code_of(QuireError("x")) == 1
