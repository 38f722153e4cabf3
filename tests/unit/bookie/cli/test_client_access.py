"""The credentials of commands: what the environment may hold, and how they are shown to servers."""

from pathlib import Path

import pytest

from quire_bookie.cli.client_access import client_access
from quire_bookie.errors import ConfigError


def test_a_user_with_a_password_is_shown_as_basic_authentication(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("a: b \n")
    access = client_access({"QUIRE_USER": "ada", "QUIRE_PASSWORD": f"file://{file}"})
    assert access.shown == ("basic", "ada:a: b ")
    assert access.headers == {"Authorization": "Basic YWRhOmE6IGIg"}
    assert client_access({"QUIRE_USER": "ada", "QUIRE_PASSWORD": "p"}).shown == ("basic", "ada:p")
    assert "a: b" not in repr(access)


def test_a_token_is_shown_as_such_and_nothing_without_credentials() -> None:
    assert client_access({"QUIRE_TOKEN": "abc\n"}).shown == ("token", "abc")
    assert client_access({}).shown == ("", "") and client_access({}).headers == {}


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"QUIRE_USER": "ada"}, "give both or neither"),
        ({"QUIRE_PASSWORD": "secret"}, "give both or neither"),
        ({"QUIRE_USER": "ada", "QUIRE_PASSWORD": "secret", "QUIRE_TOKEN": "t"}, "give one of them"),
        ({"QUIRE_USER": "a:b", "QUIRE_PASSWORD": "secret"}, "no colon"),
        ({"QUIRE_USER": "ada", "QUIRE_PASSWORD": "file:///nowhere/p"}, "/nowhere/p cannot be read"),
    ],
)
def test_contradictions_are_refused_without_showing_a_secret(environment: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        client_access(environment)
    assert "secret" not in str(refused.value)
