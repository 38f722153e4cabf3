"""A declared field converts between the unit of its key and the unit of the code."""

import dataclasses
from dataclasses import dataclass

import pytest

from quire_bookie.settings.declared import MEBIBYTES, MILLISECONDS, MINUTES, PERCENT, PLAIN, Unit, setting, settings_of


@dataclass(frozen=True, slots=True)
class _Parts:
    size_bytes: int = setting(64 << 20, "sizeMB", "a size", short="size_mb", unit=MEBIBYTES, ge=1)
    pause_s: float = setting(1.5, "pause", "a pause", unit=MILLISECONDS)
    limit: int | None = setting(None, "limit", "0: none", kind=int, key_default=0, read=lambda value: value or None)
    word: str = setting("", "word", "a word", secret=True)
    internal: int = 7


FOUND = settings_of(_Parts)


def test_only_declared_fields_are_settings_and_all_have_their_default() -> None:
    assert list(FOUND) == ["size_bytes", "pause_s", "limit", "word"]
    assert _Parts() == _Parts(64 << 20, 1.5, None, "", 7)


def test_default_kind_and_spelling_are_those_of_the_key() -> None:
    size, pause, limit, word = FOUND.values()
    assert (size.short, size.default, size.kind) == ("size_mb", 64, int)
    assert size.range == {"ge": 1, "le": (2**63 - 1) >> 20}, "a size in bytes fits 63 bits"
    assert (pause.short, pause.default, pause.kind) == ("pause_s", 1500, int)
    assert (limit.default, limit.kind, word.kind) == (0, int, str)


def test_values_of_a_key_become_values_of_the_field() -> None:
    size, pause, limit, _ = FOUND.values()
    assert (size.to_field(3), pause.to_field(250), limit.to_field(0), limit.to_field(9)) == (3 << 20, 0.25, None, 9)


def test_a_secret_is_not_shown() -> None:
    assert FOUND["word"].secret
    assert "hidden" not in repr(dataclasses.replace(_Parts(), word="hidden"))


@pytest.mark.parametrize("unit", [PLAIN, MEBIBYTES, MILLISECONDS, MINUTES, PERCENT])
def test_a_unit_converts_there_and_back(unit: Unit) -> None:
    for value in (0, 1, 7, 100):
        assert unit.of_field(unit.to_field(value)) == value


def test_a_fraction_of_a_unit_is_rounded_and_a_mark_stays() -> None:
    assert [MILLISECONDS.of_field(value) for value in (0.0005, 0.29, 4.35, 1.1)] == [0, 290, 4350, 1100]
    for unit in (MEBIBYTES, MILLISECONDS, MINUTES):
        assert (unit.of_field(-1), unit.to_field(-1)) == (-1, -1)
