"""Profiles: what they stand for, what they refuse, and that they never hold a token."""

from pathlib import Path

import pytest

from quire_bookie.cli.commands import EXIT_MISSING, EXIT_USAGE
from quire_bookie.cli.main import run
from quire_bookie.cli.profiles import read_profiles, use_profile
from quire_bookie.errors import ConfigError


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config" / "profiles.toml"
    monkeypatch.setenv("QUIRE_PROFILES", str(path))
    monkeypatch.delenv("QUIRE_PROFILE", raising=False)
    return path


def test_a_profile_stands_for_variables_that_are_not_set_and_only_while_it_is_used() -> None:
    assert (
        run(["profile", "set", "a b", "http=https://h:1", "user=ada", "password=file:///p", 'tls-key=/with "quotes"'])
        == 0
    )
    environment = {"QUIRE_HTTP": "http://own:1"}
    restore = use_profile("a b", environment)
    assert environment == {
        "QUIRE_HTTP": "http://own:1",
        "QUIRE_USER": "ada",
        "QUIRE_PASSWORD": "file:///p",
        "QUIRE_TLS_KEY": '/with "quotes"',
    }
    restore()
    assert environment == {"QUIRE_HTTP": "http://own:1"}


def test_fields_are_changed_and_removed_and_other_profiles_stay(capsys: pytest.CaptureFixture[str]) -> None:
    run(["profile", "set", "one", "http=http://h:1", "broker=pulsar://h:2"])
    run(["profile", "set", "two", "http=http://h:3"])
    assert run(["profile", "set", "one", "broker=", "http=http://h:4"]) == 0
    assert read_profiles() == {"one": {"http": "http://h:4"}, "two": {"http": "http://h:3"}}
    capsys.readouterr()
    assert run(["profile", "list", "-o", "name"]) == 0
    assert capsys.readouterr().out == "one\ntwo\n"
    assert run(["profile", "delete", "one"]) == EXIT_USAGE
    assert run(["profile", "delete", "one", "--yes"]) == 0
    assert run(["profile", "describe", "one"]) == EXIT_MISSING
    assert "the known profiles are: two" in capsys.readouterr().err


def test_a_missing_profile_names_the_command_that_creates_the_first_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "describe", "one"]) == EXIT_MISSING
    assert "the known profiles are: none yet; `quire profile set NAME http=URL` creates one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("token=eyJhbGciOi", "token: the value must begin with file://"),
        ("password=eyJhbGciOi", "password: the value must begin with file://"),
        ("http=h:1", "'h:1' must begin with http:// or https://"),
        ("broker=http://h:1", "must begin with pulsar://"),
        ("colour=red", "colour: unknown; a profile has http"),
        ("http", "expected FIELD=VALUE"),
    ],
)
def test_what_a_profile_cannot_have_is_refused(
    field: str, said: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["profile", "set", "p", field]) == EXIT_USAGE
    error = capsys.readouterr().err
    assert said in error and "eyJ" not in error
    assert not file.exists()


@pytest.mark.parametrize("text", ["http = 'x'", "[p]\nhttp = 1", "[p]\ntoken = 'secret'", "[p", "\x00"])
def test_a_broken_file_is_named_and_shows_no_secret(text: str, file: Path) -> None:
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"profiles\.toml") as refused:
        read_profiles()
    assert "secret" not in str(refused.value)
