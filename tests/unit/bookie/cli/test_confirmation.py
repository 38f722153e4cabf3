"""Confirmations: the name, `--yes`, or nothing happens."""

import pytest

from quire_bookie.cli.confirmation import confirm_name
from quire_bookie.errors import ConfigError


def test_without_a_terminal_only_yes_confirms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    confirm_name(True, "t", "t will be deleted")
    with pytest.raises(ConfigError, match="t will be deleted: there is no terminal to ask on; give --yes"):
        confirm_name(False, "t", "t will be deleted")


@pytest.mark.parametrize("typed", ["", "T", "y", "other"])
def test_another_name_changes_nothing(typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.prompt", lambda *_, **__: typed)
    with pytest.raises(ConfigError, match="is not t: nothing was changed"):
        confirm_name(False, "t", "t will be deleted")


def test_the_name_confirms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.prompt", lambda *_, **__: " t ")
    confirm_name(False, "t", "t will be deleted")
