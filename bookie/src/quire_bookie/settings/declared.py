"""Declares a configurable field of a settings dataclass: its key, unit, range and description.

    file_bytes: int = setting(64 * MIB, "journalMaxSizeMB", "size of a journal file in MiB", unit=MEBIBYTES)

The field has the unit that the code needs, bytes or seconds. The key has the unit of BookKeeper or Pulsar.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from os.path import abspath
from typing import Any, Final, TypeVar, get_type_hints

from quire_bookie.dataclass import dataclass

T = TypeVar("T")
_METADATA = "setting"
_DERIVED: Final = object()
_INTEGER_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of a key: one is `times / over` units of its field."""

    times: int = 1
    over: int = 1

    def of_field(self, value: Any) -> Any:
        """Convert a field's value to this unit. Below 0 a value is no quantity, but a mark such as *no limit*."""
        return value if self == PLAIN or value < 0 else round(value * self.over / self.times)

    def to_field(self, value: Any) -> Any:
        """Convert a key's value to the unit of the field."""
        if self == PLAIN or value < 0:
            return value
        return value * self.times / self.over if self.over > 1 else value * self.times if self.times > 1 else value


PLAIN = Unit()
MEBIBYTES = Unit(times=1 << 20)
MILLISECONDS = Unit(over=1000)
MINUTES = Unit(times=60)
PERCENT = Unit(over=100)


@dataclass(frozen=True, slots=True)
class Setting:
    """Describes one key. Ranges are in the unit of the key."""

    key: str
    """Name in BookKeeper or Pulsar, or ours in the same style."""
    short: str
    """Second spelling, also that of flags and environment variables."""
    description: str
    default: Any
    """In the unit of the key."""
    kind: Any
    """Type of the key's value."""
    secret: bool
    range: dict[str, Any]
    """`ge`, `gt`, `le`: smallest and largest values."""
    unit: Unit
    to_field: Callable[[Any], Any]
    """Converts a value of the key to one of the field."""


def setting(
    default: T,
    key: str,
    description: str,
    *,
    short: str = "",
    unit: Unit = PLAIN,
    kind: Any = None,
    key_default: Any = _DERIVED,
    read: Callable[[Any], T] | None = None,
    secret: bool = False,
    **range_: Any,
) -> T:
    """Declare a field with this default.

    `short` defaults to the name of the field; `kind` to its type, or to int for a key with a unit of its own.
    `read` does a conversion that is more than a change of unit; then `key_default` is the key's default.
    """
    made = Setting(
        key=key,
        short=short,
        description=description,
        default=unit.of_field(default) if key_default is _DERIVED else key_default,
        kind=kind or (None if unit == PLAIN else int),
        secret=secret,
        range=range_,
        unit=unit,
        to_field=read or unit.to_field,
    )
    return dataclasses.field(default=default, metadata={_METADATA: made}, repr=not secret)


@cache
def settings_of(declaring: type) -> Mapping[str, Setting]:
    """Return the setting of each configurable field of a settings dataclass, by the field's name."""
    hints = get_type_hints(declaring)
    return {
        each.name: _completed(each.metadata[_METADATA], each.name, hints[each.name])
        for each in dataclasses.fields(declaring)
        if _METADATA in each.metadata
    }


def _completed(made: Setting, name: str, hint: Any) -> Setting:
    """Return the setting with the values that follow from the name and the type of its field."""
    kind, default, range_ = made.kind or hint, made.default, made.range
    if kind is int:
        default, range_ = int(default), {"le": _INTEGER_MAX // made.unit.times} | range_
    return dataclasses.replace(made, short=made.short or name, kind=kind, default=default, range=range_)


def absolute(path: str) -> str:
    """Return the absolute path, or "" if it is not set."""
    return abspath(path) if path else ""
